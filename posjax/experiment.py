"""An experiment from config to pictures, and its evaluation again from the folder it left.

config -> runs -> groups -> chunks of steps -> checkpoints -> evaluation -> tables -> pictures
"""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from ml_collections import ConfigDict
from tqdm import tqdm

from posjax import config as config_lib
from posjax import hosts, memory, outcome, plan, plots, provenance, results, start, sweep, trainer
from posjax.ahead import Ahead
from posjax.checkpoint import Checkpoints, committed
from posjax.config import ConfigError
from posjax.results import Row
from posjax.signals import Asked
from posjax.sweep import Machine
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
    everything = sweep.group(plan.runs(config))
    groups = everything[shard[0] :: shard[1]]
    work, machine = Workdir(path), _machine(config, shard='{}/{}'.format(*shard))
    say, asked = _said(say), hosts.agreed(asked)
    hosts.together(lambda: memory.check_training(groups, machine))
    hosts.together(lambda: memory.check_evaluation(groups, machine, config.eval))
    starts = {}  # on the first host alone
    hosts.shared(lambda: starts.update(_starts(config, work, groups)))
    names = None if shard == (0, 1) else [group.name for group in groups]
    with hosts.entered(work.locked(names)):
        hosts.shared(lambda: work.claim(config))
        done = hosts.shared(lambda: [g.name for g in groups if _evaluated(work, config, g)])
        if len(done) == len(everything):
            say(f'{work.path} is finished: nothing to do (another --workdir starts afresh)')
            return hosts.shared(lambda: _gather(work, everything, say))
        runs = [run for group in groups for run in group.runs]
        part = f' (of {len(everything)})' if names is not None else ''
        say(f'{len(runs)} runs as {len(groups)} programs{part} on {machine}')
        questions, left_out = outcome.askable(config, groups, config.eval.lengths)
        for line in (*outcome.attention(groups), *left_out):
            say(line)
        total = sum(run.steps for run in runs)
        left = [group for group in groups if group.name not in done]
        untrained = hosts.shared(lambda: [g.name for g in left if not _is_trained(work, g)])
        # A bar for a person at a terminal; lines for a log file.
        hidden = None if hosts.first() else True
        with _ahead() as ahead, tqdm(total=total, unit='step', unit_scale=True, disable=hidden,
                                     smoothing=0.1) as bar:  # fmt: skip
            bar.update(total - sum(run.steps for group in left for run in group.runs))
            for group, rest in _with_rest(left):
                bar.set_description(group.name)
                trainer.stop_if(asked, f'before {group.name}')
                about = questions[group.name]
                # The first group was not prepared as the one after another.
                for each in (group, *rest[:1]):
                    if each.name in untrained:
                        ahead.later(each.name, machine.prepare_training, each, config.train.chunk)
                ahead.later(group.name, outcome.prepare, config, machine, group, about)
                begin = starts.get(group.name)
                trained = trainer.train(config, work, machine, group, begin, bar.update, asked)
                pause = functools.partial(
                    trainer.stop_if, asked, f'while {group.name} was evaluated'
                )
                made = outcome.tables(config, machine, group, trained, about, pause)
                told = outcome.record(config, machine, group, trained)
                folder = work.group(group.name)
                hosts.shared(lambda: outcome.keep(folder, _OF_GROUP, made, told))
                ahead.drop(group.name)
                machine.forget(group, rest)
                if bar.disable:
                    say(f'[{groups.index(group) + 1}/{len(groups)}] {group.name}')
        return hosts.shared(lambda: _finish(work, config, groups, everything, say))


