"""Which tokens may be seen at all: windows, sinks, chunks.

A pattern counts tokens, where other schemes read position numbers: numbers may be random, scaled or
shifted, and eight of them are then not eight tokens. A token always sees itself. The causal mask is
the model's: without one, windows and chunks reach to both sides.
"""

import jax
import jax.numpy as jnp

from posjax.scheme import Context, Scheme, scheme


def places(ctx: Context) -> tuple[jax.Array, jax.Array]:
    """How many tokens come before each query (B|1, Q) and key (B|1, S); padding does not count."""
    if ctx.valid_BS is None:
        return ctx.q_index_Q[None], ctx.k_index_S[None]
    k_place_BS = jnp.maximum(jnp.cumsum(ctx.valid_BS, axis=1) - 1, 0)
    # A query is one of the keys.
    return jnp.take(k_place_BS, ctx.q_index_Q - ctx.k_index_S[0], axis=1), k_place_BS


def back(ctx: Context) -> jax.Array:
    """How many tokens each key lies before each query, (B|1, 1, Q, S); negative after it."""
    q_place_BQ, k_place_BS = places(ctx)
    return q_place_BQ[:, None, :, None] - k_place_BS[:, None, None, :]


def lambda_mask(ctx: Context, size: int, number: int) -> jax.Array:
    """Where the last `size` tokens and the first `number` are seen, (B|1, 1, Q, S)."""
    _, k_place_BS = places(ctx)
    return (jnp.abs(back(ctx)) < size) | (k_place_BS < number)[:, None, None, :]


@scheme
class window(Scheme):
    """A sliding window over the last tokens: each sees `size` of them, itself among them.

        query i sees key j  where  |i - j| < size

    Counted as in transformers; the mask of Mistral's first code, |i - j| <= window, sees one more.

    Fields:
      size: tokens seen to the left, the token itself included, >= 1.

    Past the training length a layer sees as many tokens as in training; all together see further.
    """

    paper = 'Beltagy et al. 2020, arXiv:2004.05150; Jiang et al. 2023 (Mistral), arXiv:2310.06825'
    relative = True
    beyond = 'defined; sees the last tokens only'

    size: int

    def check(self):
        self.require('size', self.size >= 1, 'at least 1 (a token sees itself)')

    def mask(self, ctx):
        return jnp.abs(back(ctx)) < self.size


@scheme
class sinks(Scheme):
    """A sliding window beside attention sinks: the last tokens, and the first of the sequence.

        query i sees key j  where  |i - j| < size  or  j < number

    Positions stay those of the text; StreamingLLM also renumbers the tokens it kept. It keeps 4
    sinks beside the window.

    Fields:
      size: tokens seen to the left, the token itself included, >= 1.
      number: how many of the first tokens are seen from everywhere, >= 1.

    Past the training length a layer sees as many tokens as in training.
    """

    paper = 'Xiao et al. 2023 (StreamingLLM), arXiv:2309.17453; Han et al. 2023, arXiv:2308.16137'
    relative = True
    beyond = 'defined; sees the first and last tokens only'

    size: int
    number: int = 4

    def check(self):
        self.require('size', self.size >= 1, 'at least 1')
        self.require('number', self.number >= 1, 'at least 1')

    def mask(self, ctx):
        return lambda_mask(ctx, self.size, self.number)


@scheme
class chunks(Scheme):
    """Chunked attention, where tokens see their own piece of the sequence only.

        query i sees key j  where  floor(i / size) = floor(j / size)

    Counted from the first real token, also behind padding, as transformers does for Llama 4.

    Fields:
      size: tokens of a chunk, >= 1; Llama 4 takes 8192, in its layers with rotations.

    Past the training length every chunk looks like the first.
    """

    paper = 'Meta 2025 (Llama 4, model code); Qiu et al. 2019, arXiv:1911.02972'
    relative = True
    beyond = 'defined; sees its chunk only'

    size: int

    def check(self):
        self.require('size', self.size >= 1, 'at least 1')

    def mask(self, ctx):
        q_place_BQ, k_place_BS = places(ctx)
        q_chunk, k_chunk = q_place_BQ // self.size, k_place_BS // self.size
        return (q_chunk[:, :, None] == k_chunk[:, None, :])[:, None]
