"""Kernelised relative biases: logarithmic and power."""

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, distance, scheme

# The authors' code clips its parameters from below, here only at the start.
_LEAST = 1e-2


def log_kernel(distance, r1, r2):
    """-r1 log(1 + r2 |distance|), all three of shapes that broadcast; r1, r2 > 0."""
    return -r1 * jnp.log1p(r2 * jnp.abs(distance))


def power_kernel(distance, r1, r2):
    """-r1 |distance|^r2, all three of shapes that broadcast; r1 > 0, 0 < r2 <= 2.

    Gradients are finite at distance 0, where the kernel is 0 whatever r1 and r2.
    """
    far = jnp.abs(distance)
    apart = far > 0
    # Replaced on the way in as well: the gradient of 0^r would be 0 log 0 behind the outer `where`.
    power = jnp.where(apart, far, 1.0) ** r2
    return -r1 * jnp.where(apart, power, 0.0)


def _uniform(key, heads, most):
    """One number per head from U(0, most), clipped as the authors clip."""
    return jnp.maximum(jax.random.uniform(key, (heads,), maxval=most), _LEAST)


def _softplus_inverse(x):
    return jnp.log(jnp.expm1(x))


def _per_head(x_H):
    return x_H[None, :, None, None]


@scheme
class kerple_log(Scheme):
    """KERPLE's logarithmic kernel: a learned bias that falls ever more slowly with distance.

        s_ij = q_i . k_j / sqrt(K) - r1_h log(1 + r2_h |i - j|)

    r1 and r2 are learned per head and shared across layers, at first U(0, 2) and U(0, 1) clipped to
    at least 0.01, as in the authors' code. That code keeps them positive by clipping them before
    every step; here they are softplus of what is learned, which needs no step outside the gradient.

    Fields: none.

    Past the training length the bias goes on falling as a logarithm.
    """

    paper = 'Chi et al. 2022, arXiv:2205.09921'
    relative = True
    pairwise = True
    beyond = 'defined; far tokens fade slowly'

    def init(self, key, dims):
        key_1, key_2 = jax.random.split(key)
        return {
            'raw_r1': _softplus_inverse(_uniform(key_1, dims.heads, 2.0)),
            'raw_r2': _softplus_inverse(_uniform(key_2, dims.heads, 1.0)),
        }

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        r1_H, r2_H = jax.nn.softplus(params['raw_r1']), jax.nn.softplus(params['raw_r2'])
        return log_kernel(distance(ctx), _per_head(r1_H), _per_head(r2_H))


@scheme
class kerple_power(Scheme):
    """KERPLE's power kernel: ALiBi with a learned exponent.

        s_ij = q_i . k_j / sqrt(K) - r1_h |i - j|^r2_h,    0 < r2 < 2

    r1 and r2 are learned per head and shared across layers, at first U(0, 1) and U(0, 2) clipped to
    at least 0.01, as in the authors' code (its `kerple_power_ap_`, no weight kernel). That code
    keeps them in range by clipping them before every step; here r1 is softplus, and r2 twice the
    sigmoid, of what is learned.

    Fields: none.

    Past the training length the bias goes on falling as that power.
    """

    paper = 'Chi et al. 2022, arXiv:2205.09921'
    relative = True
    pairwise = True
    beyond = 'defined; far tokens fade'

    def init(self, key, dims):
        key_1, key_2 = jax.random.split(key)
        return {
            'raw_r1': _softplus_inverse(_uniform(key_1, dims.heads, 1.0)),
            'raw_r2': jax.scipy.special.logit(_uniform(key_2, dims.heads, 2.0) / 2),
        }

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        r1_H, r2_H = jax.nn.softplus(params['raw_r1']), 2 * jax.nn.sigmoid(params['raw_r2'])
        return power_kernel(distance(ctx), _per_head(r1_H), _per_head(r2_H))
