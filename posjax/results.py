"""Tidy tables: one figure a row, in CSV.

Columns of results.csv, with one more for every other field that a sweep varies:

    task, scheme, seed, train_length, length, intervention, region, metric, value, baseline, count

`region` is `all`, or `past`: only positions beyond the training length. (An average over all
positions hides a failure there: a causal model computes the first part of a sequence exactly as in
training.) `value` is nan for a run that stopped being finite, in training or under evaluation.
`baseline` is what the best constant answer scores on the same positions, `count` how many answers
the figure rests on.
"""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posjax.config import ConfigError
from posjax.evaluation import Counts
from posjax.run import Run
from posjax.tasks.task import baseline
from posjax.workdir import write_atomically

Row = dict[str, Any]

COLUMNS = ('task', 'scheme', 'seed', 'train_length', 'length', 'intervention', 'region', 'metric',
           'value', 'baseline', 'count')  # fmt: skip
POSITION_COLUMNS = ('task', 'scheme', 'seed', 'train_length', 'length', 'intervention', 'position',
                    'accuracy', 'baseline', 'count')  # fmt: skip
_NUMBERS = {'seed': int, 'train_length': int, 'length': int, 'position': int, 'count': int,
            'value': float, 'baseline': float, 'accuracy': float}  # fmt: skip


def rows_of(
    run: Run, extra: Row, length: int, words: Sequence[str], counts: Counts
) -> tuple[list[Row], list[Row]]:
    """Result rows and per-position rows of one run at one length, under interventions `words`."""
    rows, position_rows = [], []
    head = {'task': run.task.text, 'scheme': run.scheme.text, 'seed': run.seed,
            'train_length': run.length, 'length': length}  # fmt: skip
    regions = {'all': 0} | ({'past': run.length} if length > run.length else {})
    baselines = {region: baseline(run.task, length, start) for region, start in regions.items()}
    by_position = [baseline(run.task, length, t, t + 1) for t in range(length)]
    for word, right_T in zip(words, counts.right_NT, strict=True):
        here = head | {'intervention': word}
        for region, start in regions.items():
            count = int(counts.scored_T[start:].sum())
            # Sums before the division: positions with more scored answers weigh more.
            value = float(right_T[start:].sum()) / count if count else math.nan
            rows.append(here | {'region': region, 'metric': 'accuracy', 'value': value,
                                'baseline': baselines[region], 'count': count} | extra)  # fmt: skip
        for t in np.flatnonzero(counts.scored_T):
            count = int(counts.scored_T[t])
            figures = {'accuracy': float(right_T[t]) / count, 'baseline': by_position[t]}
            position_rows.append(here | {'position': int(t)} | figures | {'count': count} | extra)
    return rows, position_rows


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
    extra = [f'{k}={v}' for k, v in row.items() if k not in columns and k not in POSITION_COLUMNS]
    return ', '.join([row['scheme'], *extra])


def group_by(rows: Iterable[Row], key) -> dict[Any, list[Row]]:
    """Rows by key, in order of first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
