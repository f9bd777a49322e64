"""What an intervention is: a change of the scheme at evaluation, with nothing learned changed.

An intervention is a function scheme -> scheme, applied to a trained run's own scheme. It may add
parts without parameters or change numbers; the parameters stay as they were trained.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

from posjax import text
from posjax.scheme import Chain, Scheme, chain, within
from posjax.spec import Spec, register, structured

# How many times longer than in training: a number, or what the lengths say.
Factor = float | Literal['auto']


class Intervention(Spec):
    """The interface."""

    kind = 'intervention'
    registry: ClassVar[dict[str, type['Intervention']]] = {}

    def __call__(self, scheme: Scheme, train_length: int, length: int) -> Scheme:
        """The scheme to evaluate under, for a run trained at `train_length`, at `length`.

        Raises:
          ValueError: in one line, where it means nothing for this scheme or these lengths.
        """
        return scheme

    def __or__(self, other: 'Intervention') -> 'Intervention':
        return in_order(self, other)


@register
class none(Intervention):
    """The scheme as it was trained."""


@structured
class InOrder(Intervention):
    """Interventions one after the other."""

    parts: tuple[Intervention, ...] = ()

    @property
    def text(self) -> str:
        return '|'.join(part.text for part in self.parts) or 'none'

    def check(self):
        for part in self.parts:
            part.check()

    def __call__(self, scheme, train_length, length):
        for part in self.parts:
            scheme = part(scheme, train_length, length)
        return scheme


def in_order(*interventions: Intervention) -> Intervention:
    """`a|b|...` as one intervention; those that do nothing drop out."""
    parts = [
        part
        for change in interventions
        for part in (change.parts if isinstance(change, InOrder) else (change,))
        if not isinstance(part, none)
    ]
    if len(parts) == 1:
        return parts[0]
    return InOrder(tuple(parts)) if parts else none()


def parse(words: str) -> Intervention:
    """`none`, `yarn(factor=4.0)|logn` as an Intervention; ValueError in one line otherwise."""
    return text.parse(words, Intervention, combine=in_order)


def check_factor(intervention: Intervention) -> None:
    """Raises ValueError where `factor` is below 1."""
    good = intervention.factor == 'auto' or intervention.factor >= 1
    what = "at least 1 (it is the new length / the trained one), or 'auto'"
    intervention.require('factor', good, what)


def factor_of(factor: Factor, train_length: int, length: int) -> float:
    """The number that a factor stands for: 'auto' is length / train_length, and 1 below it."""
    return max(1.0, length / train_length) if factor == 'auto' else factor


def replaced(
    intervention: Intervention,
    scheme: Scheme,
    meant: Callable[[Scheme], bool],
    change: Callable[[Scheme], Scheme],
    what: str,
) -> Scheme:
    """The scheme with every part that is `meant` changed, also inside chains and mixtures.

    Raises:
      ValueError: no part is meant (`what` names what was looked for), or a changed part does not go
        with its neighbours.
    """
    found = []

    def rebuild(part: Scheme) -> Scheme:
        if meant(part):
            found.append(part)
            return change(part)
        rebuilt = within(part, rebuild)
        return chain(*rebuilt.parts) if isinstance(rebuilt, Chain) else rebuilt

    changed = rebuild(scheme)
    if not found:
        raise ValueError(f'intervention {intervention.text}: scheme {scheme.text} has no {what}')
    changed.check()
    return changed
