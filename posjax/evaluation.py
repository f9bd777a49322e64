"""Accuracy per position and per depth, of one run, at any length.

Schemes of equal structure, and lengths, are asked by one loop over their numbers, so a grid of
methods, factors and lengths compiles like a single scheme at the longest.

Shape suffixes: L lengths, N schemes, B sequences, T tokens, C classes, D depths.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from posjax import model as model_lib
from posjax.model import Model
from posjax.run import Run
from posjax.scheme import Params, Scheme
from posjax.spread import Spread, alone
from posjax.streams import stream
from posjax.tasks.task import UNSCORED, Task

# Tenths of the way from the start of what is searched to its end.
DEPTHS = 10
# Multiply-adds on padding that a program may do: on a CPU core, to compile another takes longer.
_PADDING = 1e11


class Counts(NamedTuple):
    """Per scheme asked under, or once: right answers (N, T), NaN where a logit was not finite; and
    scored positions (T,). The same by depth, (N, D) and (D,); None if the task has no depths."""

    right_NT: jax.Array
    scored_T: jax.Array
    right_ND: jax.Array | None = None
    scored_D: jax.Array | None = None

    def failed(self) -> 'Counts':
        """The same questions, and no answer to any."""

        def none(right):
            return None if right is None else jnp.full_like(right, jnp.nan)

        return self._replace(right_NT=none(self.right_NT), right_ND=none(self.right_ND))


def together(model: Model, questions: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Which lengths to ask in one program, longest first: as many as it takes no longer to pad to
    the longest of them than to compile more programs.

    Args:
      questions: how many sequences of each length, under all schemes together.
    """
    found: list[list[int]] = []
    room = 0.0
    for length in sorted(questions, reverse=True):
        longest = found[-1][0] if found else 0
        token = model.layers * model.width * ((4 + 2 * model.mlp) * model.width + 2 * longest)
        cost = questions[length] * (longest - length) * token
        if found and cost <= room:
            found[-1].append(length)
            room -= cost
        else:
            found.append([length])
            room = _PADDING
    return list(map(tuple, found))


class Drawn(NamedTuple):
    """What a model is asked: sequences of each length, padded to the longest, answers, and depths
    (of each length, in that length) if the task has them."""

    tokens_LBT: jax.Array
    answers_LBT: jax.Array
    depths: tuple[jax.Array, ...] | None


def counts(
    run: Run, params: Params, schemes: Sequence[Sequence[Scheme]], lengths: Sequence[int],
    sequences: int, batch: int,
) -> tuple[Counts, ...]:  # fmt: skip
    """Answers fresh sequences of the run's seed, of each length under each of its schemes.

    Args:
      schemes: of each length, what the parameters are asked under: the run's own, or it after an
        intervention.
      lengths: in tokens; shorter sequences are padded to the longest, and answer as they would
        alone.
      sequences: how many of each length; `batch` of them at a time, which bounds memory.

    Returns:
      Counts of each length.
    """
    drawn = draw(run.task, run.seed, lengths, sequences, batch)
    return answer(run, params, schemes, drawn, lengths, batch)


def draw(
    task: Task, seed, lengths: Sequence[int], sequences: int, batch: int, spread: Spread = alone
) -> Drawn:
    """Sequences of a seed, which know no scheme.

    Sequence i is a function of (seed, length, i): it is the same under every scheme and
    intervention, so comparisons are paired, and neither `sequences` nor `batch` changes it.

    Args:
      spread: says which devices have which sequences, if several share them.
    """
    longest = max(lengths)

    def padded(x_BT, value):
        return jnp.pad(x_BT, ((0, 0), (0, longest - x_BT.shape[1])), constant_values=value)

    tokens, answers, depths = [], [], []
    for length, keys_B in zip(lengths, _keys(seed, 'eval_data', lengths, sequences), strict=True):

        def one(key, length=length):
            tokens_1T, answers_1T = task.sample(key, 1, length)
            depth_1T = task.depths(tokens_1T)
            return tokens_1T[0], answers_1T[0], None if depth_1T is None else depth_1T[0]

        tokens_BT, answers_BT, depth_BT = _by_batches(one, (keys_B,), batch, spread)
        tokens.append(padded(tokens_BT, 0))
        answers.append(padded(answers_BT, UNSCORED))
        depths.append(depth_BT)
    deep = None if depths[0] is None else tuple(depths)
    return Drawn(jnp.stack(tokens), jnp.stack(answers), deep)


