"""Has this token appeared before: needs content and no position."""

import jax
import jax.numpy as jnp
import numpy as np

from posjax.tasks.task import Task, task


@task
class seen(Task):
    """At each position: has this token appeared earlier in the sequence? 1 for yes, 0 for no.

        tokens   3 8 3 5 8 8
        answers  0 0 1 0 1 1

    Tokens are uniform, so position t answers "no" with probability (1 - 1/vocab)^t: the longer the
    sequence, the rarer. Always "no" is the best constant answer on short sequences, always "yes"
    on long ones.

    Fields:
      vocab: how many tokens.
    """

    vocab: int = 96

    def check(self):
        self.require('vocab', self.vocab >= 2, 'at least 2')

    @property
    def tokens(self):
        return self.vocab

    @property
    def classes(self):
        return 2

    def sample(self, key, batch, length):
        tokens_BT = jax.random.randint(key, (batch, length), 0, self.vocab)
        place_BT = jnp.broadcast_to(jnp.arange(length), (batch, length))
        # Where each token stands first: linear in the length, where comparing all pairs is not.
        first_BV = jnp.full((batch, self.vocab), length)
        first_BV = jax.vmap(lambda f, t, i: f.at[t].min(i))(first_BV, tokens_BT, place_BT)
        seen_BT = place_BT > jnp.take_along_axis(first_BV, tokens_BT, axis=1)
        return tokens_BT, seen_BT.astype(jnp.int32)

    def answers(self, length):
        no_T = (1 - 1 / self.vocab) ** np.arange(length)
        return np.stack([no_T, 1 - no_T], axis=1)
