"""Sandwich: the products of sinusoids as a bias."""

import jax.numpy as jnp

from posjax.scheme import Scheme, distance, scheme
from posjax.schemes.rope import angles, inv_freq


@scheme
class sandwich(Scheme):
    """The inner product of sinusoidal embeddings as a fixed bias (Sandwich).

        s_ij = q_i . k_j / sqrt(K) + H / (8 h) sum_k cos((i - j) theta^(-2k/dim)),
        h = 1 ... H,    k = 0 ... dim/2 - 1

    which is p_i . p_j of sinusoidal embeddings of `dim` columns, compressed as ALiBi's exponents.
    Frequencies start at 1 (k = 0), as in the listing of the paper's appendix; its equation counts
    from k = 1. NeMo's code has no cosine and so is another, linear, bias.

    Fields:
      dim: columns of the embeddings, even, >= 2; the paper's d-bar, not tied to the model's width.
      theta: base of the geometric series of wavelengths, > 0.

    Past the training length the bias goes on falling, with ripples, about as a logarithm up to
    distances near theta.
    """

    paper = 'Chi et al. 2022, arXiv:2212.10356'
    relative = True
    pairwise = True
    beyond = 'defined; far tokens fade slowly'

    dim: int = 128
    theta: float = 1e4

    def check(self):
        if self.dim < 2 or self.dim % 2:
            raise ValueError(
                f'scheme sandwich: dim={self.dim} should be even and at least 2 (sines and cosines '
                'come in pairs)'
            )
        self.require('theta', self.theta > 0, 'positive')

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        heads = q_BQHK.shape[2]
        # Of the distance, not p_i . p_j: angles of far positions would lose their low bits.
        cosines_BHQS = jnp.cos(angles(distance(ctx), inv_freq(self.theta, self.dim))).sum(axis=-1)
        compression_H = jnp.arange(1, heads + 1, dtype=jnp.float32) * (8 / heads)
        return cosines_BHQS / compression_H[None, :, None, None]
