"""Accuracy as grids of numbers and colours, for what is too much for lines."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from posjax.results import Row, group_by, label_under


def accuracy_grid(rows: Sequence[Row]) -> plt.Figure:
    """Schemes and interventions against lengths, a panel a task, best at the longest first.

    Numbers are means over seeds, past the training length where there is a past; the last row is
    the best constant answer.
    """
    rows = [r for r in rows if (r['region'] == 'past') == (r['length'] > r['train_length'])]
    by_panel = group_by(rows, lambda r: (r['task'], r['train_length']))
    count = max(len({label_under(r) for r in of}) for of in by_panel.values())
    width = 4.4 + 0.075 * max(len(label_under(r)) for r in rows)
    figure, used = panels(len(by_panel), 2, width, 1.6 + 0.24 * (count + 1), 'constrained')
    for axis, ((task, train_length), of_panel) in zip(used, by_panel.items(), strict=True):
        lengths = sorted({r['length'] for r in of_panel})
        cells = group_by(of_panel, lambda r: (label_under(r), r['length']))
        lines = {line: [mean(cells.get((line, n), ())) for n in lengths]
                 for line in dict.fromkeys(map(label_under, of_panel))}  # fmt: skip
        order = sorted(lines, key=lambda line: _worst_if_none(lines[line]), reverse=True)
        base = {r['length']: r['baseline'] for r in of_panel}
        grid = np.array([*(lines[line] for line in order), [base[n] for n in lengths]])
        image = draw(axis, grid, [*order, 'best constant answer'], lengths)
        axis.axhline(len(order) - 0.5, color='white', linewidth=3)
        axis.set_xlabel('length (tokens); past the training length where there is a past')
        axis.set_title(f'{task}, trained at {train_length}', fontsize=10)
    figure.colorbar(image, ax=used, label='accuracy', fraction=0.03)
    return figure


def depth_grid(rows: Sequence[Row]) -> plt.Figure:
    """Accuracy (mean of seeds) by depth and length: a panel a task, scheme and intervention."""
    by_panel = group_by(rows, lambda r: (r['task'], r['train_length'], label_under(r)))
    figure, used = panels(len(by_panel), 4, 3.4, 3.0, 'constrained')
    for axis, ((task, train_length, line), of_panel) in zip(used, by_panel.items(), strict=True):
        lengths = sorted({r['length'] for r in of_panel})
        depths = sorted({r['depth'] for r in of_panel})
        cells = group_by(of_panel, lambda r: (r['depth'], r['length']))
        grid = np.array([[mean(cells.get((d, n), ())) for n in lengths] for d in depths])
        image = draw(axis, grid, [f'{d:g}' for d in depths], lengths)
        axis.set_xlabel(f'length (tokens; trained at {train_length})', fontsize=8)
        axis.set_ylabel('depth', fontsize=8)
        axis.set_title(f'{line}\n{task}', fontsize=8)
    figure.colorbar(image, ax=used, label='accuracy', fraction=0.03)
    return figure


def draw(axis, grid: np.ndarray, rows: Sequence[str], columns: Sequence) -> plt.cm.ScalarMappable:
    """A grid of accuracies with the numbers written in it."""
    image = axis.imshow(grid, vmin=0, vmax=1, cmap='cividis', aspect='auto')
    for (y, x), value in np.ndenumerate(grid if len(columns) <= 8 else np.empty((0, 0))):
        if np.isfinite(value):
            axis.text(x, y, f'{value:.2f}', ha='center', va='center', fontsize=7,
                      color='black' if value > 0.4 else 'white')  # fmt: skip
    axis.set_xticks(range(len(columns)), [str(c) for c in columns], fontsize=8)
    axis.set_yticks(range(len(rows)), rows, fontsize=8)
    return image


def panels(count: int, columns: int, width: float, height: float, layout: str | None = None):
    """A figure of `count` panels of a size in inches, and their axes."""
    columns = min(count, columns)
    lines = -(-count // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(width * columns, height * lines),
                                squeeze=False, layout=layout)  # fmt: skip
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def mean(rows: Sequence[Row]) -> float:
    """Of the values of rows; NaN of none."""
    values = [row['value'] if 'value' in row else row['accuracy'] for row in rows]
    return float(np.mean(values)) if values else float('nan')


def _worst_if_none(values):
    """To sort by, from the longest length on."""
    return [-1.0 if np.isnan(value) else value for value in reversed(values)]
