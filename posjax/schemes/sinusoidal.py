"""Fixed sinusoids added to the embeddings."""

import jax.numpy as jnp

from posjax.scheme import Scheme, scheme
from posjax.schemes.rope import angles, inv_freq


def table(pos, width: int, theta=1e4):
    """Sinusoids of positions of any shape, (..., width) in float32: sin at even columns, cos at odd.

    An odd width ends on a sine.
    """
    angle = angles(pos, inv_freq(theta, width))
    pairs = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return pairs.reshape(*pos.shape, -1)[..., :width]


@scheme
class sinusoidal(Scheme):
    """Fixed sinusoids of the position, added to the token embeddings.

        x[t, 2k] += sin(t theta^(-2k/D)),    x[t, 2k+1] += cos(t theta^(-2k/D))

    Sines and cosines interleave, as in the paper's formula; embeddings are not scaled by sqrt(D).

    Fields:
      theta: base of the geometric series of wavelengths, > 0.

    Past the training length every value is defined but its slow columns were never seen.
    """

    paper = 'Vaswani et al. 2017, arXiv:1706.03762, section 3.5'
    beyond = 'defined, unseen values'

    theta: float = 1e4

    def check(self):
        if not self.theta > 0:
            raise ValueError(f'scheme sinusoidal: theta={self.theta!r} should be positive')

    def embed(self, params, x_BTD, ctx):
        return x_BTD + table(ctx.q_pos_BQ, x_BTD.shape[-1], self.theta).astype(x_BTD.dtype)
