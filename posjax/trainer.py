"""Training one group of runs: from its newest checkpoint, or where it begins, to its last step.

checkpoint -> state on the devices -> chunks of steps, each with metrics -> checkpoints

Of several hosts all compute, and the first alone reads and writes (hosts.py).
"""

import logging
from collections.abc import Callable

import jax
import numpy as np
from ml_collections import ConfigDict

from posjax import hosts, outcome, provenance, sweep
from posjax.checkpoint import Checkpoints, Saved
from posjax.signals import Asked, Interrupted
from posjax.start import Start
from posjax.sweep import Group, Machine
from posjax.training import Metrics
from posjax.workdir import Workdir


def train(
    config: ConfigDict, work: Workdir, machine: Machine, group: Group, begin: Start | None,
    progress: Callable[[int], None], asked: Asked,
) -> Saved:  # fmt: skip
    """What the group's last step leaves.

    Args:
      begin: where it begins, on the first host, if not from fresh parameters.
      progress: is told of steps, of all runs together.
      asked: gives a signal's number once the process is asked to stop; looked at after each chunk.

    Raises:
      Interrupted: it was asked to; the step is saved.
      SaveError, OSError: the disk is full, or cannot be written; earlier checkpoints are whole.
    """
    size, steps = config.train.chunk, group.runs[0].steps
    now = provenance.environment(machine)
    with Checkpoints(work.checkpoints(group.name), config.checkpoint.keep) as kept:
        hosts.shared(kept.discard_unfinished)
        found = last = newest(kept, group)
        if last is None:
            fresh = Saved(0, machine.fetch(group, machine.init(group)), '', {})
            last = _from_first(lambda: begin(fresh) if begin else fresh, fresh.tree)
        notes = last.notes | {'sessions': provenance.sessions(found, now)}
        _warn_of_change(group, notes['sessions'])
        done, state = last.step, machine.place(group, last.tree)
        hosts.shared(lambda: work.truncate_metrics(group.name, done))
        progress(done * len(group.runs))
        while done < steps:
            count = min(size, steps - done)
            state, metrics = machine.chunk(group, state, count, size)
            records = _records(config, group, done, count, machine.fetch(group, metrics))
            hosts.shared(lambda: work.append_metrics(group.name, records))
            done += count
            progress(count * len(group.runs))
            stop = asked()
            if done == steps or stop or done - last.step >= config.checkpoint.every:
                tree = machine.fetch(group, state)
                digest = hosts.shared(lambda: kept.save(done, tree, notes))
                last = Saved(done, tree, digest, notes)
            if stop:
                break
        hosts.shared(kept.wait)
    stop_if(asked, f'at step {done} of {steps} of {group.name}, which is saved')
    return last


def newest(kept: Checkpoints, group: Group) -> Saved | None:
    """The newest checkpoint that verifies, on all hosts."""
    like = sweep.abstract(group)
    return _from_first(lambda: kept.load(like), like)


def _from_first(make: Callable[[], Saved | None], like) -> Saved | None:
    """What `make` gives on the first host, on all; `like` has the shapes of its tree."""
    trees = []

    def head():
        saved = make()
        if saved is not None:
            trees.append(saved.tree)
            return saved._replace(tree=None)

    told = hosts.shared(head)
    if told is None:
        return None
    (tree,) = trees or [jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)]
    return Saved(*told)._replace(tree=hosts.from_first(tree))


def stop_if(asked: Asked, where: str) -> None:
    """Raises Interrupted if the process was asked to stop."""
    if number := asked():
        raise Interrupted(number, f'{where}; the same command goes on from there')


def _warn_of_change(group, sessions) -> None:
    """Says how a resumed group's machine differs: equality to the bit needs an equal one."""
    if len(sessions) > 1 and hosts.first():
        changed = provenance.differences(*(s['environment'] for s in sessions[-2:]))
        logging.getLogger(__name__).warning(
            '%s goes on in another environment, so equal within rounding only: %s',
            group.name, '; '.join(changed),
        )  # fmt: skip


def _records(config, group, done: int, count: int, metrics: Metrics) -> list[dict]:
    """Lines of metrics: means over windows of `log_every` steps that end at their `step`."""
    every, records = config.train.log_every, []
    for first in range(0, count, every):
        window = slice(first, min(first + every, count))
        for i, run in enumerate(group.runs):
            records.append(
                {'task': run.task.text, 'scheme': run.scheme.text, 'seed': run.seed}
                | outcome.varied(config, run)
                | {'step': done + window.stop}
                | {k: float(np.mean(v[i, window])) for k, v in metrics._asdict().items()}
            )
    return records
