"""A trained run in a notebook."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np

from posjax import evaluation, interventions, plan, sweep
from posjax import model as model_lib
from posjax.checkpoint import Checkpoints, Saved
from posjax.config import ConfigError
from posjax.run import Run
from posjax.scheme import Params
from posjax.scheme import parse as parse_scheme
from posjax.tasks.task import parse as parse_task
from posjax.text import suggest
from posjax.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """One trained run.

    Attributes:
      run: what it is: its task, scheme, model, optimiser, seed and sizes.
      step: how many steps its parameters were trained for, wherever they started.
      params: {'net': ..., 'scheme': ...}, nested dicts of numpy arrays.
      failed: the step at which it stopped being finite, and its parameters froze; -1 if it did not.
      checkpoint: digest of what it was read from, as in provenance.json.
    """

    run: Run
    step: int
    params: Params
    failed: int = -1
    checkpoint: str = ''

    def __call__(self, tokens_BT, intervention: str = 'none') -> np.ndarray:
        """Logits (B, T, classes), float32. Raises ValueError for tokens it cannot take."""
        return np.asarray(self._apply(tokens_BT, intervention, False).logits_BTC)

    def attention(self, tokens_BT, intervention: str = 'none') -> np.ndarray:
        """Attention weights (layers, B, heads, T queries, T keys), float32."""
        return np.asarray(self._apply(tokens_BT, intervention, True).weights_LBHTS)

    def parameters(self) -> dict[str, np.ndarray]:
        """{'net/block_0/qkv/kernel': array, ...}; qkv columns are q, k, v, each by heads."""
        leaves = jax.tree_util.tree_leaves_with_path(self.params)
        return {'/'.join(entry.key for entry in path): leaf for path, leaf in leaves}

    def sample(self, length: int, sequences: int = 1, seed: int = 0):
        """Fresh tokens and answers (B, T) of the run's task; answers are -1 where unscored."""
        plan.check_length(self.run, length)
        tokens, answers = self.run.task.sample(jax.random.key(seed), sequences, length)
        return np.asarray(tokens), np.asarray(answers)

    def accuracy(self, length: int, sequences: int = 256, intervention: str = 'none') -> np.ndarray:
        """Accuracy per position (T,), on the sequences that results.csv rests on; NaN if unscored.

        Raises:
          ValueError: the run cannot be asked for so many tokens.
        """
        counts = self._counts(length, sequences, intervention)
        return _share(counts.right_NT[0], counts.scored_T)

    def accuracy_by_depth(
        self, length: int, sequences: int = 256, intervention: str = 'none'
    ) -> np.ndarray:
        """Accuracy per tenth of the depth (10,), as in depths.csv; NaN where none is scored.

        Raises:
          ValueError: the task has no depths, or the run cannot be asked for so many tokens.
        """
        counts = self._counts(length, sequences, intervention)
        if counts.scored_D is None:
            raise ValueError(f'task {self.run.task} has no depths; ask for accuracy(length)')
        return _share(counts.right_ND[0], counts.scored_D)

    def _scheme(self, length, intervention):
        plan.check_length(self.run, length, intervention)
        return interventions.parse(intervention)(self.run.scheme, self.run.length, length)

    def _counts(self, length, sequences, intervention):
        asked = ((self._scheme(length, intervention),),)
        count = functools.partial(
            evaluation.counts, lengths=(length,), sequences=sequences, batch=64
        )
        return jax.jit(count)(self.run, self.params, asked)[0]

    def _apply(self, tokens_BT, intervention, weights):
        tokens_BT = np.asarray(tokens_BT)
        if tokens_BT.ndim != 2 or not np.issubdtype(tokens_BT.dtype, np.integer):
            raise ValueError(
                f'tokens should be integers (batch, time), got {tokens_BT.dtype}{tokens_BT.shape}'
            )
        if tokens_BT.size and not 0 <= tokens_BT.min() <= tokens_BT.max() < self.run.task.tokens:
            raise ValueError(f'tokens should be in 0..{self.run.task.tokens - 1}, '
                             f'got {tokens_BT.min()}..{tokens_BT.max()}')  # fmt: skip
        asked = self._scheme(tokens_BT.shape[1], intervention)
        model = dataclasses.replace(self.run.model, block=0) if weights else self.run.model
        return _apply(model, self.params, tokens_BT, asked, weights)


