"""Scores that sharpen as the sequence grows."""

import jax.numpy as jnp

from posjax.scheme import Scheme, scheme


@scheme
class logn(Scheme):
    """Every score times log(length) / log(train_length), against dilution over longer sequences.

        q_i . k_j / sqrt(K)  ->  q_i . k_j / sqrt(K) * ln(length) / ln(train_length)

    The factor is one number for the whole sequence, 1 at the training length; biases are untouched.

    Fields:
      train_length: the length at which nothing changes, > 1.

    Past the training length the softmax stays as sharp as it was.
    """

    paper = 'Su 2021 (kexue.fm/archives/8823); Chiang & Cholak 2022, arXiv:2202.12172'
    relative = True
    sees_length = True
    beyond = 'scores sharpen'

    train_length: float

    def check(self):
        self.require(
            'train_length', self.train_length > 1, 'above 1 (the factor divides by its logarithm)'
        )

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        length_B = ctx.length_B.astype(jnp.float32)
        factor_B = jnp.log(length_B) / jnp.log(jnp.float32(self.train_length))
        scaled_BQHK = q_BQHK.astype(jnp.float32) * factor_B[:, None, None, None]
        return scaled_BQHK.astype(q_BQHK.dtype), k_BSHK
