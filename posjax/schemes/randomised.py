"""Position numbers drawn at random from a longer range.

Shape suffixes: B batch, T tokens, N draws (B or 1), M numbers to draw from.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, scheme

# (length + 1) * (max_position + 1) is a product of unsigned 32-bit integers.
_LARGEST = 2**16 - 2


def draws(key, per: str, batch: int) -> jax.Array:
    """Keys (N,): one for the whole batch, or one for each example, whatever the batch's size."""
    numbers = jnp.arange(batch if per == 'example' else 1)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def sorted_sample(keys_N, length_B1, max_position: int, index_BT) -> jax.Array:
    """Entries of sorted samples without replacement from 0, 1, ..., max_position - 1.

    Args:
      keys_N: one sample each, for one or all rows.
      length_B1: how many numbers a row draws, 1 to max_position; data.
      index_BT: which of them to return, from 0 to length - 1.

    Returns:
      Numbers (B, T) in int32. With one key, a longer sample holds the shorter one.
    """
    # A random order of all numbers: those that come among the first `length` are the sample.
    order_NM = jax.vmap(lambda key: jax.random.permutation(key, max_position))(keys_N)
    drawn_BM = jnp.cumsum(order_NM < length_B1, axis=1)
    batch = max(drawn_BM.shape[0], index_BT.shape[0])
    drawn_BM = jnp.broadcast_to(drawn_BM, (batch, max_position))
    index_BT = jnp.broadcast_to(index_BT, (batch, index_BT.shape[1]))
    return jax.vmap(jnp.searchsorted)(drawn_BM, index_BT + 1)


def even_sample(length_B1, max_position: int, index_BT) -> jax.Array:
    """As `sorted_sample`, of numbers evenly apart: the mean of what is drawn, rounded down."""
    ranks = (index_BT + 1).astype(jnp.uint32) * jnp.uint32(max_position + 1)
    return (ranks // (length_B1 + 1).astype(jnp.uint32)).astype(jnp.int32) - 1


@scheme
class randomised(Scheme):
    """Position numbers drawn at random, and sorted, from a range longer than any sequence.

        t  ->  r_t,    r_0 < r_1 < ... drawn without replacement from 0, ..., max_position - 1

    Chain it first with the scheme that reads them, as in `rope|randomised`. Numbers are drawn
    afresh for each call with a key, in training and in evaluation alike, as in the paper; the
    paper's code draws again in each layer where attention reads positions, here layers share them.
    Without a key nothing is random, and they are evenly apart.

    Fields:
      max_position: numbers to draw from, 1 to 65534; at least the longest sequence.
      per: 'batch' draws once for all sequences of a call, as the paper's code; 'example' for each.
      draw: 'random', or 'even' for the mean of what would be drawn, with a key as well.

    Past the training length every number was seen in training, up to max_position tokens.
    """

    paper = 'Ruoss et al. 2023, arXiv:2305.16843'
    relative = True
    sees_length = True
    beyond = 'numbers seen in training; past max_position an error'

    max_position: int = 2048
    per: Literal['batch', 'example'] = 'batch'
    draw: Literal['random', 'even'] = 'random'

    def check(self):
        if not 1 <= self.max_position <= _LARGEST:
            raise ValueError(
                f'scheme randomised: max_position={self.max_position} should be from 1 to '
                f'{_LARGEST}'
            )

    def check_fit(self, dims, numbers):
        if numbers.stop > self.max_position:
            raise ValueError(
                f'scheme {self.text} has {self.max_position} numbers for {numbers.stop} tokens; '
                f'ask for at most {self.max_position} tokens, or train with a larger max_position'
            )

    def reach(self, numbers):
        return range(min(numbers.start, 0), self.max_position)

    def deterministic(self):
        return dataclasses.replace(self, draw='even')

    def positions(self, pos_BT, tokens_BT, length_B, key):
        length_B1 = jnp.clip(length_B, 1, self.max_position)[:, None]
        # The sample goes on by ones outside itself, so that room for later tokens, and fractions,
        # get numbers of their own.
        index_BT = jnp.clip((pos_BT // 1).astype(jnp.int32), 0, length_B1 - 1)
        if key is None or self.draw == 'even':
            number_BT = even_sample(length_B1, self.max_position, index_BT)
        else:
            keys_N = draws(key, self.per, tokens_BT.shape[0])
            number_BT = sorted_sample(keys_N, length_B1, self.max_position, index_BT)
        return number_BT.astype(pos_BT.dtype) + (pos_BT - index_BT.astype(pos_BT.dtype))
