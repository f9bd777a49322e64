"""Pictures of results: drawn from tidy rows, so that they can be drawn again from the CSV files."""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np

from posjax import heatmaps
from posjax.results import Row, Tables, group_by, label
from posjax.workdir import write_atomically

# Okabe & Ito's colours, apart also for colour-blind eyes; schemes keep theirs across panels.
_COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#999999')
_LINES = ('-', '--', ':', '-.')


def all_figures(folder: Path, tables: Tables, metrics: Sequence[Row]) -> None:
    """Draws into `folder`/figures whatever there is something to draw for."""
    figures = folder / 'figures'
    for draw, rows, name in (
        (length_figure, _of_few_interventions(tables['results.csv']), 'accuracy_by_length'),
        (position_figure, tables['positions.csv'], 'accuracy_by_position'),
        (depth_figure, tables['depths.csv'], 'accuracy_by_depth'),
        (training_figure, metrics, 'training'),
    ):
        if rows and _can_be_told_apart(rows):
            _save(draw(rows), figures / f'{name}.png')
    for draw, rows, name in (
        (heatmaps.accuracy_grid, tables['results.csv'], 'accuracy'),
        (heatmaps.depth_grid, tables['depths.csv'], 'accuracy_by_depth_and_length'),
    ):
        if rows:
            _save(draw(rows), figures / f'{name}.png')


def _of_few_interventions(rows: Sequence[Row]) -> list[Row]:
    """All rows, or those of no intervention where a panel for each would be too many."""
    few = len({row['intervention'] for row in rows}) <= 4
    return [row for row in rows if few or row['intervention'] == 'none']


def _can_be_told_apart(rows) -> bool:
    """Whether lines are: there are only so many colours. What is more is in the grids alone."""
    return len({_label(row) for row in rows}) <= 12


def length_figure(rows: Sequence[Row]) -> plt.Figure:
    """Accuracy against length, a panel a task and intervention: mean bold, every seed faint."""
    rows = [r for r in rows if r['region'] == 'all' and r['metric'] == 'accuracy']
    style = _styles(rows)
    panels = group_by(rows, lambda r: (r['task'], r['train_length'], r['intervention']))
    figure, axes = _panels(len(panels), columns=len({key[2] for key in panels}))
    for axis, ((task, train_length, intervention), of_panel) in zip(
        axes, panels.items(), strict=True
    ):
        _lines(axis, of_panel, 'length', 'value', style)
        _baseline(axis, of_panel, 'length')
        lengths = sorted({r['length'] for r in of_panel})
        axis.set_xscale('log', base=2)
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
        _mark_training(axis, train_length)
        _finish(axis, 'sequence length (tokens)', _under(task, intervention))
    return _legend(figure, style)


def position_figure(rows: Sequence[Row]) -> plt.Figure:
    """Accuracy against position at the longest length, as trained: a panel a task."""
    rows = _longest([r for r in rows if r['intervention'] == 'none'] or rows)
    style = _styles(rows)
    panels = group_by(rows, lambda r: (r['task'], r['train_length']))
    figure, axes = _panels(len(panels), columns=2)
    for axis, ((task, train_length), of_panel) in zip(axes, panels.items(), strict=True):
        _lines(axis, of_panel, 'position', 'accuracy', style, seeds=False)
        _baseline(axis, of_panel, 'position')
        _mark_training(axis, train_length)
        _finish(axis, f'position in a sequence of {of_panel[0]["length"]} tokens', task)
    return _legend(figure, style)


def depth_figure(rows: Sequence[Row]) -> plt.Figure:
    """Accuracy against depth at the longest length: lost in the middle, or not. Panels as in
    `length_figure`."""
    rows = _longest(rows)
    style = _styles(rows)
    panels = group_by(rows, lambda r: (r['task'], r['train_length'], r['intervention']))
    figure, axes = _panels(len(panels), columns=len({key[2] for key in panels}))
    for axis, ((task, train_length, intervention), of_panel) in zip(
        axes, panels.items(), strict=True
    ):
        _lines(axis, of_panel, 'depth', 'accuracy', style)
        _baseline(axis, of_panel, 'depth')
        _finish(axis, f'depth in {of_panel[0]["length"]} tokens (trained at {train_length})',
                _under(task, intervention))  # fmt: skip
        axis.set_xlim(0, 1)
    return _legend(figure, style)


