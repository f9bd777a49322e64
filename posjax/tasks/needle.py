"""Key-value retrieval from a haystack: needs to find one token by content, however far back."""

import jax
import jax.numpy as jnp
import numpy as np

from posjax.tasks.task import UNSCORED, Task, task


@task
class needle(Task):
    """Keys with their values lie in a haystack; at the end some keys are asked for their values.

        needle(keys=2, queries=1)
        tokens   35 40 17  6 33 47 20 11 34 48 17
        answers   .  .  .  .  .  .  .  .  .  .  6

    Values are tokens 0-15, keys 16-31, hay 32-47, and 48 announces a question. Keys 17 and 20 have
    the values 6 and 11; key 17 is asked. A needle is a key and its values, side by side, somewhere
    in the haystack; keys are different, values uniform, hay is neither. A question is the
    announcement, the key, and, where a key has several values, all but the last of them: each
    place is scored for the next. No key is asked twice, so that no answer stands in a question.

        needle(keys=1, values=2, queries=1)
        tokens   35 40 17  6  9 33 48 17  6
        answers   .  .  .  .  .  .  .  6  9

    A pass key of five digits in dull text (Mohtashami & Jaggi 2023, arXiv:2305.16300) is
    needle(keys=1, values=5, queries=1, key_vocab=1, value_vocab=10, hay_vocab=1). Keys beyond
    `queries` distract (multi-key), as in RULER (Hsieh et al. 2024, arXiv:2404.06654).

    Fields:
      keys: how many needles lie in the haystack.
      values: how many values a key has, in order.
      queries: how many of the keys are asked, in random order; more teach more per sequence.
      key_vocab, value_vocab, hay_vocab: how many different tokens of each kind; chance is
        1/value_vocab.
      depth: where needles lie, (from, to), uniformly: 0 is the start of the haystack, 1 its end,
        right before the first question. Where that is too narrow for all of them they lie as near
        as they can, the ones asked nearest.
    """

    keys: int = 4
    values: int = 1
    queries: int = 4
    key_vocab: int = 16
    value_vocab: int = 16
    hay_vocab: int = 16
    depth: tuple[float, ...] = (0.0, 1.0)

    def check(self):
        for name, least in (('keys', 1), ('values', 1), ('queries', 1), ('value_vocab', 2),
                            ('hay_vocab', 1)):  # fmt: skip
            self.require(name, getattr(self, name) >= least, f'at least {least}')
        distinct = f'at least keys={self.keys}; keys are different'
        self.require('key_vocab', self.key_vocab >= self.keys, distinct)
        once = f'at most keys={self.keys}; no key is asked twice'
        self.require('queries', self.queries <= self.keys, once)
        good = len(self.depth) == 2 and 0 <= self.depth[0] <= self.depth[1] <= 1
        self.require('depth', good, '(from, to) with 0 <= from <= to <= 1')

    def check_length(self, length):
        least = (self.keys + self.queries) * self._width
        if length < least:
            raise ValueError(f'task {self.text} does not fit in {length} tokens; ask for at least '
                             f'{least}')  # fmt: skip

    @property
    def tokens(self):
        return self.value_vocab + self.key_vocab + self.hay_vocab + 1

    @property
    def classes(self):
        return self.value_vocab

    @property
    def _width(self):
        """Tokens of a needle, and of a question."""
        return 1 + self.values

    def _haystack(self, length):
        return length - self.queries * self._width

    def sample(self, key, batch, length):
        # N needles, Q questions, W tokens of each.
        place_key, key_key, value_key, hay_key = jax.random.split(key, 4)
        first_hay = self.value_vocab + self.key_vocab
        tokens_BT = jax.random.randint(hay_key, (batch, length), first_hay, self.tokens - 1)

        # The highest of random numbers, as distinct draws.
        _, key_BN = jax.lax.top_k(jax.random.uniform(key_key, (batch, self.key_vocab)), self.keys)
        value_BNV = jax.random.randint(
            value_key, (batch, self.keys, self.values), 0, self.value_vocab
        )
        needle_BNW = jnp.concatenate([self.value_vocab + key_BN[..., None], value_BNV], axis=-1)
        place_BN = self._places(place_key, batch, length)
        place_BNW = place_BN[..., None] + jnp.arange(self._width)[None, None]
        tokens_BT = tokens_BT.at[jnp.arange(batch)[:, None, None], place_BNW].set(needle_BNW)

        asked_BQW = needle_BNW[:, : self.queries]
        question_BQW = jnp.roll(asked_BQW, 1, axis=-1).at[..., 0].set(self.tokens - 1)
        answer_BQW = asked_BQW.at[..., 0].set(UNSCORED)
        hay = self._haystack(length)
        tokens_BT = tokens_BT.at[:, hay:].set(question_BQW.reshape(batch, -1))
        answers_BT = jnp.full((batch, length), UNSCORED).at[:, hay:]
        return tokens_BT, answers_BT.set(answer_BQW.reshape(batch, -1))

    def _places(self, key, batch, length):
        """Where needles begin, without overlap, the ones to ask first: (B, N)."""
        # With every needle shrunk to one token these are distinct slots; each then moves on by what
        # the needles before it take.
        slots = self._haystack(length) - self.keys * self.values
        depth_S = jnp.arange(slots) / max(slots - 1, 1)
        low, high = self.depth
        outside_S = jnp.maximum(jnp.maximum(low - depth_S, depth_S - high), 0)
        random_BS = jax.random.uniform(key, (batch, slots))
        priority_BS = jnp.where(outside_S[None] > 0, -outside_S[None], random_BS)
        _, slot_BN = jax.lax.top_k(priority_BS, self.keys)
        before_BN = (slot_BN[:, None] < slot_BN[..., None]).sum(axis=-1)
        return slot_BN + self.values * before_BN

    def depths(self, tokens_BT):
        batch, length = tokens_BT.shape
        hay = self._haystack(length)
        question_BQW = tokens_BT[:, hay:].reshape(batch, self.queries, self._width)
        place_BQ = (tokens_BT[:, None, :hay] == question_BQW[..., 1:2]).argmax(axis=-1)
        depth_BQ = place_BQ / max(hay - self._width, 1)
        scored_W = jnp.arange(self._width) > 0
        depth_BQW = jnp.where(scored_W[None, None], depth_BQ[..., None], jnp.nan)
        none_BT = jnp.full((batch, length), jnp.nan)
        return none_BT.at[:, hay:].set(depth_BQW.reshape(batch, -1))

    def answers(self, length):
        place_T = np.arange(length) - self._haystack(length)
        scored_T = (place_T >= 0) & (place_T % self._width > 0)
        return scored_T[:, None] * np.full((length, self.classes), 1 / self.classes)
