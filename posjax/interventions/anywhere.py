"""Interventions for every scheme: on scores, on what is seen, and on position numbers."""

from typing import Literal

from posjax.interventions.intervention import (
    Factor,
    Intervention,
    check_factor,
    factor_of,
)
from posjax.scheme import chain
from posjax.schemes import interpolate as interpolate_scheme
from posjax.schemes import logn as logn_scheme
from posjax.schemes import logn_position as logn_position_scheme
from posjax.schemes import shift as shift_scheme
from posjax.schemes import window as window_scheme
from posjax.spec import register


@register
class logn(Intervention):
    """Every score times log(length) / log(train length); see the scheme `logn`."""

    def __call__(self, scheme, train_length, length):
        return chain(scheme, logn_scheme(train_length=float(train_length)))


@register
class logn_position(Intervention):
    """Each query's scores times max(1, log(tokens seen) / log(train length)); as its scheme."""

    def __call__(self, scheme, train_length, length):
        return chain(scheme, logn_position_scheme(train_length=float(train_length)))


@register
class shift(Intervention):
    """All positions moved by a constant: what a relative scheme does not notice.

    Fields:
      by: how far, in tokens.
    """

    by: int = 0

    def __call__(self, scheme, train_length, length):
        return chain(scheme, shift_scheme(by=self.by))


@register
class interpolate(Intervention):
    """All position numbers divided by a factor: position interpolation, whatever reads them.

    `linear` is the same for rotations, as a change of their frequencies.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
    """

    factor: Factor = 'auto'

    def check(self):
        check_factor(self)

    def __call__(self, scheme, train_length, length):
        return chain(scheme, interpolate_scheme(factor_of(self.factor, train_length, length)))


@register
class crop(Intervention):
    """Only the last tokens are seen, as many as in training: what far context is worth is lost.

    A layer sees that far, and all together further. Positions stay: schemes that read numbers past
    the training length still do.

    Fields:
      window: tokens seen, the token itself included, >= 1, or 'auto' for the train length.
    """

    window: int | Literal['auto'] = 'auto'

    def check(self):
        if self.window != 'auto' and self.window < 1:
            raise ValueError(
                f'intervention crop: window={self.window} should be at least 1 (a token sees '
                "itself), or 'auto'"
            )

    def __call__(self, scheme, train_length, length):
        size = train_length if self.window == 'auto' else self.window
        return chain(scheme, window_scheme(size=size))


@register
class deterministic(Intervention):
    """Random positions as they are without a key: offsets 0, randomised numbers evenly apart.

    How SHAPE and Abacus evaluate; Ruoss et al. draw at evaluation as well.
    """

    def __call__(self, scheme, train_length, length):
        changed = scheme.deterministic()
        if changed == scheme:
            raise ValueError(
                f'intervention deterministic: nothing in scheme {scheme.text} is random; leave the '
                'intervention out for it'
            )
        return changed
