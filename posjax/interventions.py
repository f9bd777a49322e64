"""Named changes of the scheme at evaluation: nothing learned changes.

An intervention is a function scheme -> scheme, applied to a trained run's own scheme. It may add
parts without parameters or change numbers; the parameters stay as they were trained.
"""

from typing import ClassVar

from posjax import text
from posjax.scheme import Scheme, chain
from posjax.schemes import logn as logn_scheme
from posjax.schemes import shift as shift_scheme
from posjax.spec import Spec, register


class Intervention(Spec):
    """The interface."""

    kind = 'intervention'
    registry: ClassVar[dict[str, type['Intervention']]] = {}

    def __call__(self, scheme: Scheme, train_length: int, length: int) -> Scheme:
        """The scheme to evaluate under, for a run trained at `train_length`, at `length`."""
        return scheme


def parse(words: str) -> Intervention:
    """`none`, `logn`, `shift(by=100)` as an Intervention; ValueError in one line otherwise."""
    return text.parse(words, Intervention)


@register
class none(Intervention):
    """The scheme as it was trained."""


@register
class logn(Intervention):
    """Every score times log(length) / log(train length); see the scheme `logn`."""

    def __call__(self, scheme, train_length, length):
        return chain(scheme, logn_scheme(train_length=float(train_length)))


@register
class shift(Intervention):
    """All positions moved by a constant: what a relative scheme does not notice.

    Fields:
      by: how far, in tokens.
    """

    by: int = 0

    def __call__(self, scheme, train_length, length):
        return chain(scheme, shift_scheme(by=self.by))