def evaluate(
    path: str | Path,
    lengths: Sequence[int] | None = None,
    words: Sequence[str] | None = None,
    sequences: int | None = None,
    say: Say = print,
) -> tuple[list[Row], int]:
    """Evaluates the checkpoints in a folder again, into its `eval` folder.

    Lengths, interventions (`words`) and the number of sequences are the config's where not given.
    Runs that cannot be asked for a length (a learned table without rows for it) are named and left
    out there.

    Returns:
      The rows of eval/results.csv, and how many runs had failed in training.

    Raises:
      ConfigError: no such folder, an unknown intervention, or no run that can be asked.
    """
    work, say = Workdir(path), _said(say)
    config = config_lib.from_json(hosts.shared(lambda: config_lib.to_json(work.config())))
    for field, value in (('lengths', lengths), ('interventions', words), ('sequences', sequences)):
        if value is not None:
            config.eval[field] = value if field == 'sequences' else tuple(value)
    config_lib.check(config)
    machine = _machine_of(config)
    groups = sweep.group(plan.runs(config, fit=False))
    asked, left_out = outcome.askable(config, groups, config.eval.lengths)
    for line in (*outcome.attention(groups), *left_out):
        say(line)
    if not any(asked.values()):
        raise ConfigError(f'no run in {work.path} can be asked for lengths '
                          f'{config.eval.lengths}')  # fmt: skip
    hosts.together(lambda: memory.check_evaluation(groups, machine, config.eval, asked))
    with hosts.entered(work.locked()):
        out = work.path / 'eval'
        if hosts.shared(lambda: outcome.is_whole(out, _OF_REQUEST, config.eval)):
            say(f'{out} holds this evaluation already: nothing to do')
            return hosts.shared(lambda: _answered(out, say))
        found_tables, records = [], {}
        hidden = None if hosts.first() else True
        with _ahead() as ahead:
            for group, rest in tqdm(_with_rest(groups), unit='group', disable=hidden):
                for after in rest[:1]:
                    about = asked[after.name]
                    ahead.later(after.name, outcome.prepare, config, machine, after, about)
                with Checkpoints(work.checkpoints(group.name)) as kept:
                    found = trainer.newest(kept, group)
                if found is None or found.step < group.runs[0].steps:
                    raise ConfigError(
                        f'{work.group(group.name)} has no whole checkpoint of its last step; run '
                        f'train.py with --workdir {work.path} to finish it'
                    )
                about = asked[group.name]
                found_tables.append(outcome.tables(config, machine, group, found, about))
                records[group.name] = outcome.record(config, machine, group, found)
                ahead.drop(group.name)
                machine.forget(group, rest)
        tables = results.joined(found_tables)

        def finish():
            plots.all_figures(out, tables, [])
            outcome.write_json(out / _OF_ALL, records)
            outcome.keep(out, _OF_REQUEST, tables, {'eval': config.eval.to_dict()})
            return tables['results.csv'], _failed(records, say)

        return hosts.shared(finish)


def _with_rest(
    groups: Sequence[sweep.Group],
) -> list[tuple[sweep.Group, Sequence[sweep.Group]]]:
    """Each group and those after it."""
    return [(group, groups[number:]) for number, group in enumerate(groups, start=1)]


def _ahead() -> Ahead:
    # Several hosts compile together, in one order.
    return Ahead(active=not hosts.several())


def _machine_of(config) -> Machine:
    """Devices as the runs were trained on, or all, where this machine has not those."""
    try:
        machine = Machine(**config.mesh.to_dict())
    except ValueError:
        config.mesh = config_lib.default().mesh
        return _machine(config)
    return _alike(config, machine)


def _machine(config, **more: str) -> Machine:
    """Devices as the config asks, with all hosts asking for the same (`more` included)."""
    try:
        machine = Machine(**config.mesh.to_dict())
    except ValueError as error:
        raise ConfigError(f'config.{error}') from None
    return _alike(config, machine, **more)


def _alike(config, machine, **more: str) -> Machine:
    given = {f'config.{name}': value for name, value in config_lib.flatten(config).items()}
    try:
        hosts.check_alike(given | more | provenance.environment(machine))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return machine


def _said(say: Say) -> Say:
    """Of several processes, the first speaks."""
    return say if hosts.first() else lambda line: None


def _starts(config, work, groups) -> dict[str, start.Start]:
    return start.load(config, [g for g in groups if not committed(work.checkpoints(g.name))])


def _evaluated(work, config, group) -> bool:
    """Whether a group is trained and evaluated as the config asks, and all of it is whole."""
    folder = work.group(group.name)
    if not outcome.is_whole(folder, _OF_GROUP, config.eval):
        return False
    with Checkpoints(work.checkpoints(group.name)) as kept:
        found = kept.load(sweep.abstract(group))
    return found is not None and found.step == group.runs[0].steps


def _is_trained(work, group) -> bool:
    return max(committed(work.checkpoints(group.name)), default=0) >= group.runs[0].steps


def _finish(work, config, groups, everything, say) -> tuple[list[Row], int]:
    """Tables and pictures of the whole folder, where no shard has groups left to do."""
    left = [g for g in everything if g not in groups and not _evaluated(work, config, g)]
    if left:
        say(f'{len(left)} of {len(everything)} programs are left to other shards; the last one '
            'makes the tables of all')  # fmt: skip
        tables, records = _of_groups(work, groups)
        return tables['results.csv'], _failed(records, say)
    return _gather(work, everything, say, draw=True)


def _gather(work, groups, say, draw: bool = False) -> tuple[list[Row], int]:
    """Tables of the whole folder from those of its groups, and how many runs failed.

    Args:
      draw: also the pictures, which take their time; if there are any, they are left as they are.
    """
    tables, records = _of_groups(work, groups)
    results.write_all(work.path, tables)
    outcome.write_json(work.path / _OF_ALL, records)
    if draw or not (work.path / 'figures').exists():
        metrics = [record for group in groups for record in work.metrics(group.name)]
        plots.all_figures(work.path, tables, metrics)
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
