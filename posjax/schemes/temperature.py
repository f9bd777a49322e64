"""How sharply a query attends, as it sees more tokens: temperatures of the softmax.

    q_i . k_j / sqrt(K)  ->  factor_i q_i . k_j / sqrt(K);    biases are untouched

    factor_i = max(1, ln(i+1) / ln(train_length))              logn_position
               ln(length)                                      logn_plain
               s_h ln(i+1)                                     ssmax
               1 + 0.1 ln(1 + floor((i+1) / 8192))             llama4_temperature
               a number                                        sharpen

with i the query's position number, from 0, so that i + 1 tokens are seen under a causal mask.
`logn` (logn.py) is ln(length) / ln(train_length).

ln(1) = 0 takes all scores of the first token away. None of the papers treats it apart, nor does
this file: under a causal mask that token sees only itself, whatever its score. Without a causal
mask it attends to all tokens alike.
"""

import jax.numpy as jnp
import numpy as np

from posjax.scheme import Context, Scheme, scheme


def scale_queries(q_BQHK, factor_BQH):
    """Queries times a float32 factor (B|1, Q|1, H|1); an array like `q_BQHK`, of its dtype."""
    return (q_BQHK.astype(jnp.float32) * factor_BQH[..., None]).astype(q_BQHK.dtype)


def log_count(ctx: Context):
    """ln(i+1) of queries at positions i, float32 (B|1, Q); 0 before the sequence, too."""
    return jnp.log(jnp.maximum(ctx.q_pos_BQ + 1, 1).astype(jnp.float32))


@scheme
class logn_position(Scheme):
    """Scores times ln(tokens seen) / ln(train_length), for each query by itself.

        factor_i = max(1, ln(i+1) / ln(train_length)),    i = 0, 1, ...

    With clip, the factor of Su's ReRoPE code and the table of Qwen's, which are one function: up to
    the training length nothing changes, so that it can be put on a trained model. Without, Su's
    earlier ln(n) / ln(train_length) for the n = i+1 tokens that a causal query sees, to be trained
    with; its train_length=2.718281828459045 is ln(i+1), the causal form of `logn_plain`.

    Fields:
      train_length: the number of tokens at which the factor is 1, > 1.
      clip: never below 1.

    Past the training length the softmax stays as sharp as it was.
    """

    paper = 'Su 2023 (ReRoPE, kexue.fm/archives/9708); Bai et al. 2023 (Qwen), arXiv:2309.16609'
    beyond = 'scores sharpen'

    train_length: float
    clip: bool = True

    def check(self):
        self.require(
            'train_length', self.train_length > 1, 'above 1 (the factor divides by its logarithm)'
        )

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        factor_BQ = log_count(ctx) / jnp.log(jnp.float32(self.train_length))
        if self.clip:
            factor_BQ = jnp.maximum(factor_BQ, 1.0)
        return scale_queries(q_BQHK, factor_BQ[..., None]), k_BSHK


@scheme
class logn_plain(Scheme):
    """Every score times ln(length), without a training length.

        factor = ln(length)

    on top of 1/sqrt(K), as in the authors' code; the length is the whole sequence's. It is
    `logn(train_length=2.718281828459045)`; the form for causal models is in `logn_position`.

    Past the training length scores sharpen as in training.
    """

    paper = 'Chiang & Cholak 2022, arXiv:2202.12172'
    relative = True
    sees_length = True
    beyond = 'scores sharpen'

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        factor_B = jnp.log(jnp.maximum(ctx.length_B, 1).astype(jnp.float32))
        return scale_queries(q_BQHK, factor_B[:, None, None]), k_BSHK


@scheme
class ssmax(Scheme):
    """Scores times ln(tokens seen), at a strength that each head learns (scalable softmax).

        weights_i = softmax((s_lh ln(i+1) + b_lh) q_i . k_j / sqrt(K))

    for head h of layer l, so that exp(score) becomes (i+1)^(s score). s starts where the factor's
    mean over 1, ..., train_length tokens is 1, and b at 0: 0.168 for the paper's 1,024 tokens. The
    paper's form without s is `logn_position(train_length=2.718281828459045, clip=False)`.

    Fields:
      train_length: tokens, for the initial s only, >= 2.
      with_bias: also learn b, which the paper finds to extrapolate worse.

    Past the training length scores sharpen as each head learned to.
    """

    paper = 'Nakanishi 2025, arXiv:2501.19399'
    beyond = 'scores sharpen as learned'

    train_length: int = 1024
    with_bias: bool = False

    def check(self):
        self.require(
            'train_length',
            self.train_length >= 2,
            'at least 2 (s starts at one over the mean logarithm up to it)',
        )

    def init(self, key, dims):
        start = 1 / np.log(np.arange(1, self.train_length + 1)).mean()
        shape = (dims.layers, dims.heads)
        params = {'scale': jnp.full(shape, start, jnp.float32)}
        return params | ({'bias': jnp.zeros(shape)} if self.with_bias else {})

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        factor_BQH = params['scale'][ctx.layer][None, None] * log_count(ctx)[..., None]
        if self.with_bias:
            factor_BQH = factor_BQH + params['bias'][ctx.layer][None, None]
        return scale_queries(q_BQHK, factor_BQH), k_BSHK


@scheme
class llama4_temperature(Scheme):
    """Scores that grow by steps with the logarithm of the position, as Llama 4's.

        factor_i = 1 + attn_scale ln(1 + floor((i+1) / floor_scale)),    i = 0, 1, ...

    Named as in Meta's and transformers' code, which apply it in layers without rotations alone:
    `every(4, rope|chunks(size=8192), llama4_temperature)`.

    Fields:
      attn_scale: what multiplies the logarithm, >= 0.
      floor_scale: tokens up to the first step, and from each to the next, >= 1.

    Past the training length scores sharpen, slowly; before floor_scale tokens nothing changes.
    """

    paper = 'Meta 2025 (Llama 4, model code)'
    beyond = 'scores sharpen, by steps'

    attn_scale: float = 0.1
    floor_scale: int = 8192

    def check(self):
        self.require('attn_scale', self.attn_scale >= 0, 'at least 0')
        self.require('floor_scale', self.floor_scale >= 1, 'at least 1')

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        # Divided as integers where positions are: a rounded quotient would move a step.
        steps_BQ = jnp.maximum((ctx.q_pos_BQ + 1) // self.floor_scale, 0)
        factor_BQ = 1 + jnp.float32(self.attn_scale) * jnp.log1p(steps_BQ.astype(jnp.float32))
        return scale_queries(q_BQHK, factor_BQ[..., None]), k_BSHK


@scheme
class sharpen(Scheme):
    """Every score times one number.

        q_i . k_j / sqrt(K)  ->  factor q_i . k_j / sqrt(K)

    What a method that changes positions may ask for besides: 1 + c ln s (DroPE, at s times the
    training length), (0.1 mscale ln s + 1)^2 (YaRN and DeepSeek).

    Fields:
      factor: what multiplies the scores, > 0.

    Past the training length scores are as sharp as the factor makes them.
    """

    paper = 'Peng et al. 2023, arXiv:2309.00071, section 3.4'
    relative = True
    beyond = 'scores sharpen by a constant'

    factor: float

    def check(self):
        self.require('factor', self.factor > 0, 'positive')

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        return scale_queries(q_BQHK, jnp.full((1, 1, 1), self.factor, jnp.float32)), k_BSHK
