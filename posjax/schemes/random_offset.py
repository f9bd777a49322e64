"""Position numbers that start at a random place."""

import dataclasses
from typing import Literal

import jax

from posjax.scheme import Scheme, scheme
from posjax.schemes.randomised import draws


@scheme
class random_offset(Scheme):
    """All position numbers moved by one random number.

        t  ->  t + k,    k drawn uniformly from 0, 1, ..., max_offset

    Chain it with the scheme that reads them. The offset is drawn afresh for each call with a key,
    and is 0 without one. The paper draws in training only; the same parameters asked under
    `max_offset=0` are its evaluation.

    Fields:
      max_offset: the largest offset, in tokens, >= 0.
      per: 'example' draws for each sequence, as the paper; 'batch' once for all of a call.

    Past the training length: as the scheme it is chained with, whose training reached max_offset
    further. A `learned` table needs a row for each of 0, ..., length + max_offset - 1.
    """

    paper = 'Kiyono et al. 2021, arXiv:2109.05644 (SHAPE)'
    relative = True
    beyond = 'as its partner, trained max_offset further'

    max_offset: int
    per: Literal['example', 'batch'] = 'example'

    def check(self):
        self.require('max_offset', self.max_offset >= 0, 'at least 0')

    def reach(self, numbers):
        return range(numbers.start, numbers.stop + self.max_offset)

    def deterministic(self):
        return dataclasses.replace(self, max_offset=0)

    def positions(self, pos_BT, tokens_BT, length_B, key):
        if key is None:
            return pos_BT
        keys_N = draws(key, self.per, tokens_BT.shape[0])
        offset_N = jax.vmap(lambda k: jax.random.randint(k, (), 0, self.max_offset + 1))(keys_N)
        return pos_BT + offset_N[:, None].astype(pos_BT.dtype)
