"""Position numbers closer together."""

import math

import jax.numpy as jnp

from posjax.scheme import Scheme, scheme


@scheme
class interpolate(Scheme):
    """All position numbers divided by a constant; chain it with the scheme that reads them.

        t  ->  t / factor

    Position interpolation for every scheme that reads numbers: `rope|interpolate(factor=4.0)` is
    `rope(scaling=linear(factor=4.0))`; the others read fractions as well, a `learned` table from
    the rows on both sides.

    Fields:
      factor: s, new length / trained length, >= 1.

    Past the training length numbers stay those of training up to factor times it, closer together.
    """

    paper = 'Chen et al. 2023, arXiv:2306.15595; kaiokendev 2023 (SuperHOT)'
    relative = True
    beyond = 'as its partner, trained factor times further'

    factor: float

    def check(self):
        self.require(
            'factor', self.factor >= 1, 'at least 1 (it is the new length / the trained one)'
        )

    def reach(self, numbers):
        first, last = numbers.start / self.factor, (numbers.stop - 1) / self.factor
        return range(math.floor(first), math.ceil(last) + 1)

    def positions(self, pos_BT, tokens_BT, length_B, key):
        return pos_BT.astype(jnp.float32) / self.factor