def answer(
    run: Run, params: Params, schemes: Sequence[Sequence[Scheme]], drawn: Drawn,
    lengths: Sequence[int], batch: int, spread: Spread = alone,
) -> tuple[Counts, ...]:  # fmt: skip
    """Counts of each length, of what was drawn for the run's seed."""
    longest, sequences = max(lengths), drawn.tokens_LBT.shape[1]
    keys_LB = _keys(run.seed, 'eval_positions', lengths, sequences)
    lengths_L1 = jnp.asarray(lengths)[:, None]

    def ask(scheme, place):
        unpadded_B = lengths_L1[place] if min(lengths) < longest else None

        def one(tokens_T, answers_T, key):
            out = model_lib.apply(
                run.model, params, tokens_T[None], scheme, key=key, unpadded_B=unpadded_B
            )
            logits_TC, scored_T = out.logits_BTC[0], answers_T != UNSCORED
            right_T = (logits_TC.argmax(axis=-1) == answers_T) & scored_T
            # argmax over NaN answers class 0: a failed model must not score what chance would.
            finite_T = jnp.isfinite(logits_TC).all(axis=-1) | ~scored_T
            return jnp.where(finite_T, right_T.astype(jnp.float32), jnp.nan)

        rows = drawn.tokens_LBT[place], drawn.answers_LBT[place], keys_LB[place]
        return _by_batches(one, rows, batch, spread)

    right_NBT = _for_each(ask, [(s, place) for place, row in enumerate(schemes) for s in row])
    found, start = [], 0
    for place, (length, row) in enumerate(zip(lengths, schemes, strict=True)):
        mine_NBT = right_NBT[start : start + len(row), :, :length]
        start += len(row)
        count_BT = (drawn.answers_LBT[place, :, :length] != UNSCORED).astype(jnp.int32)
        deep = () if drawn.depths is None else by_depth(mine_NBT, count_BT, drawn.depths[place])
        found.append(Counts(mine_NBT.sum(axis=1), count_BT.sum(axis=0), *deep))
    return tuple(found)


def _keys(seed, purpose: str, lengths: Sequence[int], sequences: int) -> jax.Array:
    """Keys (L, B) of a purpose: of all lengths at once, as on CPUs each operation on keys is a loop
    of its own to compile."""

    def of(length, number):
        return jax.random.fold_in(jax.random.fold_in(stream(seed, purpose), length), number)

    of_length = jax.vmap(of, (None, 0))
    return jax.vmap(of_length, (0, None))(jnp.asarray(lengths), jnp.arange(sequences))


def _by_batches(f, rows: tuple, batch: int, spread: Spread):
    """`f` of every row of arrays (B, ...), `batch` of them at a time."""

    def several(part):
        return jax.vmap(f)(*map(spread, part))

    count = len(rows[0])
    whole = count // batch * batch
    split = [jax.tree.map(lambda x: x[:whole].reshape(-1, batch, *x.shape[1:]), rows),
             jax.tree.map(lambda x: x[whole:][None], rows)]  # fmt: skip
    done = [jax.lax.map(several, part) for part in split if jax.tree.leaves(part)[0].size]
    done = [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), part) for part in done]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *done)


def by_depth(right_NBT, count_BT, depth_BT) -> tuple[jax.Array, jax.Array]:
    """Right answers (N, D) and scored positions (D,) in each tenth of the depth; NaN is in none."""
    # A depth of 1 belongs to the last tenth; what has no depth falls off the end.
    bin_BT = jnp.minimum(depth_BT * DEPTHS, DEPTHS - 1).astype(jnp.int32)
    bin_BT = jnp.where(jnp.isnan(depth_BT), DEPTHS, bin_BT)
    right_BTN = jnp.moveaxis(right_NBT, 0, -1)
    right_DN = jnp.zeros((DEPTHS, right_BTN.shape[-1])).at[bin_BT].add(right_BTN, mode='drop')
    return right_DN.T, jnp.zeros(DEPTHS, jnp.int32).at[bin_BT].add(count_BT, mode='drop')


def _for_each(ask, asked: Sequence[tuple[Scheme, int]]) -> jax.Array:
    """`ask(scheme, place)` of every pair, stacked; traced once for each structure of a scheme."""
    alike: dict = {}
    for number, (scheme, _) in enumerate(asked):
        alike.setdefault(jax.tree.structure(scheme), []).append(number)
    answers = [None] * len(asked)
    for numbers in alike.values():
        pairs = jax.tree.map(
            lambda *x: jnp.stack(list(map(jnp.asarray, x))), *(asked[n] for n in numbers)
        )
        for number, row in zip(numbers, jax.lax.map(lambda pair: ask(*pair), pairs), strict=True):
            answers[number] = row
    return jnp.stack(answers)
