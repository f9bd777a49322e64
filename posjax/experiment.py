"""An experiment from config to pictures, and its evaluation again from the folder it left.

config -> runs -> groups -> chunks of steps -> checkpoints -> evaluation -> tables -> pictures
"""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from posjax import config as config_lib
from posjax import interventions, memory, plots, provenance, results, sweep
from posjax.checkpoint import Checkpoints, Saved
from posjax.config import ConfigError
from posjax.results import Row
from posjax.signals import Asked, Interrupted
from posjax.sweep import Group, Machine
from posjax.training import Metrics
from posjax.workdir import Workdir, write_atomically

Say = Callable[[str], None]

_TABLES = {'results.csv': results.COLUMNS, 'positions.csv': results.POSITION_COLUMNS}


def train(
    config: ConfigDict, path: str | Path, say: Say = print, asked: Asked = lambda: None
) -> tuple[list[Row], int]:
    """Trains and evaluates every run of a config in a folder; continues what was interrupted.

    Args:
      say: takes lines for a person.
      asked: gives a signal's number once the process is asked to stop; looked at after each chunk.

    Returns:
      The rows of results.csv, and how many runs failed (stopped being finite).

    Raises:
      ConfigError: before anything runs or is written.
      SaveError, OSError: the disk is full, or cannot be written; earlier checkpoints are whole.
      Interrupted: it was asked to stop; everything is saved.
    """
    runs = config_lib.runs(config)
    groups, work, machine = sweep.group(runs), Workdir(path), _machine(config)
    memory.check_training(groups, machine)
    memory.check_evaluation(groups, machine, config.eval)
    with work.locked():
        work.claim(config)
        if all(_evaluated(work, config, group) for group in groups):
            say(f'{work.path} is finished: nothing to do (another --workdir starts afresh)')
            return _gather(work, groups, say)
        say(f'{len(runs)} runs as {len(groups)} programs on {machine}')
        total = sum(run.steps for run in runs)
        # A bar for a person at a terminal; lines for a log file.
        with tqdm(total=total, unit='step', unit_scale=True, disable=None, smoothing=0.1) as bar:
            for number, group in enumerate(groups, start=1):
                bar.set_description(group.name)
                _stop_if(asked, f'before {group.name}')
                if _evaluated(work, config, group):
                    bar.update(group.runs[0].steps * len(group.runs))
                    continue
                trained = _train_group(work, config, machine, group, bar.update, asked)
                _evaluate_group(work, config, machine, group, trained, asked)
                if bar.disable:
                    say(f'[{number}/{len(groups)}] {group.name}')
        rows, failed = _gather(work, groups, say)
        plots.all_figures(work.path, rows, results.read(work.path / 'positions.csv', ()),
                          [r for g in groups for r in work.metrics(g.name)])  # fmt: skip
        return rows, failed


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
    work = Workdir(path)
    config = work.config()
    config.eval.lengths, config.eval.interventions = tuple(lengths), tuple(words)
    config.eval.sequences = sequences
    config_lib.check(config)
    try:
        for word in words:
            interventions.parse(word)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    groups = sweep.group(config_lib.runs(config, fit=False))
    able = {group.name: _able(group, lengths, say) for group in groups}
    if not any(able.values()):
        raise ConfigError(f'no run in {work.path} can be asked for lengths {tuple(lengths)}')
    machine = _machine(config)
    memory.check_evaluation(groups, machine, config.eval, able)
    with work.locked():
        out = work.path / 'eval'
        if _holds(out, 'request.json', config.eval):
            records = json.loads((out / 'provenance.json').read_text())
            say(f'{out} holds this evaluation already: nothing to do')
            return results.read(out / 'results.csv'), _failed(records, say)
        rows, by_position, records = [], [], {}
        for group in tqdm(groups, unit='group', disable=None):
            with Checkpoints(work.group(group.name) / 'checkpoints') as kept:
                found = kept.load(sweep.abstract(group))
            if found is None or found.step < group.runs[0].steps:
                raise ConfigError(
                    f'{work.group(group.name)} has no whole checkpoint of its last step; run '
                    f'train.py with --workdir {work.path} to finish it'
                )
            more = _tables(config, machine, group, found.tree, able[group.name])
            rows, by_position = rows + more[0], by_position + more[1]
            records[group.name] = _record(config, machine, group, found)
        results.write(out / 'results.csv', rows)
        results.write(out / 'positions.csv', by_position, results.POSITION_COLUMNS)
        plots.all_figures(out, rows, by_position, [])
        _write_json(out / 'provenance.json', records)
        request = {'eval': config.eval.to_dict(), 'files': provenance.of_files(out, _TABLES)}
        _write_json(out / 'request.json', request)
        return rows, _failed(records, say)


