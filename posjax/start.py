"""Runs that start from trained parameters: a fine-tune at another length, or under another scheme.

Each run takes the parameters of the run with its task and seed in another workdir. Its optimiser is
fresh, and it goes on counting steps where that one stopped, so that it sees no batch again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax import sweep
from posjax.analysis import LoadedRun, Trained
from posjax.checkpoint import Saved
from posjax.config import ConfigError
from posjax.run import Run
from posjax.scheme import Params
from posjax.sweep import Group


class Start(NamedTuple):
    """Where a group starts: parameters (R, ...), steps they were trained for (R,), and a note of
    where they come from, in JSON."""

    params: Params
    step: np.ndarray
    note: dict[str, Any]

    def __call__(self, fresh: Saved) -> Saved:
        """What stands before the first step: fresh, but for what was trained."""
        state = fresh.tree._replace(params=self.params, step=self.step)
        return fresh._replace(tree=state, notes=fresh.notes | {'start': self.note})


def load(config: ConfigDict, groups: Sequence[Group]) -> dict[str, Start]:
    """Where groups start that start from another workdir, by name; {} where none does.

    Raises:
      ConfigError: there is no such workdir or run, it failed, or its parameters do not fit.
    """
    if not config.start.workdir or not groups:
        return {}
    trained = Trained(config.start.workdir)
    return {group.name: _of_group(config, trained, group) for group in groups}


def _of_group(config, trained: Trained, group: Group) -> Start:
    fitting = jax.tree.map(lambda leaf: leaf.shape[1:], sweep.abstract(group).params)
    found = [
        trained.load(run.task.text, config.start.scheme or run.scheme.text, run.seed)
        for run in group.runs
    ]  # fmt: skip
    for run, source in zip(group.runs, found, strict=True):
        _check(config, run, source, fitting)
    return Start(
        jax.tree.map(lambda *leaves: np.stack(leaves), *(source.params for source in found)),
        np.asarray([source.step for source in found], np.int32),
        {
            'workdir': config.start.workdir,
            'scheme': found[0].run.scheme.text,
            'step': found[0].step,
            'checkpoint': found[0].checkpoint,
        },
    )


def _check(config, run: Run, source: LoadedRun, fitting) -> None:
    where = f'config.start.workdir={config.start.workdir!r}'
    if source.failed >= 0:
        raise ConfigError(f'{where}: {run.task} {source.run.scheme} seed {run.seed} stopped being '
                          f'finite at step {source.failed}; start from another')  # fmt: skip
    shapes = jax.tree.map(lambda leaf: leaf.shape, source.params)
    wanted, got = (
        {jax.tree_util.keystr(path): shape for path, shape in jax.tree_util.tree_leaves_with_path(
            tree, is_leaf=lambda x: isinstance(x, tuple))}
        for tree in (fitting, shapes)
    )  # fmt: skip
    for name in sorted(wanted.keys() | got.keys()):
        there, here = got.get(name, 'absent'), wanted.get(name, 'absent')
        if there != here:
            raise ConfigError(
                f'{where}: the parameters of {source.run.scheme} do not fit {run.scheme}: {name} '
                f'is {there} there and {here} here; start from a run of the same model'
            )
