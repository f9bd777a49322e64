"""Interventions on rotations: other frequencies, other far distances, or none at all.

They change every rope, partial_rope and p_rope, also inside chains and mixtures, and keep its theta
and pairing. The original length of a scaling is the training length.
"""

import dataclasses
import math
from typing import Literal

from posjax import scaling as scalings
from posjax.interventions.intervention import (
    Factor,
    Intervention,
    check_factor,
    factor_of,
    replaced,
)
from posjax.scaling import Scaling
from posjax.scaling.by_parts import rescaled_beta
from posjax.scheme import Scheme, chain
from posjax.schemes import lm_infinite as lm_infinite_scheme
from posjax.schemes import none as none_scheme
from posjax.schemes import rerope as rerope_scheme
from posjax.schemes import self_extend as self_extend_scheme
from posjax.schemes import sharpen as sharpen_scheme
from posjax.schemes.rope import is_rotary
from posjax.spec import register

# Turns in training: a number, or what is right for the train length.
Turns = float | Literal['auto']


def _turns(turns: Turns, train_length: float, usual: float) -> float:
    """'auto' is the usual number, or what the fastest pair makes where that is fewer."""
    return rescaled_beta(train_length, usual) if turns == 'auto' else turns


def _turned(intervention: Intervention, scheme: Scheme, change) -> Scheme:
    """The scheme with every rotary part changed."""
    what = 'rotary part (rope, partial_rope, p_rope)'
    return replaced(intervention, scheme, is_rotary, change, what)


def _scaled(intervention: Intervention, scheme: Scheme, scaling: Scaling) -> Scheme:
    """The scheme with every rotary part under a scaling."""

    def change(part):
        if part.scaling != scalings.unscaled():
            raise ValueError(
                f'intervention {intervention.text}: {part.text} is scaled already, and scalings do '
                'not add up; ask for one'
            )
        return dataclasses.replace(part, scaling=scaling)

    return _turned(intervention, scheme, change)


class _Rescaling(Intervention):
    """What those share that are a scaling of every rotation."""

    def check(self):
        check_factor(self)

    def __call__(self, scheme, train_length, length):
        factor = factor_of(self.factor, train_length, length)
        return _scaled(self, scheme, self.scaling(factor, float(train_length)))

    def scaling(self, factor: float, original_length: float) -> Scaling:
        raise NotImplementedError(f'intervention {self.name()} does not say its scaling')


@register
class linear(_Rescaling):
    """Position interpolation: all pairs turn `factor` times slower; see scaling `linear`.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
    """

    factor: Factor = 'auto'

    def scaling(self, factor, original_length):
        return scalings.linear(factor)


@register
class ntk(_Rescaling):
    """A larger base, as by bloc97; see scaling `ntk`.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
    """

    factor: Factor = 'auto'

    def scaling(self, factor, original_length):
        return scalings.ntk(factor)


@register
class ntk_su(_Rescaling):
    """A larger base and slower pairs, as by Su and vLLM; see scaling `ntk_su`.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
    """

    factor: Factor = 'auto'

    def scaling(self, factor, original_length):
        return scalings.ntk_su(factor)


@register
class dynamic_ntk(_Rescaling):
    """A base that grows with the text, from the train length on; see scaling `dynamic_ntk`.

    Fields:
      factor: >= 1, or 'auto' for length / train length; with 1, the base is that of `ntk`, whose
        factor is length / train length already.
    """

    factor: Factor = 1.0

    def scaling(self, factor, original_length):
        return scalings.dynamic_ntk(factor, original_length)


@register
class by_parts(_Rescaling):
    """Slow pairs interpolated, fast ones kept, by turns; see scaling `by_parts`.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
      alpha: pairs with fewer turns in the train length are interpolated.
      beta: pairs with more are kept; 'auto' for 32, or the turns of the fastest pair where these
        are fewer.
    """

    factor: Factor = 'auto'
    alpha: float = 1.0
    beta: Turns = 'auto'

    def scaling(self, factor, original_length):
        beta = _turns(self.beta, original_length, 32.0)
        return scalings.by_parts(factor, original_length, self.alpha, beta)


@register
class by_parts_v1(_Rescaling):
    """Slow pairs interpolated, middle ones NTK-aware, fast ones kept; see scaling `by_parts_v1`.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
    """

    factor: Factor = 'auto'

    def scaling(self, factor, original_length):
        return scalings.by_parts_v1(factor, original_length)


@register
class llama3(_Rescaling):
    """Slow pairs interpolated, fast ones kept, as Llama 3; see scaling `llama3`.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
      low_freq_factor: pairs with fewer turns in the train length are interpolated.
      high_freq_factor: pairs with more are kept; 'auto' for 4, or the turns of the fastest pair
        where these are fewer.
    """

    factor: Factor = 'auto'
    low_freq_factor: float = 1.0
    high_freq_factor: Turns = 'auto'

    def scaling(self, factor, original_length):
        high = _turns(self.high_freq_factor, original_length, 4.0)
        return scalings.llama3(factor, original_length, self.low_freq_factor, high)


