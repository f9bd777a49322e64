"""Scalings that interpolate slow pairs and leave fast ones alone: NTK-by-parts and its children.

    inv_freq_k = (g_k + (1 - g_k) / s) theta^(-2k/d),    g_k = 1 kept, 0 interpolated

    by_parts, llama3, yarn_paper   g linear in the turns r_k = L theta^(-2k/d) / 2 pi that pair k
                                   makes in training: g = clip((r - alpha) / (beta - alpha), 0, 1)
    yarn, by_parts_v1              g linear in k, between the (real) numbers of the pairs that make
                                   beta_fast and beta_slow turns, rounded outwards

The two ramps are different methods: at d = 128, L = 4096 they differ by up to 0.37 in g, and at
d = 16, L = 32 by 0.87.

No pair makes more turns than the fastest, L / 2 pi. With a beta above that the ramp in turns keeps
no pair at all, so it is refused: below 202 tokens that is the usual beta=32. `rescaled_beta` is the
largest that keeps one. The ramp in k needs no such rule: its lower end is clamped to pair 0, which
comes to the same.
"""

import math

import jax.numpy as jnp

from posjax.scaling.one_factor import check_base_fits, ntk_base
from posjax.scaling.scaling import (
    Scaling,
    inv_freq,
    require_factor,
    require_original_length,
)
from posjax.spec import register

BETA = 32.0


def rescaled_beta(original_length: float, beta: float = BETA) -> float:
    """`beta`, or the turns of the fastest pair in training, L / 2 pi, where these are fewer."""
    return min(beta, original_length / (2 * math.pi))


def blended(freq_F, factor, kept_F):
    """(g + (1 - g) / s) times each frequency; exactly the frequency where s = 1 or g = 1."""
    return freq_F * (kept_F + (1 - kept_F) / factor)


def kept_by_turns(freq_F, original_length, alpha, beta):
    """g: 0 below `alpha` turns in `original_length` positions, 1 above `beta`, linear between."""
    turns_F = original_length * freq_F / (2 * jnp.pi)
    return jnp.clip((turns_F - alpha) / (beta - alpha), 0.0, 1.0)


