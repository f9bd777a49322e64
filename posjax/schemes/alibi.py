"""Attention with linear biases."""

import math

import jax.numpy as jnp

from posjax.scheme import Scheme, distance, scheme


def paper_slopes(heads: int) -> tuple[float, ...]:
    """The authors' slopes: 2^(-8 (h+1)/n) for n = 2^m heads.

    For other numbers of heads, those of the next lower power of two, then every other slope of
    twice that power (fairseq, transformers). MPT's rule differs there.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    doubled = [2.0 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return tuple(slopes + doubled[: heads - power])


@scheme
class alibi(Scheme):
    """Attention with linear biases: the further back, the lower the score.

        s_ij = q_i . k_j / sqrt(K) - m_h |i - j|

    The bias is not scaled by 1/sqrt(K). Without a causal mask it is symmetric.

    Fields:
      slopes: m_h, one per head, >= 0; () takes the paper's for the model's number of heads.

    Past the training length scores go on falling, and far tokens fade: a soft window.
    """

    paper = 'Press et al. 2021, arXiv:2108.12409'
    relative = True
    beyond = 'defined; far tokens fade'

    slopes: tuple[float, ...] = ()

    def check(self):
        if not all(slope >= 0 for slope in self.slopes):
            raise ValueError(
                f'scheme alibi: slopes={self.slopes!r} should all be at least 0 (they are '
                'subtracted: a positive slope favours near tokens)'
            )

    def check_fit(self, dims, length):
        if len(self.slopes) not in (0, dims.heads):
            raise ValueError(
                f'scheme {self.text} has {len(self.slopes)} slopes for {dims.heads} heads; give '
                f'{dims.heads}, or none for the paper\'s'
            )  # fmt: skip

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        slopes = self.slopes or paper_slopes(q_BQHK.shape[2])
        slopes_H = jnp.stack([jnp.float32(slope) for slope in slopes])
        return -slopes_H[None, :, None, None] * jnp.abs(distance(ctx))
