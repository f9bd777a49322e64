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
        return tokens_BT, (previous(tokens_BT) >= 0).astype(jnp.int32)

    def answers(self, length):
        no_T = (1 - 1 / self.vocab) ** np.arange(length)
        return np.stack([no_T, 1 - no_T], axis=1)


def previous(tokens_BT: jax.Array) -> jax.Array:
    """Where each token stands the last time before, -1 if it does not: int32 (B, T)."""
    # Equal tokens side by side in their order: linear in the length, where comparing all pairs is
    # not.
    order_BT = jnp.argsort(tokens_BT, axis=1, stable=True)
    sorted_BT = jnp.take_along_axis(tokens_BT, order_BT, axis=1)
    same_BT = jnp.zeros(tokens_BT.shape, bool).at[:, 1:].set(sorted_BT[:, 1:] == sorted_BT[:, :-1])
    before_BT = jnp.where(same_BT, jnp.roll(order_BT, 1, axis=1), -1)
    return jnp.put_along_axis(before_BT, order_BT, before_BT, axis=1, inplace=False)
