"""FIRE: a small network's bias on interpolated distances.

Shape suffixes beyond the usual: L layers (1 where they share), M hidden units.
"""

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, distance, scheme


def interpolated(distance, q_pos, c, threshold):
    """psi(|distance|) / psi(max(threshold, q_pos)) with psi(x) = log(|c| x + 1), in float32.

    In [0, 1] for keys at positions from 0 to the query's; 1 for the first key, once the query is
    past the threshold.

    Args:
      distance: query position minus key position.
      q_pos: the query's position, of a shape that broadcasts with `distance`.
      c: how quickly psi bends; its sign does not matter.
      threshold: up to this position, queries share one normaliser; > 0.
    """
    near = jnp.log1p(jnp.abs(c) * jnp.abs(distance))
    # The larger of the two: with the smaller, later queries would leave [0, 1].
    whole = jnp.log1p(jnp.abs(c) * jnp.maximum(threshold, q_pos))
    # c = 0 would make 0 / 0. The authors add their 1e-6, which shows where c is small; a floor
    # leaves the formula as it is.
    return near / jnp.maximum(whole, 1e-6)


@scheme
class fire(Scheme):
    """A small network reads the distance as a fraction of the query's position (FIRE).

        s_ij = q_i . k_j / sqrt(K) + MLP(psi(|i - j|) / psi(max(L, i)))_h,    psi(x) = log(c x + 1)
        MLP(x) = relu(x w + b) W

    c, the threshold L and the MLP are learned, as in the listing of the paper's appendix: positions
    count from 0, |c| is used, L is |m| times `threshold` with m learned and 1 at first, c is 0.1 at
    first, weights are U(+-1/sqrt(fan_in)). Its bias of the output layer is left out: softmax
    cancels what is added to a whole row. Without a causal mask it is symmetric in i - j.

    Fields:
      hidden: units of the one hidden layer, >= 1.
      threshold: L at first, a position, > 0: queries before it share one normaliser. The paper's
        512 suits training lengths above it; choose less for shorter ones.
      shared: all layers use one c, L and MLP (the paper's FIRE-S); False gives each its own.

    Past the training length the network's input stays in [0, 1]: distances are interpolated.
    """

    paper = 'Li et al. 2023, arXiv:2310.04418'
    pairwise = True
    beyond = 'distances interpolated'

    hidden: int = 32
    threshold: float = 512.0
    shared: bool = False

    def check(self):
        self.require('hidden', self.hidden >= 1, 'at least 1')
        self.require(
            'threshold', self.threshold > 0, 'positive (it is a position that normalises distances)'
        )

    def init(self, key, dims):
        key_in, key_bias, key_out = jax.random.split(key, 3)
        layers = 1 if self.shared else dims.layers

        def uniform(key, shape, bound):
            return jax.random.uniform(key, (layers, *shape), minval=-bound, maxval=bound)

        return {
            'c': jnp.full((layers,), 0.1, jnp.float32),
            'threshold_factor': jnp.ones((layers,), jnp.float32),
            'w_in': uniform(key_in, (self.hidden,), 1.0),
            'b_in': uniform(key_bias, (self.hidden,), 1.0),
            'w_out': uniform(key_out, (self.hidden, dims.heads), self.hidden**-0.5),
        }

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        layer = 0 if self.shared else ctx.layer
        threshold_L = jnp.abs(params['threshold_factor']) * jnp.float32(self.threshold)
        fraction_BQS = interpolated(
            distance(ctx)[:, 0],
            ctx.q_pos_BQ.astype(jnp.float32)[:, :, None],
            params['c'][layer],
            threshold_L[layer],
        )
        w_M, b_M = params['w_in'][layer], params['b_in'][layer]
        hidden_BQSM = jax.nn.relu(
            fraction_BQS[..., None] * w_M[None, None, None] + b_M[None, None, None]
        )
        return jnp.einsum('BQSM,MH->BHQS', hidden_BQSM, params['w_out'][layer])
