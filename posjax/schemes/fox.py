"""The Forgetting Transformer: every token passed on the way back costs what its gate says.

Shape suffixes beyond those of scheme.py: G heads whose gates are computed, L layers.
"""

import functools

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, scheme


# One program, not log2(S) levels of small ones, where the caller is not compiled.
@functools.partial(jax.jit, static_argnames='axis')
def precise_cumsum(x, axis: int = -1):
    """Cumulative sums as (high, low), arrays like `x`, whose exact sum has about twice float32.

    A difference of two sums, `(high[i] - high[j]) + (low[i] - low[j])`, is then right to float32
    rounding of the difference: plain sums near -70,000, where 100,000 tokens lead, are 1/128 apart.
    """

    def add(left, right):
        # Knuth's two-sum: `lost` is exactly what rounding took from `high`.
        high = left[0] + right[0]
        of_right = high - left[0]
        lost = (left[0] - (high - of_right)) + (right[0] - of_right)
        return high, left[1] + right[1] + lost

    return jax.lax.associative_scan(add, (x, jnp.zeros_like(x)), axis=axis)


@scheme
class fox(Scheme):
    """Forget gates (FoX): a key fades by the gates of all tokens after it, up to the query.

        s_ij = q_i . k_j / sqrt(K) + sum_{l=j+1..i} log f_l,    f_l = sigmoid(w . k_l + b)

    with one gate per token, head and layer, w reading the keys of all heads. The published gate is
    linear in the layer's input x, which is not at hand here; k is linear in x, and where its matrix
    is square and invertible (as in this model, and almost surely) gates linear in k are the same
    class of functions. Other initial values and another path for gradients are what differs. As in
    the authors' code the sum is not divided by sqrt(K), b starts at 0 and w at N(0, 0.02^2).
    Position numbers play no part: tokens count in their order, padding does not. Keys after the
    query, where they can be seen at all, get 0.

    Past the training length far keys go on fading.
    """

    paper = 'Lin et al. 2025, arXiv:2503.02130'
    relative = True
    beyond = 'defined; far tokens fade, as gates say'

    def init(self, key, dims):
        shape = (dims.layers, dims.heads, dims.head_dim, dims.heads)
        return {
            'w': 0.02 * jax.random.normal(key, shape),
            'b': jnp.zeros((dims.layers, dims.heads)),
        }

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        w_HKG, b_1G1 = params['w'][ctx.layer], params['b'][ctx.layer][None, :, None]
        gate_BGS = jnp.einsum('BSHK,HKG->BGS', k_BSHK.astype(jnp.float32), w_HKG) + b_1G1
        log_f_BGS = jax.nn.log_sigmoid(gate_BGS)
        if ctx.valid_BS is not None:
            log_f_BGS = jnp.where(ctx.valid_BS[:, None, :], log_f_BGS, 0.0)
        sums = precise_cumsum(log_f_BGS)
        # A query's own sum is that of its token among the keys.
        own_Q = ctx.q_index_Q - ctx.k_index_S[0]
        high, low = (
            jnp.take(c_BGS, own_Q, axis=2)[:, :, :, None] - c_BGS[:, :, None, :] for c_BGS in sums
        )
        before_11QS = (ctx.k_index_S[None, :] <= ctx.q_index_Q[:, None])[None, None]
        return jnp.where(before_11QS, high + low, 0.0)