def _machine(config) -> Machine:
    try:
        return Machine(config.mesh.devices, config.mesh.batching)
    except ValueError as error:
        raise ConfigError(f'config.{error}') from None


def _able(group: Group, lengths, say) -> list[int]:
    able = []
    for length in lengths:
        try:
            for run in group.runs:
                config_lib.check_length(run, length)
            able.append(length)
        except ValueError as error:
            say(f'left out at length {length}: {error}')
    return able


def _train_group(work, config, machine, group, progress, asked) -> Saved:
    """What its last step leaves, from the newest checkpoint or from the start."""
    size, steps = config.train.chunk, group.runs[0].steps
    now = provenance.environment(machine)
    with Checkpoints(work.group(group.name) / 'checkpoints', config.checkpoint.keep) as kept:
        kept.discard_unfinished()
        found = kept.load(sweep.abstract(group))
        notes = {'sessions': provenance.sessions(found, now)}
        _warn_of_change(group, notes['sessions'])
        last = found or Saved(0, machine.fetch(group, machine.init(group)), '', notes)
        done, state = last.step, machine.place(group, last.tree)
        work.truncate_metrics(group.name, done)
        progress(done * len(group.runs))
        while done < steps:
            count = min(size, steps - done)
            state, metrics = machine.chunk(group, state, count, size)
            records = _records(config, group, done, count, machine.fetch(group, metrics))
            work.append_metrics(group.name, records)
            done += count
            progress(count * len(group.runs))
            if done == steps or asked() or done - last.step >= config.checkpoint.every:
                tree = machine.fetch(group, state)
                last = Saved(done, tree, kept.save(done, tree, notes), notes)
            if asked():
                break
    _stop_if(asked, f'at step {done} of {steps} of {group.name}, which is saved')
    return last


def _stop_if(asked, where) -> None:
    if asked():
        raise Interrupted(asked(), f'{where}; the same command goes on from there')


def _warn_of_change(group, sessions) -> None:
    """Says how a resumed group's machine differs: equality to the bit needs an equal one."""
    if len(sessions) > 1:
        changed = provenance.differences(*(s['environment'] for s in sessions[-2:]))
        logging.getLogger(__name__).warning(
            '%s goes on in another environment, so equal within rounding only: %s',
            group.name, '; '.join(changed),
        )  # fmt: skip


def _records(config, group, done: int, count: int, metrics: Metrics) -> list[dict]:
    """Lines of metrics: means over windows of `log_every` steps that end at their `step`."""
    every, records = config.train.log_every, []
    for start in range(0, count, every):
        window = slice(start, min(start + every, count))
        for i, run in enumerate(group.runs):
            records.append(
                {'task': run.task.text, 'scheme': run.scheme.text, 'seed': run.seed}
                | _extra(config, run)
                | {'step': done + window.stop}
                | {k: float(np.mean(v[i, window])) for k, v in metrics._asdict().items()}
            )
    return records


def _evaluate_group(work, config, machine, group, trained: Saved, asked) -> None:
    folder = work.group(group.name)
    rows, by_position = _tables(config, machine, group, trained.tree, config.eval.lengths, asked)
    results.write(folder / 'results.csv', rows)
    results.write(folder / 'positions.csv', by_position, results.POSITION_COLUMNS)
    record = _record(config, machine, group, trained)
    _write_json(folder / 'evaluated.json', record | {'files': provenance.of_files(folder, _TABLES)})


