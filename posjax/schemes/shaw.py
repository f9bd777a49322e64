"""Learned vectors for the clipped distance, added to keys and values.

Shape suffixes beyond those of scheme.py: L layers, R rows of a table, one per clipped distance.
"""

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, distance, scheme


def rows(ctx, max_distance: int):
    """Row of a table for each query and key, int32 (B|1, 1, Q, S): clip(j - i, -k, k) + k.

    Row 0 holds every key at least k before the query, row k the query's own place, row 2k every key
    at least k after it. Fractional distances take the nearest row.
    """
    # Clip before the cast: a distance need not fit an integer.
    ahead = jnp.clip(jnp.round(-distance(ctx)), -max_distance, max_distance)
    return ahead.astype(jnp.int32) + max_distance


def total(weights_BHQS, row_B1QS, count: int):
    """Attention weights summed over the keys that share a row, (B, H, Q, count)."""
    batch, heads, queries, _ = weights_BHQS.shape
    b, h, q, _ = jnp.ogrid[:batch, :heads, :queries, :1]
    zeros = jnp.zeros((batch, heads, queries, count), weights_BHQS.dtype)
    return zeros.at[b, h, q, row_B1QS].add(weights_BHQS)


@scheme
class shaw(Scheme):
    """Learned vectors for the clipped distance, added to keys and values.

        s_ij = q_i . (k_j + a^K_r) / sqrt(K),    o_i = sum_j p_ij (v_j + a^V_r),
        r = clip(j - i, -max_distance, max_distance)

    Every layer has its tables, which its heads share, as in tensor2tensor; the paper's base model
    has them per head as well. Under a causal mask the rows of later keys (r > 0) are never read. No
    (Q, S, K) array is made: queries meet the 2 max_distance + 1 rows first, and weights are summed
    by row first.

    Fields:
      max_distance: k of the paper, in tokens, >= 1; all keys at least that far share a vector.
      values: whether values get vectors too; False leaves a^V out.

    Past the training length nothing is new: all far keys share the outermost vector.
    """

    paper = 'Shaw et al. 2018, arXiv:1803.02155'
    relative = True
    pairwise = True
    beyond = 'defined; far tokens share a vector'

    max_distance: int = 16
    values: bool = True

    def check(self):
        self.require(
            'max_distance',
            self.max_distance >= 1,
            'at least 1 (at 0 all distances share one vector: no position at all)',
        )

    def init(self, key, dims):
        # Glorot's uniform, as in tensor2tensor; the paper does not say.
        glorot = jax.nn.initializers.glorot_uniform(batch_axis=0)
        shape = (dims.layers, 2 * self.max_distance + 1, dims.head_dim)
        names = ('keys', 'values') if self.values else ('keys',)
        return {name: glorot(jax.random.fold_in(key, n), shape) for n, name in enumerate(names)}

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        table_RK = params['keys'][ctx.layer]
        by_row_BHQR = jnp.einsum('BQHK,RK->BHQR', q_BQHK.astype(jnp.float32), table_RK)
        row_B1QS = rows(ctx, self.max_distance)
        return jnp.take_along_axis(by_row_BHQR, row_B1QS, axis=3) * ctx.scale

    def gather(self, params, weights_BHQS, ctx):
        if not self.values:
            return None
        table_RK = params['values'][ctx.layer]
        weights_BHQR = total(weights_BHQS, rows(ctx, self.max_distance), table_RK.shape[0])
        return jnp.einsum('BHQR,RK->BQHK', weights_BHQR, table_RK)
