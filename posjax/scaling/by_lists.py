"""Scalings with a searched factor for every pair."""

import jax.numpy as jnp

from posjax.scaling.scaling import (
    Scaling,
    inv_freq,
    require_factor,
    require_original_length,
)
from posjax.spec import register


@register
class longrope(Scaling):
    """LongRoPE: every pair slowed by a factor of its own, from one list or another by length.

        inv_freq_k = theta^(-2k/d) / factors_k,    short_factors up to L tokens, long_factors beyond

        attention_factor = attn_factor sqrt(1 + ln(factor) / ln(L)),    at any length

    The lists come from a search on one model. A text that grows past L changes all angles at once:
    a cache must hold keys unturned, as posjax's does. The paper's unscaled first tokens are not
    part of the published models, nor of this.

    Fields:
      short_factors: of each pair up to original_length tokens.
      long_factors: of each pair beyond.
      original_length: L, tokens in training, > 1.
      factor: s, new length / trained length, >= 1; for the attention alone.
      attn_factor: multiplies the attention factor. What transformers calls attention_factor
        replaces it: here that is factor=1 and attn_factor.
    """

    paper = 'Ding et al. 2024, arXiv:2402.13753 (Phi-3; transformers)'
    sees_length = True

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_length: float
    factor: float = 1.0
    attn_factor: float = 1.0

    def check(self):
        require_factor(self)
        require_original_length(self)
        for name in ('short_factors', 'long_factors'):
            self.require(name, all(f > 0 for f in getattr(self, name)), 'all positive')

    def check_fit(self, dim):
        for name in ('short_factors', 'long_factors'):
            count = len(getattr(self, name))
            if count != dim // 2:
                raise ValueError(
                    f'scaling longrope: {name} has {count} numbers where {dim} dims turn; give '
                    f'{dim // 2}, one a pair'
                )

    def frequencies(self, theta, dim, length_B):
        short_1F, long_1F = (
            jnp.stack([jnp.float32(f) for f in factors])[None]
            for factors in (self.short_factors, self.long_factors)
        )
        is_long_B1 = length_B.astype(jnp.float32)[:, None] > self.original_length
        factors_BF = jnp.where(is_long_B1, long_1F, short_1F)
        stretch = jnp.log(jnp.float32(self.factor)) / jnp.log(jnp.float32(self.original_length))
        return inv_freq(theta, dim)[None] / factors_BF, self.attn_factor * jnp.sqrt(1 + stretch)
