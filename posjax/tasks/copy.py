"""Output a sequence again, as it was or backwards: needs positions that change with its length."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from posjax.tasks.task import UNSCORED, Task, task


@dataclasses.dataclass(frozen=True, repr=False)
class Repeat(Task):
    """What `copy` and `reverse` share: content, a separator, and the output, fed back as it is due.

    A content of n tokens takes 2n: the separator is scored for the first token of the output, every
    token of the output for the next, and the last is not fed back. The rest is padding. Content
    comes first, so that positions past the training length are scored only for contents longer
    than any of the training.
    """

    vocab: int = 16
    vary: bool = True

    def check(self):
        self.require('vocab', self.vocab >= 2, 'at least 2')

    def check_length(self, length):
        if length < 2:
            raise ValueError(f'task {self.text} scores nothing within {length} tokens; ask for '
                             'at least 2')  # fmt: skip

    @property
    def tokens(self):
        return self.vocab + 2

    @property
    def classes(self):
        return self.vocab

    def _sizes(self, length):
        """The shortest and the longest content within `length` tokens."""
        return 1 if self.vary else length // 2, length // 2

    def source(self, number_BT, size_B1):
        """Which token of a content of `size_B1` is output number 0, 1, ..., size - 1."""
        raise NotImplementedError

    def sample(self, key, batch, length):
        size_key, content_key = jax.random.split(key)
        shortest, longest = self._sizes(length)
        size_B1 = jax.random.randint(size_key, (batch, 1), shortest, longest + 1)
        content_BT = jax.random.randint(content_key, (batch, length), 0, self.vocab)
        number_BT = jnp.arange(length)[None] - size_B1
        output = (number_BT >= 0) & (number_BT < size_B1)
        source_BT = jnp.where(output, self.source(number_BT, size_B1), 0)
        answers_BT = jnp.take_along_axis(content_BT, source_BT, axis=1)
        separator, padding = self.vocab, self.vocab + 1
        fed_BT = jnp.where(number_BT == 0, separator, jnp.roll(answers_BT, 1, axis=1))
        tokens_BT = jnp.where(number_BT < 0, content_BT, jnp.where(output, fed_BT, padding))
        return tokens_BT, jnp.where(output, answers_BT, UNSCORED)

    def answers(self, length):
        # Of the content lengths, those of at most t tokens whose output has not ended.
        shortest, longest = self._sizes(length)
        place_T1 = np.arange(length)[:, None]
        sizes_T1 = np.minimum(longest, place_T1) - np.maximum(shortest - 1, place_T1 // 2)
        scored_T1 = np.maximum(sizes_T1, 0) / (longest - shortest + 1)
        return scored_T1 * np.full((length, self.vocab), 1 / self.vocab)


@task
class copy(Repeat):
    """A sequence and a separator; then output the sequence again.

        tokens   5 1 7 16 5 1
        answers  . . .  5 1 7

    The separator is token 16, padding 17.

    Fields:
      vocab: how many tokens the content has; chance is 1/vocab.
      vary: contents of 1 to length // 2 tokens, uniformly; False: always length // 2, where copying
        is `lag` by that many tokens, and a longer sequence is another lag.
    """

    def source(self, number_BT, size_B1):
        return number_BT


@task
class reverse(Repeat):
    """A sequence and a separator; then output the sequence backwards.

        tokens   5 1 7 16 7 1
        answers  . . .  7 1 5

    The separator is token 16, padding 17.

    Fields:
      vocab: how many tokens the content has; chance is 1/vocab.
      vary: contents of 1 to length // 2 tokens, uniformly; False: always length // 2.
    """

    def source(self, number_BT, size_B1):
        return size_B1 - 1 - number_BT