@register
class yarn_paper(_Rescaling):
    """YaRN as in the paper; see scaling `yarn_paper`.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
      alpha: pairs with fewer turns in the train length are interpolated.
      beta: pairs with more are kept; 'auto' for 32, or the turns of the fastest pair where these
        are fewer.
    """

    factor: Factor = 'auto'
    alpha: float = 1.0
    beta: Turns = 'auto'

    def scaling(self, factor, original_length):
        beta = _turns(self.beta, original_length, 32.0)
        return scalings.yarn_paper(factor, original_length, self.alpha, beta)


@register
class yarn(_Rescaling):
    """YaRN as in the released code; see scaling `yarn`.

    Its ramp is clamped to pair 0, so that beta_fast=32 is what `yarn_paper` rescales it to.

    Fields:
      factor: >= 1, or 'auto' for length / train length.
      beta_fast: pairs with more turns in the train length are kept.
      beta_slow: pairs with fewer are interpolated.
      truncate: whether the ends of the ramp are rounded outwards to whole pairs.
      mscale: queries and keys are multiplied by 0.1 mscale ln(factor) + 1.
    """

    factor: Factor = 'auto'
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 1.0

    def scaling(self, factor, original_length):
        return scalings.yarn(factor, original_length, self.beta_fast, self.beta_slow,
                             self.truncate, self.mscale)  # fmt: skip


@register
class longrope(_Rescaling):
    """A factor for every pair; see scaling `longrope`.

    Fields:
      short_factors: of each pair up to the train length.
      long_factors: of each pair beyond.
      factor: >= 1, or 'auto' for length / train length; for the attention alone.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    factor: Factor = 'auto'

    def scaling(self, factor, original_length):
        return scalings.longrope(self.short_factors, self.long_factors, original_length, factor)


@register
class rerope(Intervention):
    """Distances that end at a window, or go on slowly beyond it; see scheme `rerope`.

    Fields:
      window: in positions, or 'auto' for half the train length, as its author.
      leak: distance per position beyond the window, 0 to 1.
    """

    window: float | Literal['auto'] = 'auto'
    leak: float = 0.0

    def __call__(self, scheme, train_length, length):
        window = max(1.0, train_length / 2) if self.window == 'auto' else self.window
        return _turned(self, scheme, lambda part: rerope_scheme(window, self.leak, part))


@register
class self_extend(Intervention):
    """Far distances in steps of a group; see scheme `self_extend`.

    Fields:
      group: positions in a group, or 'auto' for the fewest with which no distance is longer than in
        training.
      window: in positions, or 'auto' for a quarter of the train length, as the paper's 1,024 of
        4,096.
    """

    group: int | Literal['auto'] = 'auto'
    window: int | Literal['auto'] = 'auto'

    def __call__(self, scheme, train_length, length):
        window = max(1, train_length // 4) if self.window == 'auto' else self.window
        if self.group == 'auto' and window >= train_length:
            raise ValueError(
                f'intervention {self.text}: window={window} leaves nothing of {train_length} '
                'trained positions to groups; take a shorter one'
            )
        group = (
            max(1, math.ceil((length - window) / (train_length - window)))
            if self.group == 'auto' else self.group
        )  # fmt: skip
        return _turned(self, scheme, lambda part: self_extend_scheme(group, window, part))


@register
class lm_infinite(Intervention):
    """A window, and the first tokens a window away; see scheme `lm_infinite`.

    Fields:
      window: in tokens and positions, or 'auto' for the train length.
      number: how many of the first tokens are seen from everywhere.
    """

    window: int | Literal['auto'] = 'auto'
    number: int = 10

    def __call__(self, scheme, train_length, length):
        window = train_length if self.window == 'auto' else self.window
        return _turned(self, scheme, lambda part: lm_infinite_scheme(window, self.number, part))


@register
class drop(Intervention):
    """No rotation: what was trained with RoPE is asked without (DroPE).

    The paper goes on training for a while without positions before it asks. Gelberg et al. 2025,
    arXiv:2512.12167.

    Fields:
      temperature: c of the factor 1 + c ln(factor) of all scores, which the paper fits after that
        training; 0 for none.
      factor: >= 1, or 'auto' for length / train length; for the temperature alone.
    """

    temperature: float = 0.0
    factor: Factor = 'auto'

    def check(self):
        check_factor(self)
        self.require('temperature', self.temperature >= 0, 'at least 0')

    def __call__(self, scheme, train_length, length):
        bare = _turned(self, scheme, lambda part: none_scheme())
        factor = 1 + self.temperature * math.log(factor_of(self.factor, train_length, length))
        return bare if factor == 1 else chain(bare, sharpen_scheme(factor))
