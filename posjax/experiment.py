"""An experiment from config to pictures, and its evaluation again from the folder it left.

config -> runs -> groups -> chunks of steps -> checkpoints -> evaluation -> tables -> pictures
"""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from posjax import config as config_lib
from posjax import interventions, plots, results, sweep
from posjax.checkpoint import Checkpoints
from posjax.config import ConfigError
from posjax.results import Row
from posjax.sweep import Group, Machine
from posjax.training import Metrics, State
from posjax.workdir import Workdir, write_atomically

Say = Callable[[str], None]


def train(config: ConfigDict, path: str | Path, say: Say = print) -> tuple[list[Row], int]:
    """Trains and evaluates every run of a config in a folder; continues what was interrupted.

    Returns:
      The rows of results.csv, and how many runs failed (stopped being finite).

    Raises:
      ConfigError: before anything runs or is written.
    """
    runs = config_lib.runs(config)
    groups, work = sweep.group(runs), Workdir(path)
    with work.locked():
        work.claim(config)
        if all(_evaluated(work, config, group) for group in groups):
            say(f'{work.path} is finished: nothing to do (another --workdir starts afresh)')
            return _gather(work, groups)
        machine = Machine(config.mesh.devices, config.mesh.batching)
        say(f'{len(runs)} runs as {len(groups)} programs on {machine}')
        total = sum(run.steps for run in runs)
        # A bar for a person at a terminal; lines for a log file.
        with tqdm(total=total, unit='step', unit_scale=True, disable=None, smoothing=0.1) as bar:
            for number, group in enumerate(groups, start=1):
                bar.set_description(group.name)
                if _evaluated(work, config, group):
                    bar.update(group.runs[0].steps * len(group.runs))
                    continue
                state = _train_group(work, config, machine, group, bar.update)
                _evaluate_group(work, config, machine, group, state)
                if bar.disable:
                    say(f'[{number}/{len(groups)}] {group.name}')
        rows, failed = _gather(work, groups)
        metrics = [r for g in groups for r in work.metrics(g.name)]
        plots.all_figures(work.path, results.read_all(work.path), metrics)
        return rows, failed


def evaluate(
    path: str | Path,
    lengths: Sequence[int],
    words: Sequence[str],
    sequences: int,
    say: Say = print,
) -> list[Row]:
    """Evaluates the checkpoints in a folder again, into its `eval` folder.

    Runs that cannot be asked for a length (a learned table without rows for it) are named and left
    out there.

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
    able = {group.name: _able(group, lengths, words, say) for group in groups}
    if not any(able.values()):
        raise ConfigError(f'no run in {work.path} can be asked for lengths {tuple(lengths)}')
    with work.locked():
        out, request = work.path / 'eval', json.dumps(config.eval.to_dict())
        done = out / 'request.json'
        if done.exists() and done.read_text() == request:
            say(f'{out} holds this evaluation already: nothing to do')
            return results.read(out / 'results.csv')
        machine = Machine(config.mesh.devices, config.mesh.batching)
        found_tables = []
        for group in tqdm(groups, unit='group', disable=None):
            with Checkpoints(work.group(group.name) / 'checkpoints') as kept:
                found = kept.load(sweep.abstract(group))
            if found is None or found[0] < group.runs[0].steps:
                raise ConfigError(f'{work.group(group.name)} is not trained yet; run train.py with '
                                  f'--workdir {work.path} to finish it')  # fmt: skip
            state = machine.place(group, found[1])
            found_tables.append(_tables(config, machine, group, state, able[group.name]))
        tables = results.joined(found_tables)
        results.write_all(out, tables)
        plots.all_figures(out, tables, [])
        write_atomically(done, request)
        return tables['results.csv']


def _able(group: Group, lengths, words, say) -> list[int]:
    able = []
    for length in lengths:
        try:
            for run, word in itertools.product(group.runs, words):
                config_lib.check_length(run, length, word)
            able.append(length)
        except ValueError as error:
            say(f'left out at length {length}: {error}')
    return able


def _train_group(work, config, machine, group, progress) -> State:
    """The state after the last step, from the newest checkpoint or from the start."""
    size, steps = config.train.chunk, group.runs[0].steps
    with Checkpoints(work.group(group.name) / 'checkpoints', config.checkpoint.keep) as kept:
        found = kept.load(sweep.abstract(group))
        done, state = (
            (0, machine.init(group)) if found is None
            else (found[0], machine.place(group, found[1]))
        )  # fmt: skip
        work.truncate_metrics(group.name, done)
        progress(done * len(group.runs))
        saved = done
        while done < steps:
            count = min(size, steps - done)
            state, metrics = machine.chunk(group, state, count, size)
            records = _records(config, group, done, count, machine.fetch(group, metrics))
            work.append_metrics(group.name, records)
            done += count
            progress(count * len(group.runs))
            if done == steps or done - saved >= config.checkpoint.every:
                kept.save(done, machine.fetch(group, state))
                saved = done
    return state


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


def _evaluate_group(work, config, machine, group, state) -> None:
    folder = work.group(group.name)
    results.write_all(folder, _tables(config, machine, group, state, config.eval.lengths))
    failed = [int(step) for step in machine.fetch(group, state.failed)]
    write_atomically(
        folder / 'evaluated.json',
        json.dumps({'eval': config.eval.to_dict(), 'failed_at': failed}) + '\n',
    )


def _tables(config, machine, group, state, lengths) -> results.Tables:
    """Rows of all runs of a group."""
    words = list(config.eval.interventions)
    changes = [interventions.parse(word) for word in words]
    found = []
    for length in lengths:
        # At one length all scalings of a rotation have one structure, and so are one program.
        schemes = [[change(run.scheme, run.length, length).at(run.model.dims, length)
                    for change in changes] for run in group.runs]  # fmt: skip
        counts = machine.evaluate(
            group, state.params, schemes, length, config.eval.sequences, config.eval.batch
        )
        for i, run in enumerate(group.runs):
            mine = jax.tree.map(lambda x, i=i: x[i], counts)
            texts = [change.text for change in changes]
            found.append(results.tables_of(run, _extra(config, run), length, texts, mine))
    return results.joined(found)


def _extra(config, run) -> Row:
    """What a sweep varies beside task, scheme, length and seed, for one of its runs."""
    values = {}
    for name in config_lib.swept(config):
        group, field = name.split('.')
        values[name] = getattr(run if group == 'train' else getattr(run, group), field)
    return values


def _evaluated(work, config, group) -> bool:
    """Whether a group is trained and evaluated as the config asks."""
    path = work.group(group.name) / 'evaluated.json'
    return path.exists() and json.loads(path.read_text())['eval'] == json.loads(
        json.dumps(config.eval.to_dict())
    )


def _gather(work, groups) -> tuple[list[Row], int]:
    """Tables of the whole folder from those of its groups, and how many runs failed."""
    folders = [work.group(group.name) for group in groups]
    tables = results.joined(map(results.read_all, folders))
    results.write_all(work.path, tables)
    records = [json.loads((folder / 'evaluated.json').read_text()) for folder in folders]
    failed = sum(step >= 0 for record in records for step in record['failed_at'])
    return tables['results.csv'], failed
