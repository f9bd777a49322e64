"""What at the test length was never met in training: why a scheme fails, before it is trained.

The last token of a long sequence looks back at all others. For each number that a scheme computes
for it (an angle, a bias, a scale, a column of the embedding, a row of a table) this asks whether
any token of a training sequence met the like.

Shape suffixes: H heads, Q queries, S keys, N numbers met, F features of one number, P probes.
"""

import dataclasses

import jax
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from posjax import probe
from posjax.hull import outside
from posjax.parts import Part, merged, span
from posjax.probe import View
from posjax.report import aligned
from posjax.scheme import Dims, Params, Scheme, as_chain, parse

_QUERIES, _DRAWS, _ROWS = 64, 8, 64


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What training covers of a longer sequence. `print` it, or draw `figure()`."""

    scheme: Scheme
    train_length: int
    length: int
    parts: tuple[Part, ...]

    def __str__(self) -> str:
        head = (
            f'{self.scheme.text}, trained at length {self.train_length}: what the last of '
            f'{self.length} tokens meets'
        )
        rows = [['what', 'heads', 'layers', 'unit', 'trained', 'asked', 'never met']]
        for part in self.parts:
            rows.append([part.what, span(part.heads), span(part.layers), part.unit,
                         _range(part.trained), _range(part.asked),
                         f'{100 * part.unmet:.0f} %'])  # fmt: skip
        return f'{head}\n\n{aligned(rows)}'

    def figure(self) -> Figure:
        """A row for each number, a column for each distance or position: met or not."""
        shown = self.parts[:_ROWS]
        figure = Figure(figsize=(8, 1.5 + 0.26 * len(shown)), layout='constrained')
        axis = figure.add_subplot()
        colours = ListedColormap(['#D55E00', '#56B4E9'])
        axis.imshow(np.array([part.met for part in shown]), aspect='auto', cmap=colours, vmin=0,
                    vmax=1, interpolation='nearest')  # fmt: skip
        axis.set_yticks(range(len(shown)), [_label(part) for part in shown], fontsize=8)
        axis.axvline(self.train_length - 0.5, color='#222222', linewidth=1, linestyle='--')
        over = [{'distance': 'distance back from the last token'}.get(name, name)
                for name in dict.fromkeys(part.over for part in shown)]  # fmt: skip
        axis.set_xlabel(f'{" or ".join(over)}  (dashed: the training length)')
        left_out = len(self.parts) - len(shown)
        title = f'{self.scheme.text}: trained at {self.train_length}, asked at {self.length}'
        axis.set_title(title + (f' ({left_out} more rows)' if left_out else ''), fontsize=10)
        figure.legend(
            handles=[Patch(color='#56B4E9', label='met in training'),
                     Patch(color='#D55E00', label='never met')],
            loc='outside lower center', ncols=2, frameon=False, fontsize=9,
        )  # fmt: skip
        return figure


def coverage(
    scheme: Scheme | str, dims: Dims, train_length: int, length: int, params: Params | None = None
) -> Coverage:
    """What training at one length covers of what the last token meets at another.

    A number is met when it lies in the convex hull of those of training, give or take a tenth of
    their spread (hull.py): for a bias or a scale an interval, for a rotation the arc its angles
    filled.
    What reads an entry of a table that no training sequence reads is never met.

    Args:
      scheme: a scheme or its text.
      dims: sizes of the model.
      train_length, length: tokens in training, and asked about.
      params: the scheme's parameters (`params['scheme']`); by default random ones.

    Raises:
      ValueError: the scheme does not fit such a model or length, in one line.
    """
    scheme = parse(scheme) if isinstance(scheme, str) else scheme
    for tokens in (train_length, length):
        if tokens < 1:
            raise ValueError(f'length {tokens} should be at least 1')
        scheme.check_fit(dims, range(tokens))
    params = probe.parameters(scheme, dims) if params is None else params
    random = probe.is_random(scheme)
    keys = [jax.random.key(n) for n in range(_DRAWS)] if random else [None]
    queries = tuple(np.unique(np.linspace(0, train_length - 1, _QUERIES).astype(int)).tolist())
    groups = probe.interacting(scheme, dims, params, train_length)
    pairs = [(a, b) for group in groups for a in group for b in group]

    parts = []
    for layers in probe.alike_layers(scheme, dims, params):
        training = View(train_length, queries, layers[0])
        asked = View(length, (length - 1,), layers[0])
        before = [probe.anatomy(scheme, dims, params, training, pairs, key) for key in keys]
        now = probe.anatomy(scheme, dims, params, asked, pairs, keys[0])
        unread = _Unread(scheme, dims, params, training, asked, keys)
        scored = _scores(before, now, groups, unread, layers)
        embedded = _embedding(before, now, unread) if layers[0] == 0 else ()
        parts += [*_in_view(before, now, layers), *unread.parts(layers), *scored, *embedded]
    return Coverage(scheme, train_length, length, tuple(merged(parts)))


def _in_view(before, now, layers):
    """How many keys share one softmax, in each head."""
    for head, visible_S in enumerate(now.visible_HQS[:, 0]):
        counts = np.concatenate([x.visible_HQS[head].sum(axis=-1) for x in before])
        asked = visible_S.sum()
        met = np.where(visible_S, asked <= counts.max(), np.nan)
        yield Part('keys in view', (head,), layers, 'keys', _extent(counts),
                   (int(asked), int(asked)), 'distance', tuple(met[::-1]))  # fmt: skip


class _Unread:
    """Entries of the parameters that an asked view reads, and no training view does."""

    def __init__(self, scheme, dims, params, training, asked, keys):
        trained = probe.reads(scheme, dims, params, training, keys)
        wanted = probe.reads(scheme, dims, params, asked, keys[:1])
        self.entries = jax.tree.map(lambda old, new: new & ~old, trained, wanted)
        # What changes when the entries that training did not read do, rests on them.
        rng = np.random.default_rng(0)
        changed = jax.tree.map(
            lambda x, old: np.where(old, x, x + 1 + rng.random(x.shape)).astype(x.dtype),
            params, trained,
        )  # fmt: skip
        (embed, score, gathered), others = (
            [np.asarray(x) for x in
             probe.responses(as_chain(scheme), p, keys[0], dims, asked, apart=True)]
            for p in (params, changed)
        )  # fmt: skip
        self.embed_T = (embed != others[0]).any(axis=1)
        self.score_HS = (score != others[1]).any(axis=(0, 2))
        self.score_HS |= (gathered != others[2]).any(axis=(1, 3)).T

    def parts(self, layers):
        """One part for each array of which there are such entries."""
        rests = {'distance': self.score_HS.any(axis=0)[::-1]}
        if layers[0] == 0:
            rests['position'] = self.embed_T
        for over, rests_S in rests.items():
            for path, entries in jax.tree_util.tree_leaves_with_path(self.entries):
                if rests_S.any() and entries.any():
                    name = '/'.join(entry.key for entry in path)
                    yield Part(f'{name} {_rows(entries)}', (), layers, 'entries', (0, 0),
                               (0, int(entries.sum())), over,
                               tuple((~rests_S).astype(float)))  # fmt: skip


def _rows(entries: np.ndarray) -> str:
    """Which rows of an array, if they are whole ones along some axis."""
    for axis in range(entries.ndim):
        others = tuple(i for i in range(entries.ndim) if i != axis)
        if (entries.all(axis=others) == entries.any(axis=others)).all():
            return f'rows {span(np.flatnonzero(entries.any(axis=others)))}'
    return f'{entries.sum()} of {entries.size} entries'


def _scores(before, now, groups, unread, layers):
    """Parts for the terms of the score, each head by itself."""
    terms = [('bias', lambda x: x.bias_HQS[None]), ('query term', lambda x: x.query_KHQS),
             ('key term', lambda x: x.key_KHQS)]  # fmt: skip
    number = {2: 0, 1: 0}
    for group in groups:
        at = [i for i, pair in enumerate(now.pairs) if pair[0] in group]
        kind = min(len(group), 2)
        name = f'coordinate {group[0]}' if kind == 1 else f'pair {number[kind]}'
        number[kind] += 1
        terms.append((name, lambda x, at=at: x.pair_PHQS[at]))
    for head in range(now.visible_HQS.shape[0]):
        visible_S = now.visible_HQS[head, 0]
        for name, term in terms:
            trained_NF = np.concatenate(
                [term(x)[:, head][:, x.visible_HQS[head]].T for x in before]
            )
            asked_NF = term(now)[:, head, 0].T[visible_S]
            nearest = before[-1].visible_HQS[head, -1].sum()
            part = _part(name, trained_NF, asked_NF, unread.score_HS[head, visible_S], nearest)
            if part is not None:
                met = np.full(len(visible_S), np.nan)
                met[visible_S] = part.met
                yield dataclasses.replace(
                    part, heads=(head,), layers=layers, over='distance', met=tuple(met[::-1])
                )


def _embedding(before, now, unread):
    trained_ND = np.concatenate([x.embed_TD for x in before])
    for column in range(now.embed_TD.shape[1]):
        trained_N1, asked_N1 = trained_ND[:, column, None], now.embed_TD[:, column, None]
        part = _part(f'embedding column {column}', trained_N1, asked_N1, unread.embed_T, 0)
        if part is not None:
            yield part


def _part(what, trained_NF, asked_NF, unread_M, nearest) -> Part | None:
    """A part without its place, or None where it says nothing (more).

    `nearest` counts the numbers at the end of `trained_NF` that are of one query, training's last.
    """
    everything = np.concatenate([trained_NF, asked_NF])
    if np.ptp(everything, axis=0).max() <= 1e-6 * np.abs(everything).max():
        return None  # the same at every distance: a plain q.k, or nothing
    out_M = outside(trained_NF, asked_NF)
    if unread_M.any() and not (out_M & ~unread_M).any():
        return None  # values of entries never trained: the part of the entries says it
    unit, (trained, asked) = _described(trained_NF, asked_NF, nearest)
    met_M = (~(out_M | unread_M)).astype(float)
    return Part(what, (), (), unit, trained, asked, 'position', tuple(met_M))


def _described(trained_NF, asked_NF, nearest):
    """A unit, and the range of trained and asked numbers in it."""
    if trained_NF.shape[1] == 4:
        turns = [_turns(x) for x in (trained_NF[-nearest:], asked_NF)]
        if all(x is not None for x in turns):
            return 'turns', [_extent(x) for x in turns]
    if trained_NF.shape[1] == 1:
        return 'score', [_extent(x) for x in (trained_NF, asked_NF)]
    return 'size', [_extent(np.linalg.norm(x, axis=1)) for x in (trained_NF, asked_NF)]


def _extent(x_N):
    return float(x_N.min()), float(x_N.max())


def _turns(x_N4):
    """Angles of a rotation in turns, growing with distance; None where it is not one.

    Its entries (aa, ab, ba, bb) are cos, sin, -sin, cos of the angle times one size.
    """
    if np.abs([x_N4[:, 0] - x_N4[:, 3], x_N4[:, 1] + x_N4[:, 2]]).max() > 1e-4:
        return None
    angle_N = np.arctan2(x_N4[:, 1] - x_N4[:, 2], x_N4[:, 0] + x_N4[:, 3])
    # From the query outwards: keys come in order, the last nearest.
    turns_N = np.unwrap(angle_N[::-1]) / (2 * np.pi)
    return np.abs(turns_N - round(turns_N[0]))


def _range(ends: tuple[float, float]) -> str:
    low, high = (f'{x:.4g}' for x in ends)
    return low if low == high else f'{low} to {high}'


def _label(part: Part) -> str:
    heads = f' · head{"s" if len(part.heads) > 1 else ""} {span(part.heads)}'
    return part.what + (heads if part.heads else '')