def _share(right, scored) -> np.ndarray:
    right, scored = np.asarray(right), np.asarray(scored)
    return np.divide(right, scored, out=np.full(right.shape, np.nan), where=scored > 0)


@functools.partial(jax.jit, static_argnames=('model', 'weights'))
def _apply(model, params, tokens_BT, asked, weights):
    return model_lib.apply(model, params, tokens_BT, asked, weights=weights)


def load(workdir: str | Path, task: str | None = None, scheme: str | None = None,
         seed: int | None = None, **fields) -> LoadedRun:  # fmt: skip
    """A trained run from a workdir.

    Args:
      workdir: a folder that train.py wrote.
      task, scheme, seed: which run; what the workdir has only one of may be left out. A name alone
        ('lag', 'rope') will do where one run has it.
      **fields: other swept fields, with `__` for the dot: optim__learning_rate=1e-3.

    Raises:
      ConfigError: no such run, or several; names what there is.
    """
    return Trained(workdir).load(task, scheme, seed, **fields)


class Trained:
    """The trained runs of a workdir, for whoever wants several: what they share is read once.

    Raises:
      ConfigError: it is no workdir.
    """

    def __init__(self, workdir: str | Path):
        self._work = Workdir(workdir)
        self._groups = sweep.group(plan.runs(self._work.config(), fit=False))
        self._newest = functools.lru_cache(maxsize=1)(self._read)

    def load(self, task: str | None = None, scheme: str | None = None, seed: int | None = None,
             **fields) -> LoadedRun:  # fmt: skip
        """One of them; see `load`."""
        where = self._work.path
        found = [(n, i, run) for n, g in enumerate(self._groups) for i, run in enumerate(g.runs)]
        for field, wanted, parse in (('task', task, parse_task), ('scheme', scheme, parse_scheme)):
            if wanted is not None:
                found = _select(found, field, wanted, parse, where)
        if seed is not None:
            seeds = sorted({run.seed for _, _, run in found})
            found = [f for f in found if f[2].seed == seed]
            if not found:
                raise ConfigError(f'{where} has no run with seed={seed}; it has {seeds}')
        for name, value in fields.items():
            owner, _, field = name.partition('__')
            found = [f for f in found if getattr(getattr(f[2], owner, f[2]), field, None) == value]
        if len(found) != 1:
            shown = '; '.join(f'{r.task} {r.scheme} seed {r.seed}' for _, _, r in found[:4])
            raise ConfigError(f'{len(found)} runs of {where} match; say task, scheme and seed'
                              + (f' ({shown}, ...)' if found else ''))  # fmt: skip
        ((number, row, run),) = found
        saved = self._newest(number)
        mine = jax.tree.map(lambda x: x[row], saved.tree)
        return LoadedRun(run, int(mine.step), mine.params, int(mine.failed), saved.digest)

    def _read(self, number: int) -> Saved:
        group = self._groups[number]
        with Checkpoints(self._work.checkpoints(group.name)) as kept:
            saved = kept.load(sweep.abstract(group))
        if saved is None:
            raise ConfigError(f'{self._work.path} has no checkpoint of {group.name}; '
                              'train it first')  # fmt: skip
        return saved


def _select(found, field, wanted, parse, where):
    """Runs whose text is `wanted`, or else whose name is."""
    texts = {getattr(run, field).text for _, _, run in found}
    try:
        exact = parse(wanted).text
    except ValueError as error:
        raise ConfigError(str(error)) from None
    hits = [f for f in found if getattr(f[2], field).text == exact]
    hits = hits or [f for f in found if getattr(f[2], field).name() == wanted]
    if not hits:
        raise ConfigError(f'{where} has no run with {field}={wanted!r}{suggest(wanted, texts)}')
    return hits
