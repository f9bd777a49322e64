"""Rotations that decay with distance."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from posjax.scheme import Scheme, distance, operands, scheme
from posjax.schemes.rope import check_pairs, inv_freq, rotate

# Keys ahead of their query, which the causal mask hides, would grow without bound. e^40 is finite,
# also as a gradient, and is reached only some 16,000 tokens ahead.
_CEILING = 40.0


def log_decay(dim: int, scale_base, gamma):
    """Log of each pair's factor per position of distance, float32 (dim/2,): ln(zeta_k) / B.

    zeta_k = (2k/dim + gamma) / (1 + gamma): pair 0, the fastest, decays most.
    """
    share_F = jnp.asarray(np.arange(0, dim, 2) / dim, jnp.float32)
    return (jnp.log(share_F + gamma) - jnp.log1p(jnp.float32(gamma))) / scale_base


def decayed_scores(q_BQHK, k_BSHK, distance_B1QS, log_decay_F):
    """sum_k exp(distance x log_decay_k) (q . k over pair k), (B, H, Q, S) in float32.

    Factors of the distance cannot overflow. The product of a query's zeta^(i/B) and a key's
    zeta^(-j/B) is the same number, but each alone leaves float32 some 36,000 tokens from wherever
    positions are counted. The price is one product of two columns a pair instead of one of K.

    Args:
      q_BQHK, k_BSHK: queries and keys, turned, in pairs (2k, 2k+1).
      distance_B1QS: query position minus key position (the leading dimension may be 1).
      log_decay_F: from `log_decay`, K/2 of them.
    """

    def pairs(x_BTHK):  # (F, B, T, H, 2)
        return jnp.moveaxis(x_BTHK.reshape(*x_BTHK.shape[:-1], -1, 2), -2, 0)

    # One pair at a time, and again in the backward pass: memory of one score matrix, not of F.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def add(s_BHQS, pair):
        q_BQHP, k_BSHP, decay = pair
        s = jnp.einsum('BQHP,BSHP->BHQS', q_BQHP, k_BSHP, preferred_element_type=jnp.float32)
        return s_BHQS + s * jnp.exp(jnp.minimum(distance_B1QS * decay, _CEILING)), None

    batch, queries, heads, _ = q_BQHK.shape
    zeros_BHQS = jnp.zeros((batch, heads, queries, k_BSHK.shape[1]), jnp.float32)
    return jax.lax.scan(add, zeros_BHQS, (pairs(q_BQHK), pairs(k_BSHK), log_decay_F))[0]


@scheme
class xpos(Scheme):
    """RoPE whose pairs decay with distance, the fast ones most (extrapolatable position embedding).

        s_ij = sum_k zeta_k^((i-j)/B) (R_i q . R_j k)_k / sqrt(K),    zeta_k = (2k/K + g) / (1 + g)

    where R turns pair k = (2k, 2k+1) by t theta^(-2k/K). For causal models: keys ahead of their
    query grow instead. The paper and torchscale multiply q by zeta^(i/B) and k by zeta^(-j/B)
    around a centre; here the factor comes from the distance, which is the same score wherever the
    centre lies and at any position. The paper's blockwise causal attention is not part of this.

    Fields:
      theta: base of the geometric series of wavelengths, > 0.
      scale_base: B, tokens over which pair k loses the factor zeta_k, > 0.
      gamma: g, > 0; the larger, the weaker all decay.

    Past the training length far tokens fade, and fast pairs, whose angles are hardest to read
    there, before slow ones.
    """

    paper = 'Sun et al. 2022, arXiv:2212.10554'
    relative = True
    beyond = 'defined; far tokens fade'

    theta: float = 1e4
    scale_base: float = 512.0
    gamma: float = 0.4

    def check(self):
        for name in ('theta', 'scale_base', 'gamma'):
            self.require(name, getattr(self, name) > 0, 'positive')

    def check_fit(self, dims, numbers):
        check_pairs(self, dims)

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        freq_F = inv_freq(self.theta, q_BQHK.shape[-1])
        return rotate(q_BQHK, ctx.q_pos_BQ, freq_F), rotate(k_BSHK, ctx.k_pos_BS, freq_F)

    def scores(self, params, q_BQHK, k_BSHK, ctx):
        q_BQHK, k_BSHK = operands(*self.qk(params, q_BQHK, k_BSHK, ctx), ctx)
        decay_F = log_decay(q_BQHK.shape[-1], self.scale_base, self.gamma)
        return decayed_scores(q_BQHK, k_BSHK, distance(ctx), decay_F) * ctx.scale
