"""Contextual position encoding: a key's position is how much the query counted since.

Shape suffixes beyond those of scheme.py: L layers, P positions that have an embedding.
"""

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, dot_scores, scheme


def counted(s_BHQS, q_index_Q, k_index_S, valid_BS=None):
    """How much each query counts from a key up to itself, both included: float32 (B, H, Q, S).

    Gates are sigmoids of the scores. Keys after the query, and padding (False in `valid_BS`), count
    nothing; keys come in their order.
    """
    counts_BHQS = (k_index_S[None, :] <= q_index_Q[:, None])[None, None]
    if valid_BS is not None:
        counts_BHQS = counts_BHQS & valid_BS[:, None, None, :]
    gates_BHQS = jnp.where(counts_BHQS, jax.nn.sigmoid(s_BHQS), 0.0)
    # Summed from the query backwards, never as a difference of sums from the start: the counts
    # that matter are small, and stay exact however long the sequence is.
    return jax.lax.cumsum(gates_BHQS, axis=3, reverse=True)


def interpolate(values_BHQP, place_BHQS):
    """Values at fractional places from 0 to P - 1, linear between neighbours: (B, H, Q, S)."""
    # The last place is the upper end of the last interval, so both neighbours always exist.
    below = jnp.clip(jnp.floor(place_BHQS), 0, values_BHQP.shape[-1] - 2).astype(jnp.int32)
    upper = place_BHQS - below.astype(jnp.float32)
    value_below = jnp.take_along_axis(values_BHQP, below, axis=3)
    value_above = jnp.take_along_axis(values_BHQP, below + 1, axis=3)
    return value_below * (1 - upper) + value_above * upper


@scheme
class cope_contextual(Scheme):
    """Positions that count what the query finds worth counting (CoPE; no relation to clipped RoPE).

        g_ij = sigmoid(q_i . k_j / sqrt(K)),    p_ij = min(sum_{l=j..i} g_il, max_pos - 1),
        s_ij = q_i . (k_j + e[p_ij]) / sqrt(K),    e between rows: linear interpolation

    Position numbers play no part. Each layer has its embeddings e, which its heads share and which
    start at zero. As in the authors' code (facebookresearch/RAM) all products are divided by
    sqrt(K); the listing in the paper leaves q . e undivided, which is the same function of another
    e. Padding counts nothing, nor do keys after the query, which have position 0 where they can be
    seen at all.

    Fields:
      max_pos: number of position embeddings, >= 2; counts stop at max_pos - 1.

    Past the training length counts go on up to max_pos - 1, and all farther keys share that
    position; rows that no training sequence counted up to are untrained.
    """

    paper = 'Golovneva et al. 2024, arXiv:2405.18719'
    relative = True
    beyond = 'counts up to max_pos - 1, then one position'

    max_pos: int = 64

    def check(self):
        self.require(
            'max_pos', self.max_pos >= 2, 'at least 2 (one embedding tells no positions apart)'
        )

    def init(self, key, dims):
        return {'embedding': jnp.zeros((dims.layers, self.max_pos, dims.head_dim))}

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        e_PK = params['embedding'][ctx.layer]
        by_row_BHQP = jnp.einsum('BQHK,PK->BHQP', q_BQHK.astype(jnp.float32), e_PK) * ctx.scale
        s_BHQS = dot_scores(q_BQHK, k_BSHK, ctx)
        place_BHQS = counted(s_BHQS, ctx.q_index_Q, ctx.k_index_S, ctx.valid_BS)
        return interpolate(by_row_BHQP, jnp.minimum(place_BHQS, self.max_pos - 1))