def kept_by_dims(theta, dim: int, original_length, fast, slow, truncate: bool):
    """g: 1 up to the pair that makes `fast` turns, 0 from the one that makes `slow`, linear in k.

    As the released code: ends rounded outwards if `truncate`, and clamped to 0 and dim - 1 (though
    the last pair is dim/2 - 1, so that a slowest pair with many turns stays partly kept).
    """

    def pair_of(turns):
        log_theta = jnp.log(jnp.float32(theta))
        return dim * jnp.log(original_length / (turns * 2 * jnp.float32(jnp.pi))) / (2 * log_theta)

    low, high = pair_of(fast), pair_of(slow)
    if truncate:
        low, high = jnp.floor(low), jnp.ceil(high)
    low, high = jnp.maximum(low, 0.0), jnp.minimum(high, dim - 1.0)
    width = jnp.where(low == high, 0.001, high - low)
    ramp_F = (jnp.arange(dim // 2, dtype=jnp.float32) - low) / width
    return 1 - jnp.clip(ramp_F, 0.0, 1.0)


def temperature(factor, mscale=1.0):
    """YaRN's factor of q and of k, 0.1 mscale ln s + 1, for s >= 1."""
    return 0.1 * mscale * jnp.log(jnp.float32(factor)) + 1.0


def check_ramp(scaling: Scaling, slow: str, fast: str) -> None:
    """Raises ValueError where the ends of a ramp are not numbers of turns, or swapped."""
    low, high = getattr(scaling, slow), getattr(scaling, fast)
    scaling.require(slow, low > 0, 'positive')
    scaling.require(slow, low < high, f'below {fast}={high!r} (slower pairs make fewer turns)')


def check_turns(scaling: Scaling, low: str, high: str) -> None:
    """Raises ValueError where a ramp in turns is reversed, or keeps no pair."""
    require_factor(scaling)
    require_original_length(scaling)
    alpha, beta, length = getattr(scaling, low), getattr(scaling, high), scaling.original_length
    scaling.require(low, alpha < beta, f'below {high}={beta!r} (slower pairs make fewer turns)')
    most = length / (2 * math.pi)
    if beta > most:
        raise ValueError(
            f'scaling {scaling.name()}: {high}={beta!r} turns are more than any pair makes in '
            f'original_length={length:g} positions ({length:g} / 2 pi = {most:.2f}), so none would '
            f'keep its speed; take {high}={math.floor(100 * most) / 100}, which keeps the fastest'
        )


@register
class by_parts(Scaling):
    """NTK-by-parts as in the YaRN paper: kept or interpolated by turns in training.

    Fields:
      factor: s, new length / trained length, >= 1.
      original_length: L, tokens in training, > 1.
      alpha: pairs with fewer turns in L are interpolated, < beta.
      beta: pairs with more are kept, at most L / 2 pi (`rescaled_beta`).
    """

    paper = 'Peng et al. 2023, arXiv:2309.00071, section 3.2'

    factor: float
    original_length: float
    alpha: float = 1.0
    beta: float = BETA

    def check(self):
        check_turns(self, 'alpha', 'beta')

    def frequencies(self, theta, dim, length_B):
        freq_F = inv_freq(theta, dim)
        kept_F = kept_by_turns(freq_F, self.original_length, self.alpha, self.beta)
        return blended(freq_F, self.factor, kept_F), 1.0


@register
class llama3(Scaling):
    """Llama 3's scaling: exactly `by_parts` with alpha=low_freq_factor, beta=high_freq_factor.

    Fields:
      factor: s, >= 1; 8 in Llama 3.1, 32 in Llama 3.2.
      original_length: L, tokens in training, > 1.
      low_freq_factor: pairs with fewer turns in L are interpolated.
      high_freq_factor: pairs with more are kept, at most L / 2 pi.
    """

    paper = 'Meta 2024 (Llama 3.1, model code)'

    factor: float
    original_length: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def check(self):
        check_turns(self, 'low_freq_factor', 'high_freq_factor')

    def frequencies(self, theta, dim, length_B):
        freq_F = inv_freq(theta, dim)
        kept_F = kept_by_turns(
            freq_F, self.original_length, self.low_freq_factor, self.high_freq_factor
        )
        return blended(freq_F, self.factor, kept_F), 1.0


@register
class yarn_paper(Scaling):
    """YaRN as in the paper: `by_parts`, and queries and keys both times 0.1 ln s + 1.

    Fields:
      factor: s, new length / trained length, >= 1.
      original_length: L, tokens in training, > 1.
      alpha: pairs with fewer turns in L are interpolated, < beta.
      beta: pairs with more are kept, at most L / 2 pi (`rescaled_beta`).
    """

    paper = 'Peng et al. 2023, arXiv:2309.00071, sections 3.2 and 3.4'

    factor: float
    original_length: float
    alpha: float = 1.0
    beta: float = BETA

    def check(self):
        check_turns(self, 'alpha', 'beta')

    def frequencies(self, theta, dim, length_B):
        freq_F = inv_freq(theta, dim)
        kept_F = kept_by_turns(freq_F, self.original_length, self.alpha, self.beta)
        return blended(freq_F, self.factor, kept_F), temperature(self.factor)


@register
class yarn(Scaling):
    """YaRN as in the released code, transformers and vLLM: a ramp over dims, not over turns.

        attention_factor = attn_factor (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1)

    Ends of the ramp are computed in float32 here, in float64 there: an end within a rounding of a
    whole number may be rounded to the other side of it.

    Fields:
      factor: s, new length / trained length, >= 1.
      original_length: L, tokens in training, > 1.
      beta_fast: pairs with more turns in L are kept.
      beta_slow: pairs with fewer are interpolated, < beta_fast.
      truncate: whether the ends of the ramp are rounded outwards to whole pairs; not in gpt-oss.
      mscale: as DeepSeek's config; only together with mscale_all_dim does transformers read it.
      mscale_all_dim: as DeepSeek's config, 0 for none. Where it equals mscale the factor is 1, and
        DeepSeek's model multiplies all scores by its square instead (`sharpen`).
      attn_factor: multiplies the attention factor, as the released code's field of that name. What
        transformers calls attention_factor replaces it: here that is mscale=0 and attn_factor.
    """

    paper = 'Peng et al. 2023, arXiv:2309.00071 (jquesnelle/yarn; transformers)'

    factor: float
    original_length: float
    beta_fast: float = BETA
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    attn_factor: float = 1.0

    def check(self):
        require_factor(self)
        require_original_length(self)
        check_ramp(self, 'beta_slow', 'beta_fast')

    def frequencies(self, theta, dim, length_B):
        kept_F = kept_by_dims(theta, dim, self.original_length, self.beta_fast, self.beta_slow,
                              self.truncate)  # fmt: skip
        attention = temperature(self.factor, self.mscale)
        attention = attention / temperature(self.factor, self.mscale_all_dim)
        return blended(inv_freq(theta, dim), self.factor, kept_F), self.attn_factor * attention


@register
class by_parts_v1(Scaling):
    """NTK-by-parts as first released, before the paper: from interpolated over NTK-aware to kept.

        linear -> ntk, between the pairs of 0.75 and 1.25 turns; -> unscaled, between those of 2 and
        16 turns; both ramps over dims, as in `yarn`

    Fields:
      factor: s, new length / trained length, >= 1.
      original_length: L, tokens in training, > 1.
      ntk_fast: pairs with more turns in L are NTK-aware rather than interpolated.
      ntk_slow: pairs with fewer are interpolated, < ntk_fast.
      beta_fast: pairs with more are kept.
      beta_slow: pairs with fewer are as the first ramp says, < beta_fast.
    """

    paper = 'bloc97 2023 (jquesnelle/yarn, LlamaPartNTKScaledRotaryEmbedding)'

    factor: float
    original_length: float
    ntk_fast: float = 1.25
    ntk_slow: float = 0.75
    beta_fast: float = 16.0
    beta_slow: float = 2.0

    def check(self):
        require_factor(self)
        require_original_length(self)
        check_ramp(self, 'ntk_slow', 'ntk_fast')
        check_ramp(self, 'beta_slow', 'beta_fast')

    def check_fit(self, dim):
        check_base_fits(self, dim)

    def frequencies(self, theta, dim, length_B):
        def kept(fast, slow):
            return kept_by_dims(theta, dim, self.original_length, fast, slow, truncate=True)

        base_F, ntk_F = inv_freq(theta, dim), inv_freq(ntk_base(theta, dim, self.factor), dim)
        linear_F = base_F / self.factor
        slowed_F = linear_F + (ntk_F - linear_F) * kept(self.ntk_fast, self.ntk_slow)
        return slowed_F + (base_F - slowed_F) * kept(self.beta_fast, self.beta_slow), 1.0
