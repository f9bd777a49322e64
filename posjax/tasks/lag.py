"""Copy from a fixed distance: needs position and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np

from posjax.tasks.task import UNSCORED, Task, task


@task
class lag(Task):
    """At each position, output the token k back; the first k positions are not scored.

        k=3    tokens   5 1 7 2 9 4
               answers  . . . 5 1 7

    Fields:
      k: how far back, in tokens, >= 1.
      vocab: how many tokens; chance is 1/vocab.
    """

    k: int = 3
    vocab: int = 16

    def check(self):
        self.require('k', self.k >= 1, 'at least 1')
        self.require('vocab', self.vocab >= 2, 'at least 2')

    def check_length(self, length):
        if length <= self.k:
            raise ValueError(f'task {self.text} scores nothing within {length} tokens; ask for '
                             f'more than {self.k}')  # fmt: skip

    @property
    def tokens(self):
        return self.vocab

    @property
    def classes(self):
        return self.vocab

    def sample(self, key, batch, length):
        tokens_BT = jax.random.randint(key, (batch, length), 0, self.vocab)
        unscored = jnp.full((batch, self.k), UNSCORED)
        return tokens_BT, jnp.concatenate([unscored, tokens_BT[:, : -self.k]], axis=1)

    def answers(self, length):
        scored_T1 = np.arange(length)[:, None] >= self.k
        return scored_T1 * np.full((length, self.vocab), 1 / self.vocab)