def training_figure(records: Sequence[Row]) -> plt.Figure:
    """Training loss against step, a panel a task."""
    records = [r for r in records if r['loss'] is not None]
    style = _styles(records)
    panels = group_by(records, lambda r: r['task'])
    figure, axes = _panels(len(panels), columns=2)
    for axis, (task, of_panel) in zip(axes, panels.items(), strict=True):
        _lines(axis, of_panel, 'step', 'loss', style)
        axis.set(title=task, xlabel='step', ylabel='training loss (nats)', yscale='log')
        axis.grid(alpha=0.25)
    return _legend(figure, style)


_NOT_A_SWEEP = ('step', 'loss', 'accuracy', 'grad_norm')


def _label(row: Row) -> str:
    return label({k: v for k, v in row.items() if k not in _NOT_A_SWEEP})


def _styles(rows) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys(_label(row) for row in rows)
    return {
        name: (_COLOURS[i % len(_COLOURS)], _LINES[i // len(_COLOURS) % len(_LINES)])
        for i, name in enumerate(names)
    }


def _lines(axis, rows, x, y, style, seeds=True):
    for name, of_label in group_by(rows, _label).items():
        colour, line = style[name]
        by_seed = group_by(of_label, lambda r: r['seed'])
        if seeds and len(by_seed) > 1:
            for of_seed in by_seed.values():
                axis.plot([r[x] for r in of_seed], [r[y] for r in of_seed], line, color=colour,
                          alpha=0.3, linewidth=0.8)  # fmt: skip
        means = {
            at: np.mean([r[y] for r in of]) for at, of in group_by(of_label, lambda r: r[x]).items()
        }
        axis.plot(list(means), list(means.values()), line, color=colour, linewidth=2,
                  marker='o' if len(means) < 12 else None, markersize=4)  # fmt: skip


def _baseline(axis, rows, x):
    base = {r[x]: r['baseline'] for r in rows}
    axis.plot(
        list(base), list(base.values()), color='#666666', linewidth=1.2, linestyle=(0, (1, 1))
    )


def _longest(rows):
    """The rows at the longest length of their task."""
    by_task = group_by(rows, lambda r: r['task'])
    longest = {task: max(r['length'] for r in of) for task, of in by_task.items()}
    return [r for r in rows if r['length'] == longest[r['task']]]


def _under(task, intervention):
    return task if intervention == 'none' else f'{task}, under {intervention}'


def _mark_training(axis, train_length):
    axis.axvline(train_length, color='#444444', linewidth=1, linestyle='--')
    axis.annotate(
        'training length',
        (train_length, 0.02),
        xytext=(4, 0),
        fontsize=8,
        color='#444444',
        xycoords=('data', 'axes fraction'),
        textcoords='offset points',
    )


def _finish(axis, xlabel, title):
    axis.set(title=title, xlabel=xlabel, ylabel='accuracy', ylim=(-0.02, 1.02))
    axis.grid(alpha=0.25)


def _panels(count: int, columns: int):
    return heatmaps.panels(count, columns, 5.2, 3.8)


def _legend(figure, style):
    handles = [plt.Line2D([], [], color=c, linestyle=line, linewidth=2, label=name)
               for name, (c, line) in style.items()]  # fmt: skip
    handles.append(plt.Line2D([], [], color='#666666', linestyle=(0, (1, 1)), linewidth=1.2,
                              label='best constant answer'))  # fmt: skip
    figure.tight_layout()
    # Below the axes, where no line can run through it.
    figure.legend(
        handles=handles,
        loc='upper center',
        ncols=min(4, len(handles)),
        frameon=False,
        fontsize=9,
        bbox_to_anchor=(0.5, 0.0),
    )
    return figure


def _save(figure: plt.Figure, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, dpi=150, bbox_inches='tight')
    write_atomically(path, image.getvalue())
    plt.close(figure)
