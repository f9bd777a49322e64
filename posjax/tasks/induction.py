"""What came next last time: needs content, and to tell the last time from earlier ones."""

import jax
import jax.numpy as jnp
import numpy as np

from posjax.tasks.seen import previous
from posjax.tasks.task import UNSCORED, Task, task


@task
class induction(Task):
    """At each position whose token has appeared before: the token that followed it the last time.

        tokens   3 8 5 3 3 8
        answers  . . . 8 3 5

    Tokens are uniform, so position t is scored with probability 1 - (1 - 1/vocab)^t. What induction
    heads do (Olsson et al. 2022, arXiv:2209.11895).

    Fields:
      vocab: how many tokens; chance is 1/vocab.
    """

    vocab: int = 16

    def check(self):
        if self.vocab < 2:
            raise ValueError(f'task induction: vocab={self.vocab} should be at least 2')

    def check_length(self, length):
        if length < 2:
            raise ValueError(f'task {self.text} scores nothing within {length} tokens; ask for '
                             'at least 2')  # fmt: skip

    @property
    def tokens(self):
        return self.vocab

    @property
    def classes(self):
        return self.vocab

    def sample(self, key, batch, length):
        tokens_BT = jax.random.randint(key, (batch, length), 0, self.vocab)
        place_BT = previous(tokens_BT)
        next_BT = jnp.take_along_axis(tokens_BT, place_BT + 1, axis=1)
        return tokens_BT, jnp.where(place_BT < 0, UNSCORED, next_BT)

    def answers(self, length):
        scored_T1 = 1 - (1 - 1 / self.vocab) ** np.arange(length)[:, None]
        return scored_T1 * np.full((length, self.vocab), 1 / self.vocab)
