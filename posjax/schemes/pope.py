"""Content as magnitude, position as phase."""

from typing import Literal

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, scheme
from posjax.schemes.rope import angles, inv_freq


def polar(x_BTHK, angle_BTHK):
    """Magnitudes softplus(x) at the given phases, in real and imaginary parts: (B, T, H, 2K).

    Products of two such vectors are sums of mu nu cos(difference of phases). Magnitudes and phases
    are float32, the result is of `x_BTHK`'s dtype.
    """
    magnitude = jax.nn.softplus(x_BTHK.astype(jnp.float32))
    parts = [magnitude * jnp.cos(angle_BTHK), magnitude * jnp.sin(angle_BTHK)]
    return jnp.concatenate(parts, axis=-1).astype(x_BTHK.dtype)


@scheme
class pope(Scheme):
    """Polar coordinate position embedding: content sets magnitudes, position alone sets phases.

        s_ij = sum_c mu_c(q_i) mu_c(k_j) cos((j - i) w_c + delta_hc) / sqrt(K)
        mu_c(x) = ln(1 + exp(x_c)),    w_c = theta^(-c/K),    c = 0 .. K-1

    Every coordinate has a frequency of its own, twice RoPE's number, and q and k become 2K long.
    The learned phases delta (one per layer, head and coordinate) are held within [-2 pi, 0], as
    the paper says; one that training pushes out stays at that end. The score is x-transformers'
    too, coordinates in another order.

    Fields:
      theta: base of the geometric series of wavelengths, > 0.
      phases: how delta starts. 'zero' is the paper's choice for length generalisation; 'uniform'
        is U(-2 pi, 0), slightly better within the training length.

    Past the training length phases go on; slow coordinates meet new ones.
    """

    paper = 'Gopalakrishnan et al. 2025, arXiv:2509.10534'
    relative = True
    beyond = 'defined, unseen phases'

    theta: float = 1e4
    phases: Literal['zero', 'uniform'] = 'zero'

    def check(self):
        self.require('theta', self.theta > 0, 'positive')

    def init(self, key, dims):
        shape = (dims.layers, dims.heads, dims.head_dim)
        if self.phases == 'zero':
            return {'phase': jnp.zeros(shape)}
        return {'phase': jax.random.uniform(key, shape, minval=-2 * jnp.pi, maxval=0.0)}

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        # Frequencies theta^(-c/K) are those of the pairs of a head twice as wide.
        freq_K = inv_freq(self.theta, 2 * q_BQHK.shape[-1])
        phase_HK = jnp.clip(params['phase'][ctx.layer], -2 * jnp.pi, 0.0)
        q_angle_BQ1K = angles(ctx.q_pos_BQ, freq_K)[:, :, None]
        k_angle_BSHK = angles(ctx.k_pos_BS, freq_K)[:, :, None] + phase_HK[None, None]
        return polar(q_BQHK, q_angle_BQ1K), polar(k_BSHK, k_angle_BSHK)
