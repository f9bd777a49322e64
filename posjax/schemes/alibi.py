"""Attention with linear biases, with fixed slopes and with learned ones."""

import math

import jax.numpy as jnp

from posjax.scheme import Scheme, distance, scheme


def geometric_slopes(heads: int, bias_max: float = 8.0) -> tuple[float, ...]:
    """2^(-bias_max (h+1) / heads) for h = 0, 1, ...: the rule in the paper's text.

    The authors' code departs from it where `heads` is no power of two; see `paper_slopes`.
    """
    return tuple(2.0 ** (-bias_max * (h + 1) / heads) for h in range(heads))


def paper_slopes(heads: int, bias_max: float = 8.0) -> tuple[float, ...]:
    """The slopes of the authors' code, one per head, largest first among the first 2^m heads.

    Geometric for 2^m heads. For other numbers, those of the next lower power of two, then every
    other slope of twice that power (fairseq, transformers). MPT interleaves the slopes of the next
    higher power of two, which gives the same slopes in the same order.

    Args:
      heads: number of heads, >= 1.
      bias_max: minus log2 of the smallest slope of 2^m heads, > 0. The paper has 8; MPT calls it
        `alibi_bias_max`.
    """
    power = 2 ** int(math.log2(heads))
    slopes, doubled = geometric_slopes(power, bias_max), geometric_slopes(2 * power, bias_max)
    return slopes + doubled[0::2][: heads - power]


def linear_bias(distance_BHQS, slopes_H):
    """-m_h |distance|: the bias of each head, (B, H, Q, S), of distances (B, 1, Q, S)."""
    return -slopes_H[None, :, None, None] * jnp.abs(distance_BHQS)


@scheme
class alibi(Scheme):
    """Attention with linear biases: the further back, the lower the score.

        s_ij = q_i . k_j / sqrt(K) - m_h |i - j|

    The bias is not scaled by 1/sqrt(K). Without a causal mask it is symmetric.

    Fields:
      slopes: m_h, one per head, >= 0; () takes the paper's for the model's number of heads, as its
        authors' code has them (`paper_slopes`; MPT's are the same).

    Past the training length scores go on falling, and far tokens fade: a soft window.
    """

    paper = 'Press et al. 2021, arXiv:2108.12409'
    relative = True
    pairwise = True
    beyond = 'defined; far tokens fade'

    slopes: tuple[float, ...] = ()

    def check(self):
        self.require(
            'slopes',
            all(slope >= 0 for slope in self.slopes),
            'at least 0 (they are subtracted: a positive slope favours near tokens)',
        )

    def check_fit(self, dims, numbers):
        if len(self.slopes) not in (0, dims.heads):
            raise ValueError(
                f'scheme {self.text} has {len(self.slopes)} slopes for {dims.heads} heads; give '
                f'{dims.heads}, or none for the paper\'s'
            )  # fmt: skip

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        return linear_bias(distance(ctx), self._slopes(q_BQHK.shape[2]))

    def columns(self, params, ctx):
        # -m (i - j), of which -m i is the query's alone.
        slopes_11H1 = self._slopes(ctx.heads)[None, None, :, None]
        return slopes_11H1, ctx.k_pos_BS.astype(jnp.float32)[:, :, None, None]

    def _slopes(self, heads):
        slopes = self.slopes or paper_slopes(heads)
        return jnp.stack([jnp.float32(slope) for slope in slopes])


@scheme
class alibi_learned(Scheme):
    """ALiBi with learned slopes: each head chooses how fast far tokens fade.

        s_ij = q_i . k_j / sqrt(K) - exp(l_h) |i - j|

    The logarithm l_h is learned, so that slopes stay positive; at first exp(l_h) are the slopes of
    `alibi`. One per head, shared across layers. The paper tried learned slopes (section 3) and
    preferred fixed ones; it does not say how it kept them positive.

    Fields: none.

    Past the training length scores go on falling, at slopes chosen on shorter sequences.
    """

    paper = 'Press et al. 2021, arXiv:2108.12409, section 3'
    relative = True
    pairwise = True
    beyond = 'defined; far tokens fade'

    def init(self, key, dims):
        return {'log_slopes': jnp.log(jnp.asarray(paper_slopes(dims.heads), jnp.float32))}

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        return linear_bias(distance(ctx), jnp.exp(params['log_slopes']))
