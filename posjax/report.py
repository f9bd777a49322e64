"""What a person reads: results as aligned text, alone or beside published ones."""

from collections.abc import Sequence

import numpy as np

from posjax import interventions, scheme
from posjax.results import Row, group_by, label
from posjax.tasks import task

# A cell agrees when our mean over seeds is this close to the range of the reference's seeds.
TOLERANCE = 0.03


def summary(rows: Sequence[Row]) -> str:
    """A table a task: mean accuracy over seeds, and the range, per scheme and column."""
    parts = []
    for (name, train_length), of_task in group_by(
        rows, lambda r: (r['task'], r['train_length'])
    ).items():
        columns = group_by(of_task, lambda r: (r['length'], r['intervention'], r['region']))
        order = sorted(columns, key=lambda c: (c[1] != 'none', c[1], c[0], c[2]))
        table = [['scheme', *(_column(c) for c in order)]]
        base = {c: columns[c][0]['baseline'] for c in order}
        table.append(['best constant answer', *(f'{base[c]:.3f}' for c in order)])
        for scheme_, of_scheme in group_by(of_task, label).items():
            cells = group_by(of_scheme, lambda r: (r['length'], r['intervention'], r['region']))
            shown = [_cell([r['value'] for r in cells[c]]) if c in cells else '–' for c in order]
            table.append([scheme_, *shown])
        seeds = len({r['seed'] for r in of_task})
        parts.append(f'{name}, trained at length {train_length}: accuracy, mean over {seeds} seed'
                     f'{"s" if seeds > 1 else ""} (range)\n{aligned(table)}')  # fmt: skip
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
    lines = ['  '.join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
    return '\n'.join([lines[0], '  '.join('-' * w for w in widths), *lines[1:]])


def _cell_key(row):
    return (
        _canonical(task.parse, row['task']),
        _canonical(scheme.parse, row['scheme']),
        row['length'],
        _canonical(interventions.parse, row['intervention']),
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


def _column(c):
    length, intervention, region = c
    return str(length) + (' past' if region == 'past' else '') + (
        f' {intervention}' if intervention != 'none' else ''
    )  # fmt: skip


def _cell(values):
    mean, low, high = np.mean(values), min(values), max(values)
    return f'{mean:.3f}' + (f' ({low:.3f}–{high:.3f})' if len(values) > 1 else '')