def _record(config, machine, group, trained: Saved) -> dict[str, Any]:
    """What a group's figures rest on; see provenance.py."""
    return {
        'runs': [
            {'task': run.task.text, 'scheme': run.scheme.text, 'seed': run.seed,
             'train_length': run.length, **_extra(config, run),
             'dtype': run.model.dtype, 'precision': run.model.precision}
            for run in group.runs
        ],
        'failed_at': [int(step) for step in trained.tree.failed],
        'checkpoint': {'step': trained.step, 'digest': trained.digest, **trained.notes},
        'config': provenance.of_config(config),
        'eval': config.eval.to_dict(),
        'environment': provenance.environment(machine),
    }  # fmt: skip


def _write_json(path, value) -> None:
    write_atomically(path, json.dumps(value, indent=1) + '\n')


def _tables(
    config, machine, group, state, lengths, asked: Asked = lambda: None
) -> tuple[list[Row], list[Row]]:
    """Rows and per-position rows of all runs of a group."""
    words = list(config.eval.interventions)
    changes = [interventions.parse(word) for word in words]
    params = machine.place(group, state.params)
    rows, by_position = [], []
    for length in lengths:
        _stop_if(asked, f'while {group.name} was evaluated')
        schemes = [[change(run.scheme, run.length, length) for change in changes]
                   for run in group.runs]  # fmt: skip
        counts = machine.evaluate(
            group, params, schemes, length, config.eval.sequences, config.eval.batch
        )
        for i, run in enumerate(group.runs):
            mine = type(counts)(*(x[i] for x in counts))
            if state.failed[i] >= 0:  # what a run knew when it failed is no result of its training
                mine = mine._replace(right_NT=np.full_like(mine.right_NT, np.nan))
            texts = [change.text for change in changes]
            more = results.rows_of(run, _extra(config, run), length, texts, mine)
            rows, by_position = rows + more[0], by_position + more[1]
    return rows, by_position


def _extra(config, run) -> Row:
    """What a sweep varies beside task, scheme, length and seed, for one of its runs."""
    values = {}
    for name in config_lib.swept(config):
        group, field = name.split('.')
        values[name] = getattr(run if group == 'train' else getattr(run, group), field)
    return values


def _evaluated(work, config, group) -> bool:
    """Whether a group is trained and evaluated as the config asks, and all of it is whole."""
    folder = work.group(group.name)
    if not _holds(folder, 'evaluated.json', config.eval):
        return False
    with Checkpoints(folder / 'checkpoints') as kept:
        found = kept.load(sweep.abstract(group))
    return found is not None and found.step == group.runs[0].steps


def _holds(folder: Path, name: str, wanted) -> bool:
    """Whether a folder's tables are those of an evaluation, and as they were written."""
    try:
        told = json.loads((folder / name).read_text())
        same = told['eval'] == json.loads(json.dumps(wanted.to_dict()))
        return same and told['files'] == provenance.of_files(folder, _TABLES)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _gather(work, groups, say) -> tuple[list[Row], int]:
    """results.csv and positions.csv of all groups, and how many runs failed."""
    tables: dict[str, list[Row]] = {name: [] for name in _TABLES}
    records = {}
    for group in groups:
        folder = work.group(group.name)
        for name, rows in tables.items():
            rows += results.read(folder / name, ())
        records[group.name] = json.loads((folder / 'evaluated.json').read_text())
    for name, columns in _TABLES.items():
        results.write(work.path / name, tables[name], columns)
    _write_json(work.path / 'provenance.json', records)
    return tables['results.csv'], _failed(records, say)


def _failed(records: dict[str, Any], say: Say) -> int:
    """How many runs failed, after saying which."""
    failed = [
        f'{run["task"]} {run["scheme"]} seed {run["seed"]} at step {step}'
        for record in records.values()
        for run, step in zip(record['runs'], record['failed_at'], strict=True)
        if step >= 0
    ]
    if failed:
        say(f'{len(failed)} runs stopped being finite and have no results: {"; ".join(failed)}')
    return len(failed)
