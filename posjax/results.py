"""Tidy tables: one figure a row, in CSV.

Columns of results.csv, with one more for every other field that a sweep varies:

    task, scheme, seed, train_length, length, intervention, region, metric, value, baseline, count

`region` is `all`, or `past`: only positions beyond the training length. (An average over all
positions hides a failure there: a causal model computes the first part of a sequence exactly as in
training.) `value` is nan for a run that stopped being finite, in training or under evaluation.
`baseline` is what the best constant answer scores on the same positions, `count` how many answers
the figure rests on.

positions.csv has the accuracy at each position, and depths.csv, for tasks that hide their answers
at some depth (0 is the start of what is searched, 1 its end), in each tenth of the depth, named by
its middle; constant answers score the same at every depth.
"""

import csv
import io
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posjax.config import ConfigError
from posjax.evaluation import DEPTHS, Counts
from posjax.run import Run
from posjax.tasks.task import best_constant
from posjax.workdir import write_atomically

Row = dict[str, Any]
Tables = dict[str, list[Row]]  # by file name

COLUMNS = ('task', 'scheme', 'seed', 'train_length', 'length', 'intervention', 'region', 'metric',
           'value', 'baseline', 'count')  # fmt: skip
POSITION_COLUMNS = ('task', 'scheme', 'seed', 'train_length', 'length', 'intervention', 'position',
                    'accuracy', 'baseline', 'count')  # fmt: skip
DEPTH_COLUMNS = ('task', 'scheme', 'seed', 'train_length', 'length', 'intervention', 'depth',
                 'accuracy', 'baseline', 'count')  # fmt: skip
TABLES = {
    'results.csv': COLUMNS,
    'positions.csv': POSITION_COLUMNS,
    'depths.csv': DEPTH_COLUMNS,
}
_NUMBERS = {'seed': int, 'train_length': int, 'length': int, 'position': int, 'count': int,
            'value': float, 'baseline': float, 'accuracy': float, 'depth': float}  # fmt: skip


def tables_of(run: Run, extra: Row, length: int, words: Sequence[str], counts: Counts) -> Tables:
    """The rows of one run at one length, under interventions `words`."""
    head = {'task': run.task.text, 'scheme': run.scheme.text, 'seed': run.seed,
            'train_length': run.length, 'length': length}  # fmt: skip
    answers_TC = run.task.answers(length)
    tables: Tables = {name: [] for name in TABLES}
    for i, word in enumerate(words):
        here = head | {'intervention': word}
        for region, start in (('all', 0), ('past', run.length)):
            if start < length:
                # Sums before the division: positions with more scored answers weigh more.
                figures = _figures('value', counts.right_NT[i, start:].sum(),
                                   counts.scored_T[start:].sum(), answers_TC[start:])  # fmt: skip
                row = here | {'region': region, 'metric': 'accuracy'} | figures | extra
                tables['results.csv'].append(row)
        for t in np.flatnonzero(counts.scored_T):
            figures = _figures('accuracy', counts.right_NT[i, t], counts.scored_T[t],
                               answers_TC[t : t + 1])  # fmt: skip
            tables['positions.csv'].append(here | {'position': int(t)} | figures | extra)
        for d in () if counts.scored_D is None else np.flatnonzero(counts.scored_D):
            figures = _figures('accuracy', counts.right_ND[i, d], counts.scored_D[d], answers_TC)
            tables['depths.csv'].append(here | {'depth': (int(d) + 0.5) / DEPTHS} | figures | extra)
    return tables


def _figures(name, right, scored, answers_TC) -> Row:
    """An accuracy under its `name`, its baseline, and how many answers it rests on."""
    value = float(right) / int(scored) if scored else math.nan
    return {name: value, 'baseline': best_constant(answers_TC), 'count': int(scored)}


def joined(several: Iterable[Tables]) -> Tables:
    """All rows of several, table by table."""
    several = list(several)
    return {name: [row for tables in several for row in tables[name]] for name in TABLES}


def write_all(folder: Path, tables: Tables) -> None:
    """Writes a CSV file for each table that has rows, and leaves none for one that has not."""
    for name, columns in TABLES.items():
        if tables[name]:
            write(folder / name, tables[name], columns)
        else:
            (folder / name).unlink(missing_ok=True)


def read_all(folder: Path) -> Tables:
    """What `write_all` wrote."""
    return {
        name: read(folder / name, columns) if (folder / name).exists() else []
        for name, columns in TABLES.items()
    }


def write(path: Path, rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> None:
    """Writes a CSV file, whole or not at all; further columns follow the given ones."""
    extra = [name for name in (rows[0] if rows else {}) if name not in columns]
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, *extra], lineterminator='\n')
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f'{v:.6g}' if isinstance(v, float) else v for k, v in row.items()})
    write_atomically(path, text.getvalue())


def read(path: Path, needed: Iterable[str] = COLUMNS[:9]) -> list[Row]:
    """Rows of a CSV file, numbers as numbers.

    Raises:
      ConfigError: no such file, a missing column, or a value that is no number; one line.
    """
    try:
        with open(path, newline='', encoding='utf-8') as file:
            reader = csv.DictReader(file)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(f'{path} has no column {missing[0]!r}; it needs '
                                 + ', '.join(needed))  # fmt: skip
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f'cannot read {path}: {getattr(error, "strerror", None) or error}'
        ) from None
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ConfigError(f'{path}, line {number}: {len(reader.fieldnames)} fields expected')
        for name, kind in _NUMBERS.items():
            if name in row:
                try:
                    row[name] = kind(row[name])
                except ValueError:
                    raise ConfigError(
                        f'{path}, line {number}: {name}={row[name]!r} is not a number'
                    ) from None
    return rows


def label(row: Row, columns: Sequence[str] = COLUMNS) -> str:
    """The scheme, and what else a sweep varied: `rope, optim.learning_rate=0.003`."""
    known = {*columns, *itertools.chain(*TABLES.values())}
    extra = [f'{k}={v}' for k, v in row.items() if k not in known]
    return ', '.join([row['scheme'], *extra])


def label_under(row: Row) -> str:
    """`label`, and the intervention, if there is one: `rope, under logn`."""
    under = '' if row['intervention'] == 'none' else f', under {row["intervention"]}'
    return label(row) + under


def group_by(rows: Iterable[Row], key) -> dict[Any, list[Row]]:
    """Rows by key, in order of first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
