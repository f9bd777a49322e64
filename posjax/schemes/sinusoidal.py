"""Fixed sinusoids added to the embeddings."""

from typing import Literal

import jax.numpy as jnp
import numpy as np

from posjax.scheme import Scheme, scheme
from posjax.schemes.rope import angles, inv_freq


def table(pos, width: int, theta=1e4, layout: str = 'interleaved'):
    """Sinusoids of positions of any shape, (..., width) in float32.

    Args:
      pos: position numbers.
      width: number of columns, odd ones included.
      theta: base of the geometric series of wavelengths.
      layout: where sines and cosines stand and how frequencies are spaced, as the fields of
        `sinusoidal` say. An odd width ends on the last sine ('interleaved'), has one cosine fewer
        than sines ('concatenated'), or ends on a column of zeros ('tensor2tensor').
    """
    if layout == 'tensor2tensor':
        pairs = width // 2
        # A single pair has frequency 1: there is nothing to spread it over.
        exponent = np.arange(pairs) / max(pairs - 1, 1)
        angle = angles(pos, jnp.power(jnp.float32(theta), -jnp.asarray(exponent, jnp.float32)))
        rest = jnp.zeros((*pos.shape, width - 2 * pairs), jnp.float32)
        return jnp.concatenate([jnp.sin(angle), jnp.cos(angle), rest], axis=-1)
    angle = angles(pos, inv_freq(theta, width))
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    if layout == 'concatenated':
        return jnp.concatenate([sin, cos], axis=-1)[..., :width]
    return jnp.stack([sin, cos], axis=-1).reshape(*pos.shape, -1)[..., :width]


@scheme
class sinusoidal(Scheme):
    """Fixed sinusoids of the position, added to the token embeddings.

        x[t, 2k] += sin(t theta^(-2k/D)),    x[t, 2k+1] += cos(t theta^(-2k/D))

    Sines and cosines interleave, as in the paper's formula; embeddings are not scaled by sqrt(D).

    Fields:
      theta: base of the geometric series of wavelengths, > 0.
      layout: 'interleaved' is the formula above. 'concatenated' has the same columns with all
        sines first, then all cosines (x-transformers). 'tensor2tensor' does so too, with the
        authors' code's frequencies theta^(-k/(n-1)) for k < n = D/2, whose slowest is 1/theta
        itself (also MaxText). The first two are one function up to a fixed order of the
        columns; the third has other frequencies.

    Past the training length every value is defined but its slow columns were never seen.
    """

    paper = 'Vaswani et al. 2017, arXiv:1706.03762, section 3.5'
    beyond = 'defined, unseen values'

    theta: float = 1e4
    layout: Literal['interleaved', 'concatenated', 'tensor2tensor'] = 'interleaved'

    def check(self):
        self.require('theta', self.theta > 0, 'positive')

    def embed(self, params, x_BTD, ctx):
        sines_BTD = table(ctx.q_pos_BQ, x_BTD.shape[-1], self.theta, self.layout)
        return x_BTD + sines_BTD.astype(x_BTD.dtype)
