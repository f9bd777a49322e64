"""A learned vector for every position."""

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, scheme


@scheme
class learned(Scheme):
    """A learned vector for every position, added to the token embeddings.

        x[t] += table[t],    table ~ N(0, 1) at first, as torch.nn.Embedding

    Fields:
      max_length: rows of the table, >= 1.

    A position without a row is an error before anything runs; should one get past the checks (a
    scheme that moves positions on the fly), it reads NaN, never another position's row. Rows past
    the training length exist but never got a gradient: they are noise.
    """

    paper = 'Gehring et al. 2017, arXiv:1705.03122; Radford et al. 2018 (GPT)'
    beyond = 'untrained rows; past the last row an error'

    max_length: int = 1024

    def check(self):
        self.require('max_length', self.max_length >= 1, 'at least 1')

    def check_fit(self, dims, numbers):
        if numbers.start < 0:
            raise ValueError(f'scheme {self.text} has no row for position {numbers.start}; shift '
                             'positions to 0 or more')  # fmt: skip
        if numbers.stop > self.max_length:
            raise ValueError(
                f'scheme {self.text} has {self.max_length} rows, none for position '
                f'{self.max_length} of {numbers.stop}; ask for fewer tokens, or train with '
                f'learned(max_length={numbers.stop})'
            )

    def init(self, key, dims):
        return {'table': jax.random.normal(key, (self.max_length, dims.width))}

    def embed(self, params, x_BTD, ctx):
        def rows(pos_BT):
            # JAX would clamp a read past the end and wrap a negative one.
            read = params['table'].at[pos_BT]
            return read.get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)

        pos_BT = ctx.q_pos_BQ
        if jnp.issubdtype(pos_BT.dtype, jnp.integer):
            rows_BTD = rows(pos_BT)
        else:
            low_BT, high_BT = (f(pos_BT).astype(jnp.int32) for f in (jnp.floor, jnp.ceil))
            part_BT1 = (pos_BT - low_BT.astype(pos_BT.dtype))[..., None]
            rows_BTD = rows(low_BT) * (1 - part_BT1) + rows(high_BT) * part_BT1
        return x_BTD + rows_BTD.astype(x_BTD.dtype)
