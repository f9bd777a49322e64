"""Associative recall: pairs of a key and its value, again and again."""

import jax
import jax.numpy as jnp
import numpy as np

from posjax.tasks.seen import previous
from posjax.tasks.task import UNSCORED, Task, task


@task
class recall(Task):
    """Keys alternate with their values; at each key that has appeared before, output its value.

        tokens   17  6 20 11 17  6 20
        answers   .  .  .  .  6  . 11

    Values are tokens 0-15 and keys 16-31. Every sequence has a new value for each key and keeps it,
    so that, unlike in `induction`, any earlier time will do (Ba et al. 2016, arXiv:1610.06258;
    asked everywhere as in Arora et al. 2023, arXiv:2312.04927). A sequence of odd length ends with
    a key.

    Fields:
      keys: how many different keys; position 2j is scored with probability 1 - (1 - 1/keys)^j.
      values: how many different values; chance is 1/values.
    """

    keys: int = 16
    values: int = 16

    def check(self):
        for name, least in (('keys', 1), ('values', 2)):
            self.require(name, getattr(self, name) >= least, f'at least {least}')

    def check_length(self, length):
        if length < 3:
            raise ValueError(f'task {self.text} scores nothing within {length} tokens; ask for '
                             'at least 3')  # fmt: skip

    @property
    def tokens(self):
        return self.values + self.keys

    @property
    def classes(self):
        return self.values

    def sample(self, key, batch, length):
        key_key, value_key = jax.random.split(key)
        pairs = -(-length // 2)
        key_BP = jax.random.randint(key_key, (batch, pairs), 0, self.keys)
        value_BK = jax.random.randint(value_key, (batch, self.keys), 0, self.values)
        value_BP = jnp.take_along_axis(value_BK, key_BP, axis=1)
        answer_BP = jnp.where(previous(key_BP) < 0, UNSCORED, value_BP)

        def alternate(even_BP, odd_BP):
            return jnp.stack([even_BP, odd_BP], axis=-1).reshape(batch, -1)[:, :length]

        return (
            alternate(self.values + key_BP, value_BP),
            alternate(answer_BP, jnp.full_like(answer_BP, UNSCORED)),
        )

    def answers(self, length):
        place_T1 = np.arange(length)[:, None]
        scored_T1 = (place_T1 % 2 == 0) * (1 - (1 - 1 / self.keys) ** (place_T1 // 2))
        return scored_T1 * np.full((length, self.values), 1 / self.values)
