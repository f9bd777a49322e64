"""Transformer-XL's relative attention: sinusoids of the distance behind a learned projection.

Shape suffixes beyond those of scheme.py: F frequencies, L layers, R columns of the sinusoid (2F).
"""

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, scheme
from posjax.schemes.rope import angles, inv_freq


def distance_scores(a_BQHR, q_pos_BQ, k_pos_BS, inv_freq_F):
    """a_i . R(i - j) for every query and key, float32 (B, H, Q, S), without a (Q, S, R) array.

    R(t) = (sin t w_1, ..., sin t w_F, cos t w_1, ..., cos t w_F). The identities of angle addition
    turn a sinusoid of a distance into a product of sinusoids of the two positions:

        a sin(u - w) + b cos(u - w) = (a sin u + b cos u) cos w + (b sin u - a cos u) sin w

    Args:
      a_BQHR: one vector per query and head, float32: the F sines' weights, then the F cosines'.
      q_pos_BQ, k_pos_BS: position numbers (the leading dimensions may be 1).
      inv_freq_F: radians per position.
    """
    # Only differences matter. From the first query at hand, the angles of what is near it are
    # small, and float32 holds them as well at position 100,000 as at 0.
    start_B1 = q_pos_BQ[:, :1]
    u_BQ1F = angles(q_pos_BQ - start_B1, inv_freq_F)[:, :, None, :]
    w_BSF = angles(k_pos_BS - start_B1, inv_freq_F)
    a, b = jnp.split(a_BQHR, 2, axis=-1)
    sin, cos = jnp.sin(u_BQ1F), jnp.cos(u_BQ1F)
    turned_BQHR = jnp.concatenate([a * sin + b * cos, b * sin - a * cos], axis=-1)
    waves_BSR = jnp.concatenate([jnp.cos(w_BSF), jnp.sin(w_BSF)], axis=-1)
    return jnp.einsum('BQHR,BSR->BHQS', turned_BQHR, waves_BSR)


@scheme
class transformer_xl(Scheme):
    """Scores from a sinusoid of the distance behind a learned projection.

        s_ij = ((q_i + u) . k_j + (q_i + v) . W_R R(i - j)) / sqrt(K),
        R(t) = (sin t w_f ..., cos t w_f ...),    w_f = theta^(-2f/D)

    u and v are vectors per head that all layers share, W_R is a matrix per layer, as in the paper
    (the authors' code calls separate u, v per layer `untie_r`). Sines come first, then cosines, as
    in that code; another order is another order of the columns of W_R. R has the model's width, and
    one more column where that is odd. The paper's recurrence over segments is no part of this.

    Fields:
      theta: base of the geometric series of wavelengths, > 0.

    Past the training length sinusoids of the new distances are defined but were never seen.
    """

    paper = 'Dai et al. 2019, arXiv:1901.02860'
    relative = True
    pairwise = True
    beyond = 'defined, unseen values'

    theta: float = 1e4

    def check(self):
        self.require('theta', self.theta > 0, 'positive')

    def init(self, key, dims):
        u_key, v_key, w_key = jax.random.split(key, 3)
        head = (dims.heads, dims.head_dim)
        # W_R as the model's other projections; u and v as in the authors' code.
        bound = dims.width**-0.5
        w_r_shape = (dims.layers, 2 * -(-dims.width // 2), *head)
        return {
            'u': 0.02 * jax.random.normal(u_key, head),
            'v': 0.02 * jax.random.normal(v_key, head),
            'w_r': jax.random.uniform(w_key, w_r_shape, minval=-bound, maxval=bound),
        }

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        u_HK, v_11HK, w_r_RHK = params['u'], params['v'][None, None], params['w_r'][ctx.layer]
        content_BHS = jnp.einsum('HK,BSHK->BHS', u_HK, k_BSHK.astype(jnp.float32))
        a_BQHR = jnp.einsum('BQHK,RHK->BQHR', q_BQHK.astype(jnp.float32) + v_11HK, w_r_RHK)
        freq_F = inv_freq(self.theta, u_HK.size)
        position_BHQS = distance_scores(a_BQHR, ctx.q_pos_BQ, ctx.k_pos_BS, freq_F)
        return (content_BHS[:, :, None, :] + position_BHQS) * ctx.scale
