"""An experiment from config to pictures, and its evaluation again from the folder it left.

config -> runs -> groups -> chunks of steps -> checkpoints -> evaluation -> tables -> pictures
"""

import functools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from posjax import config as config_lib
from posjax import hosts, memory, outcome, plots, provenance, results, start, sweep
from posjax.checkpoint import Checkpoints, Saved, committed
from posjax.config import ConfigError
from posjax.results import Row
from posjax.signals import Asked, Interrupted
from posjax.sweep import Machine
from posjax.training import Metrics
from posjax.workdir import Workdir

Say = Callable[[str], None]

# The record of a group's tables, of a whole workdir's, and of an evaluation asked for again.
_OF_GROUP, _OF_ALL, _OF_REQUEST = 'evaluated.json', 'provenance.json', 'request.json'


def train(
    config: ConfigDict,
    path: str | Path,
    say: Say = print,
    asked: Asked = lambda: None,
    shard: tuple[int, int] = (0, 1),
) -> tuple[list[Row], int]:
    """Trains and evaluates every run of a config in a folder; continues what was interrupted.

    Args:
      say: takes lines for a person.
      asked: gives a signal's number once the process is asked to stop; looked at after each chunk.
      shard: (i, n) takes every n-th group from the i-th on; whichever shard ends last makes the
        tables and pictures of all.

    Returns:
      The rows of results.csv, and how many runs failed (stopped being finite); of a shard that does
      not end last, those of its own groups.

    Raises:
      ConfigError: before anything runs or is written.
      SaveError, OSError: the disk is full, or cannot be written; earlier checkpoints are whole.
      Interrupted: it was asked to stop; everything is saved.
    """
    everything = sweep.group(config_lib.runs(config))
    groups = everything[shard[0] :: shard[1]]
    work, machine = Workdir(path), _machine(config)
    say, asked = _said(say), hosts.agreed(asked)
    memory.check_training(groups, machine)
    memory.check_evaluation(groups, machine, config.eval)
    starts = {}  # on the first host alone
    hosts.shared(lambda: starts.update(_starts(config, work, groups)))
    names = None if shard == (0, 1) else [group.name for group in groups]
    with hosts.entered(work.locked(names)):
        hosts.shared(lambda: work.claim(config))
        done = hosts.shared(lambda: [g.name for g in groups if _evaluated(work, config, g)])
        if len(done) == len(everything):
            say(f'{work.path} is finished: nothing to do (another --workdir starts afresh)')
            return hosts.shared(lambda: _gather(work, groups, say))
        runs = [run for group in groups for run in group.runs]
        part = f' (of {len(everything)})' if names is not None else ''
        say(f'{len(runs)} runs as {len(groups)} programs{part} on {machine}')
        questions, left_out = outcome.askable(config, groups, config.eval.lengths)
        for line in left_out:
            say(line)
        total = sum(run.steps for run in runs)
        # A bar for a person at a terminal; lines for a log file.
        hidden = None if hosts.first() else True
        with tqdm(total=total, unit='step', unit_scale=True, disable=hidden, smoothing=0.1) as bar:
            for number, group in enumerate(groups, start=1):
                bar.set_description(group.name)
                _stop_if(asked, f'before {group.name}')
                if group.name in done:
                    bar.update(group.runs[0].steps * len(group.runs))
                    continue
                begin = starts.get(group.name)
                trained = _train_group(work, config, machine, group, begin, bar.update, asked)
                pause = functools.partial(_stop_if, asked, f'while {group.name} was evaluated')
                about = questions[group.name]
                made = outcome.tables(config, machine, group, trained, about, pause)
                told = outcome.record(config, machine, group, trained)
                folder = work.group(group.name)
                hosts.shared(lambda: outcome.keep(folder, _OF_GROUP, made, told))
                if bar.disable:
                    say(f'[{number}/{len(groups)}] {group.name}')
        return hosts.shared(lambda: _finish(work, config, groups, everything, say))


