"""What comes out of a trained group: its tables, what they rest on, and whether they are whole.

A folder of outcomes holds the tables (results.py) and a record of them (see provenance.py), written
last: a record that is there, and whose digests are right, vouches for its tables.
"""

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from posjax import evaluation, fused, hosts, interventions, plan, provenance, results
from posjax.checkpoint import Saved
from posjax.model import is_fused
from posjax.results import Row, Tables
from posjax.run import Run
from posjax.sweep import Group, Machine, Question
from posjax.workdir import write_atomically


def tables(
    config: ConfigDict, machine: Machine, group: Group, trained: Saved,
    asked: Mapping[int, Sequence[str]], pause: Callable[[], None] = lambda: None,
) -> Tables:  # fmt: skip
    """Rows of all runs of a group; `pause` is called before each program, and may raise.

    Args:
      asked: the interventions of each length, as `askable` has them.
    """
    params = machine.place(group, trained.tree.params)

    def ask(question):
        pause()
        return machine.evaluate(group, params, question)

    questions = _questions(config, group, asked)
    # Compiling a program takes longer than running it: several at a time.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        # Several hosts start their programs in one order.
        each = map if hosts.several() else pool.map
        done = [machine.fetch(group, counts) for counts in each(ask, questions)]
    counted = {
        length: counts
        for question, made in zip(questions, done, strict=True)
        for length, counts in zip(question.lengths, made, strict=True)
    }
    found = []
    for length, words in asked.items():
        texts = [interventions.parse(word).text for word in words]
        for i, run in enumerate(group.runs):
            mine = jax.tree.map(lambda x, i=i: x[i], counted[length])
            if trained.tree.failed[i] >= 0:
                # What a run knew when it failed is no result of its training.
                mine = mine.failed()
            found.append(results.tables_of(run, varied(config, run), length, texts, mine))
    return results.joined(found)


def prepare(
    config: ConfigDict, machine: Machine, group: Group, asked: Mapping[int, Sequence[str]]
) -> None:
    """Compiles what `tables` needs."""
    for question in _questions(config, group, asked):
        machine.prepare_evaluation(group, question)


def _questions(config, group, asked) -> list[Question]:
    """One for each program."""

    def schemes(run, length):
        # At one length all scalings of a rotation have one structure, and so are one program.
        changes = [interventions.parse(word) for word in asked[length]]
        return tuple(change(run.scheme, run.length, length).at(run.model.dims, length)
                     for change in changes)  # fmt: skip

    size = config.eval.sequences, config.eval.batch
    counts = {length: len(words) * config.eval.sequences for length, words in asked.items()}
    return [
        Question([tuple(schemes(run, length) for length in lengths) for run in group.runs],
                 lengths, *size)
        for lengths in evaluation.together(group.runs[0].model, counts)
    ]  # fmt: skip


def askable(
    config: ConfigDict, groups: Sequence[Group], lengths: Sequence[int]
) -> tuple[dict[str, dict[int, list[str]]], list[str]]:
    """What each group can be asked: by its name, the interventions of each length; and lines on
    what is left out."""
    found: dict[str, dict[int, list[str]]] = {}
    meaningless: dict[tuple[str, ...], list[str]] = {}
    left_out = []
    for group in groups:
        run, asked = group.runs[0], {}
        words = [w for w in config.eval.interventions if plan.objection(run, w) is None]
        others = tuple(word for word in config.eval.interventions if word not in words)
        meaningless.setdefault(others, []).append(run.scheme.text)
        for length, word in itertools.product(lengths, words):
            try:
                for run in group.runs:
                    plan.check_length(run, length, word)
                asked.setdefault(length, []).append(word)
            except ValueError as error:
                left_out.append(f'left out at length {length}: {error}')
        found[group.name] = asked
    for words, schemes in meaningless.items():
        if words:
            names = ', '.join(dict.fromkeys(schemes))
            left_out.append(f'left out for {names}, where they mean nothing: {", ".join(words)}')
    return found, list(dict.fromkeys(left_out))


def attention(groups: Sequence[Group]) -> list[str]:
    """Lines on what attends, where fused attention is asked for."""
    asking = [run for group in groups for run in group.runs if run.model.attention == 'fused']
    if asking and not fused.available():
        return ['attention is plain: fused needs a GPU with CUDA']
    found: dict[str | None, dict[str, None]] = {}
    for run in asking:
        why = fused.obstacle(run.scheme, run.model.dims, run.model.dtype)
        found.setdefault(why, {})[run.scheme.text] = None
    return [
        f'attention is fused for {", ".join(schemes)}' if why is None else
        f'attention is plain for {", ".join(schemes)}: {why}' for why, schemes in found.items()
    ]  # fmt: skip


def varied(config: ConfigDict, run: Run) -> Row:
    """What a sweep varies beside task, scheme, length and seed, for one of its runs."""
    values = {}
    for name in plan.swept(config):
        owner, field = name.split('.')
        values[name] = getattr(run if owner == 'train' else getattr(run, owner), field)
    return values


def record(config: ConfigDict, machine: Machine, group: Group, trained: Saved) -> dict[str, Any]:
    """What a group's tables rest on; see provenance.py."""
    return {
        'runs': [
            {'task': run.task.text, 'scheme': run.scheme.text, 'seed': run.seed,
             'train_length': run.length, **varied(config, run),
             'dtype': run.model.dtype, 'precision': run.model.precision,
             'attention': 'fused' if is_fused(run.model, run.scheme) else 'plain'}
            for run in group.runs
        ],
        'failed_at': [int(step) for step in trained.tree.failed],
        'checkpoint': {'step': trained.step, 'digest': trained.digest, **trained.notes},
        'config': provenance.of_config(config),
        'eval': config.eval.to_dict(),
        'environment': provenance.environment(machine),
    }  # fmt: skip


def keep(folder: Path, name: str, made: Tables, told: dict[str, Any]) -> None:
    """Writes tables, and then their record as `name`."""
    results.write_all(folder, made)
    write_json(folder / name, told | {'files': provenance.of_files(folder, results.TABLES)})


def is_whole(folder: Path, name: str, wanted: ConfigDict) -> bool:
    """Whether a folder's tables are those of an evaluation `wanted`, and as they were written."""
    try:
        told = json.loads((folder / name).read_text())
        same = told['eval'] == json.loads(json.dumps(wanted.to_dict()))
        return same and told['files'] == provenance.of_files(folder, results.TABLES)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def failures(records: dict[str, Any]) -> list[str]:
    """Which runs of some records stopped being finite, and at which step."""
    return [
        f'{run["task"]} {run["scheme"]} seed {run["seed"]} at step {step}'
        for told in records.values()
        for run, step in zip(told['runs'], told['failed_at'], strict=True)
        if step >= 0
    ]


def write_json(path: Path, value: Any) -> None:
    """A file of JSON, whole or not at all; NumPy's numbers are not JSON, and refused."""
    write_atomically(path, json.dumps(value, indent=1) + '\n')
