"""What a person reads: results as aligned text, alone or beside published ones."""

import math
from collections.abc import Sequence

import numpy as np

from posjax.interventions import parse as parse_intervention
from posjax.results import Row, group_by, label_under
from posjax.scheme import parse as parse_scheme
from posjax.tasks.task import parse as parse_task

# A cell agrees when our mean over seeds is this close to the range of the reference's seeds.
TOLERANCE = 0.03


def summary(rows: Sequence[Row]) -> str:
    """A table for each task and training length: schemes and interventions against lengths."""
    parts = []
    for (name, train_length), here in group_by(
        rows, lambda r: (r['task'], r['train_length'])
    ).items():
        columns = sorted(group_by(here, _column))
        base = {_column(r): r['baseline'] for r in here}
        table = [['scheme', *(f'{n} {region}'.removesuffix(' all') for n, region in columns)],
                 ['best constant answer', *(f'{base[c]:.3f}' for c in columns)]]  # fmt: skip
        for asked, of_asked in group_by(here, label_under).items():
            cells = group_by(of_asked, _column)
            table.append([asked, *(_spread(cells[c]) if c in cells else '–' for c in columns)])
        seeds = len({r['seed'] for r in here})
        spread = f'mean of {seeds} seeds ± half their range' if seeds > 1 else '1 seed'
        title = f'{name}, trained at length {train_length}: accuracy at length, {spread}'
        parts.append(f'{title}\n{aligned(table)}')
    return '\n\n'.join(parts)


def compare(rows: Sequence[Row], references: Sequence[Sequence[Row]]) -> tuple[str, int, int]:
    """Our figures beside published ones, cell by cell.

    A cell is (task, scheme, length, intervention, region, metric); its reference range is that of
    all seeds of all references, its published mean that of the first.

    Returns:
      The table with its rule, how many cells agree, and how many were compared.
    """
    ours = group_by(rows, _cell_key)
    first = group_by(references[0], _cell_key)
    every = group_by((row for reference in references for row in reference), _cell_key)
    table = [['task', 'scheme', 'length', 'intervention', 'region', 'ours (range)',
              'published (range)', 'difference', 'verdict']]  # fmt: skip
    agree = compared = 0
    for key, theirs in every.items():
        name, scheme_, length, intervention, region, _ = key
        if key not in ours:
            continue
        values = [row['value'] for row in ours[key]]
        low, high = (f(row['value'] for row in theirs) for f in (min, max))
        published = np.mean([row['value'] for row in first.get(key, theirs)])
        mean = np.mean(values)
        good = bool(low - TOLERANCE <= mean <= high + TOLERANCE)
        agree, compared = agree + good, compared + 1
        table.append([name, scheme_, str(length), intervention, region, _cell(values),
                      f'{published:.3f} ({low:.3f}–{high:.3f})', f'{mean - published:+.3f}',
                      'agrees' if good else 'differs'])  # fmt: skip
    absent = len(every) - compared
    text = aligned(table) + (
        f'\n{agree} of {compared} cells agree: the mean over our seeds lies within {TOLERANCE} of '
        f'the range of the reference seeds'
        + (f' ({absent} reference cells were not run here)' if absent else '')
    )
    return text, agree, compared


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Columns of text, padded to equal width."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        '  '.join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    return '\n'.join([lines[0], '  '.join('-' * w for w in widths), *lines[1:]])


def _cell_key(row):
    return (
        _canonical(parse_task, row['task']),
        _canonical(parse_scheme, row['scheme']),
        row['length'],
        _canonical(parse_intervention, row['intervention']),
        row['region'],
        row['metric'],
    )


def _canonical(parse, words):
    """The same text for the same thing: `rope(theta=1e6)` and `rope(theta=1000000.0)`.

    Task fields that are the default may be left out of a published table.
    """
    try:
        return parse(words).text
    except ValueError:
        return words


def _column(row):
    return row['length'], row['region']


def _spread(rows):
    """Mean and spread of the finite figures; says how many are not."""
    rows = [row for row in rows if row.get('count') != 0]  # a region may have no scored position
    values = [row['value'] for row in rows if math.isfinite(row['value'])]
    if not rows:
        return '–'
    if not values:
        return 'not finite'
    shown = f'{np.mean(values):.3f}'
    if len(values) > 1:
        shown += f' ±{(max(values) - min(values)) / 2:.3f}'
    lost = len(rows) - len(values)
    return shown + (f' ({lost} not finite)' if lost else '')


def _cell(values):
    return f'{np.mean(values):.3f} ({min(values):.3f}–{max(values):.3f})'
