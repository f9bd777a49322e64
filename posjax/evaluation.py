"""Accuracy per position and per depth, of one run, at any length.

Schemes of equal structure are asked by one loop over their numbers, so a grid of methods and
factors compiles like a single scheme.

Shape suffixes: N schemes, B sequences, T tokens, C classes, D depths.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from posjax import model as model_lib
from posjax.run import Run
from posjax.scheme import Params, Scheme
from posjax.spread import Spread, alone
from posjax.streams import stream
from posjax.tasks.task import UNSCORED

# Tenths of the way from the start of what is searched to its end.
DEPTHS = 10


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


def counts(
    run: Run, params: Params, schemes: tuple[Scheme, ...], length: int, sequences: int, batch: int,
    spread: Spread = alone,
) -> Counts:  # fmt: skip
    """Answers fresh sequences of the run's seed under each scheme.

    Sequence i is a function of (seed, length, i): it is the same under every scheme and
    intervention, so comparisons are paired, and neither `sequences` nor `batch` changes it.

    Args:
      schemes: what the parameters are asked under: the run's own, or it after an intervention.
      sequences: how many; `batch` of them at a time, which bounds memory.
      spread: says which devices have which sequences, if several share them.
    """
    data = jax.random.fold_in(stream(run.seed, 'eval_data'), length)
    positions = jax.random.fold_in(stream(run.seed, 'eval_positions'), length)

    def one(number):
        tokens_1T, answers_1T = run.task.sample(jax.random.fold_in(data, number), 1, length)
        scored_T = answers_1T[0] != UNSCORED
        key = jax.random.fold_in(positions, number)

        def ask(scheme):
            logits_TC = model_lib.apply(run.model, params, tokens_1T, scheme, key=key).logits_BTC[0]
            right_T = (logits_TC.argmax(axis=-1) == answers_1T[0]) & scored_T
            # argmax over NaN answers class 0: a failed model must not score what chance would.
            finite_T = jnp.isfinite(logits_TC).all(axis=-1) | ~scored_T
            return jnp.where(finite_T, right_T.astype(jnp.float32), jnp.nan)

        return _for_each(ask, schemes), scored_T, run.task.depths(tokens_1T)

    def several(numbers):
        return jax.vmap(one)(spread(numbers))

    whole = sequences // batch * batch
    parts = [jnp.arange(whole).reshape(-1, batch), jnp.arange(whole, sequences)[None]]
    done = [jax.lax.map(several, part) for part in parts if part.size]
    done = [jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), part) for part in done]
    right_BNT, scored_BT, depth_B1T = jax.tree.map(lambda *x: jnp.concatenate(x), *done)
    count_BT = scored_BT.astype(jnp.int32)
    deep = () if depth_B1T is None else by_depth(right_BNT, count_BT, depth_B1T[:, 0])
    return Counts(right_BNT.sum(axis=0), count_BT.sum(axis=0), *deep)


def by_depth(right_BNT, count_BT, depth_BT) -> tuple[jax.Array, jax.Array]:
    """Right answers (N, D) and scored positions (D,) in each tenth of the depth; NaN is in none."""
    # A depth of 1 belongs to the last tenth; what has no depth falls off the end.
    bin_BT = jnp.minimum(depth_BT * DEPTHS, DEPTHS - 1).astype(jnp.int32)
    bin_BT = jnp.where(jnp.isnan(depth_BT), DEPTHS, bin_BT)
    right_BTN = jnp.moveaxis(right_BNT, 1, 2)
    right_DN = jnp.zeros((DEPTHS, right_BTN.shape[-1])).at[bin_BT].add(right_BTN, mode='drop')
    return right_DN.T, jnp.zeros(DEPTHS, jnp.int32).at[bin_BT].add(count_BT, mode='drop')


def _for_each(ask, schemes: tuple[Scheme, ...]) -> jax.Array:
    """`ask` of every scheme, stacked; traced once for each structure among them."""
    places: dict = {}
    for place, scheme in enumerate(schemes):
        places.setdefault(jax.tree.structure(scheme), []).append(place)
    answers = [None] * len(schemes)
    for alike in places.values():
        if len(alike) > 1 and jax.tree.leaves(schemes[alike[0]]):
            numbers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(schemes[p] for p in alike))
            rows = list(jax.lax.map(ask, numbers))
        else:  # alone, or without numbers in which it could differ
            rows = [ask(schemes[alike[0]])] * len(alike)
        for place, row in zip(alike, rows, strict=True):
            answers[place] = row
    return jnp.stack(answers)