def evaluate(
    path: str | Path,
    lengths: Sequence[int],
    words: Sequence[str],
    sequences: int,
    say: Say = print,
) -> tuple[list[Row], int]:
    """Evaluates the checkpoints in a folder again, into its `eval` folder.

    Runs that cannot be asked for a length (a learned table without rows for it) are named and left
    out there.

    Returns:
      The rows of eval/results.csv, and how many runs had failed in training.

    Raises:
      ConfigError: no such folder, an unknown intervention, or no run that can be asked.
    """
    work, say = Workdir(path), _said(say)
    config = config_lib.from_json(hosts.shared(lambda: config_lib.to_json(work.config())))
    config.eval.lengths, config.eval.interventions = tuple(lengths), tuple(words)
    config.eval.sequences = sequences
    config.mesh = config_lib.default().mesh  # of this machine, wherever it was trained
    config_lib.check(config)
    groups = sweep.group(config_lib.runs(config, fit=False))
    asked, left_out = outcome.askable(config, groups, lengths)
    for line in left_out:
        say(line)
    if not any(asked.values()):
        raise ConfigError(f'no run in {work.path} can be asked for lengths {tuple(lengths)}')
    machine = _machine(config)
    memory.check_evaluation(groups, machine, config.eval, asked)
    with hosts.entered(work.locked()):
        out = work.path / 'eval'
        if hosts.shared(lambda: outcome.is_whole(out, _OF_REQUEST, config.eval)):
            say(f'{out} holds this evaluation already: nothing to do')
            return hosts.shared(lambda: _answered(out, say))
        found_tables, records = [], {}
        for group in tqdm(groups, unit='group', disable=None if hosts.first() else True):
            with Checkpoints(_checkpoints(work, group)) as kept:
                found = _newest(kept, group)
            if found is None or found.step < group.runs[0].steps:
                raise ConfigError(
                    f'{work.group(group.name)} has no whole checkpoint of its last step; run '
                    f'train.py with --workdir {work.path} to finish it'
                )
            found_tables.append(outcome.tables(config, machine, group, found, asked[group.name]))
            records[group.name] = outcome.record(config, machine, group, found)
        tables = results.joined(found_tables)

        def finish():
            plots.all_figures(out, tables, [])
            outcome.write_json(out / _OF_ALL, records)
            outcome.keep(out, _OF_REQUEST, tables, {'eval': config.eval.to_dict()})
            return tables['results.csv'], _failed(records, say)

        return hosts.shared(finish)


def _checkpoints(work, group) -> Path:
    return work.group(group.name) / 'checkpoints'


def _machine(config) -> Machine:
    try:
        machine = Machine(**config.mesh.to_dict())
    except ValueError as error:
        raise ConfigError(f'config.{error}') from None
    given = {f'config.{name}': value for name, value in config_lib.flatten(config).items()}
    try:
        hosts.check_alike(given | provenance.environment(machine))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return machine


def _said(say: Say) -> Say:
    """Of several processes, the first speaks."""
    return say if hosts.first() else lambda line: None


def _starts(config, work, groups) -> dict[str, start.Start]:
    return start.load(config, [g for g in groups if not committed(_checkpoints(work, g))])


def _newest(kept: Checkpoints, group) -> Saved | None:
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
    return Saved(*told)._replace(tree=hosts.spread(tree))


def _train_group(work, config, machine, group, begin, progress, asked) -> Saved:
    """What its last step leaves, from the newest checkpoint or from where it begins."""
    size, steps = config.train.chunk, group.runs[0].steps
    now = provenance.environment(machine)
    with Checkpoints(_checkpoints(work, group), config.checkpoint.keep) as kept:
        hosts.shared(kept.discard_unfinished)
        found = last = _newest(kept, group)
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
    _stop_if(asked, f'at step {done} of {steps} of {group.name}, which is saved')
    return last


def _stop_if(asked, where) -> None:
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


def _evaluated(work, config, group) -> bool:
    """Whether a group is trained and evaluated as the config asks, and all of it is whole."""
    folder = work.group(group.name)
    if not outcome.is_whole(folder, _OF_GROUP, config.eval):
        return False
    with Checkpoints(_checkpoints(work, group)) as kept:
        found = kept.load(sweep.abstract(group))
    return found is not None and found.step == group.runs[0].steps


def _finish(work, config, groups, everything, say) -> tuple[list[Row], int]:
    """Tables and pictures of the whole folder, where no shard has groups left to do."""
    left = [g for g in everything if g not in groups and not _evaluated(work, config, g)]
    if left:
        say(f'{len(left)} of {len(everything)} programs are left to other shards; the last one '
            'makes the tables of all')  # fmt: skip
        tables, records = _of_groups(work, groups)
        return tables['results.csv'], _failed(records, say)
    rows, failed = _gather(work, everything, say)
    metrics = [r for g in everything for r in work.metrics(g.name)]
    plots.all_figures(work.path, results.read_all(work.path), metrics)
    return rows, failed


def _gather(work, groups, say) -> tuple[list[Row], int]:
    """Tables of the whole folder from those of its groups, and how many runs failed."""
    tables, records = _of_groups(work, groups)
    results.write_all(work.path, tables)
    outcome.write_json(work.path / _OF_ALL, records)
    return tables['results.csv'], _failed(records, say)


def _of_groups(work, groups) -> tuple[results.Tables, dict[str, dict]]:
    """The groups' tables, joined, and the record of each."""
    folders = {group.name: work.group(group.name) for group in groups}
    tables = results.joined(map(results.read_all, folders.values()))
    return tables, {name: json.loads((f / _OF_GROUP).read_text()) for name, f in folders.items()}


def _answered(out: Path, say: Say) -> tuple[list[Row], int]:
    """What an evaluation left before."""
    return results.read(out / 'results.csv'), _failed(json.loads((out / _OF_ALL).read_text()), say)


def _failed(records, say: Say) -> int:
    """How many runs failed, after saying which."""
    failed = outcome.failures(records)
    if failed:
        say(f'{len(failed)} runs stopped being finite and have no results: {"; ".join(failed)}')
    return len(failed)
