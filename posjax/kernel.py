"""Score against distance: the curves that a scheme draws, for the last token of a sequence.

Shape suffixes: S keys, H heads, G groups of coordinates, T tokens, D width.
"""

import dataclasses

import jax
import numpy as np
from matplotlib.figure import Figure

from posjax import probe
from posjax.probe import View
from posjax.report import aligned
from posjax.scheme import Dims, Params, Scheme, parse


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What the last of S tokens makes of each key, by distance. `print` it, or draw `figure()`.

    Attributes:
      distance_S: tokens back, from 0.
      bias_HS: added to the score whatever the content; NaN where the key is out of sight.
      alike_HS: the score of a query and a key that are both (1, ..., 1), beside the bias and as a
        share of what it is without a scheme: ALiBi's is 1, RoPE's its decay curve.
      groups: coordinates of the head that meet in the score; RoPE's pairs.
      group_GHS: each group's share of `alike`, 1 where the scheme leaves it alone: a pair's cosine.
      embed_TD: what is added to the embedding at each position.
    """

    scheme: Scheme
    layer: int
    distance_S: np.ndarray
    bias_HS: np.ndarray
    alike_HS: np.ndarray
    groups: tuple[tuple[int, ...], ...]
    group_GHS: np.ndarray
    embed_TD: np.ndarray

    def __str__(self) -> str:
        heads = range(len(self.bias_HS))
        rows = [['distance', *(f'bias, head {h}' for h in heads),
                 *(f'alike, head {h}' for h in heads)]]  # fmt: skip
        last = len(self.distance_S) - 1
        for n in dict.fromkeys([0, *(2**k for k in range(31) if 2**k < last), last]):
            rows.append(
                [str(n), *(f'{x:.4g}' for x in (*self.bias_HS[:, n], *self.alike_HS[:, n]))]
            )
        return f'{self.scheme.text}, layer {self.layer}\n\n{aligned(rows)}'

    def figure(self, head: int = 0) -> Figure:
        """Curves of all heads; and maps of what one head's coordinates, or the embedding, do."""
        curves = [(name, x_HS) for name, x_HS in (('bias', self.bias_HS), ('alike', self.alike_HS))
                  if np.nanmax(x_HS) - np.nanmin(x_HS) > 1e-4]  # fmt: skip
        maps = []
        if np.ptp(self.group_GHS[:, head], axis=-1).max() > 1e-4:
            pairs = all(len(group) > 1 for group in self.groups)
            maps.append(
                (
                    self.group_GHS[:, head],
                    'pair' if pairs else 'coordinate or pair',
                    f'distance back (tokens), head {head}',
                    'share of the plain score',
                )
            )
        if self.embed_TD.any():
            maps.append((self.embed_TD.T, 'column', 'position', 'added to the embedding'))
        count = max(len(curves) + len(maps), 1)
        figure = Figure(figsize=(4.6 * count, 3.4), layout='constrained')
        axes = figure.subplots(1, count, squeeze=False)[0]
        figure.suptitle(self.scheme.text, fontsize=10)
        for axis, (name, x_HS) in zip(axes, curves, strict=False):
            for h, x_S in enumerate(x_HS):
                axis.plot(self.distance_S, x_S, linewidth=1.5, label=f'head {h}')
            label = 'bias' if name == 'bias' else 'score of equal query and key (share of plain)'
            axis.set(xlabel='distance back (tokens)', ylabel=label)
            axis.grid(alpha=0.25)
            if len(x_HS) > 1:
                axis.legend(frameon=False, fontsize=8)
        for axis, (x, rows, columns, label) in zip(axes[len(curves) :], maps, strict=False):
            most = np.nanmax(np.abs(x))
            drawn = axis.imshow(x, aspect='auto', cmap='RdBu_r', vmin=-most, vmax=most,
                                interpolation='nearest')  # fmt: skip
            axis.set(xlabel=columns, ylabel=rows)
            figure.colorbar(drawn, ax=axis, label=label)
        if not curves and not maps:
            axes[0].text(0.5, 0.5, 'no score and no embedding depends on position',
                         ha='center', va='center', wrap=True)  # fmt: skip
            axes[0].set_axis_off()
        return figure


def kernel(
    scheme: Scheme | str, dims: Dims, length: int = 128, params: Params | None = None,
    layer: int = 0,
) -> Kernel:  # fmt: skip
    """How the last of `length` tokens scores each key, by distance.

    Args:
      scheme: a scheme or its text.
      dims: sizes of the model.
      length: tokens.
      params: the scheme's parameters (`params['scheme']`); by default random ones.
      layer: whose scores; schemes may differ by layer.

    Raises:
      ValueError: the scheme does not fit such a model or length, or there is no such layer.
    """
    scheme = parse(scheme) if isinstance(scheme, str) else scheme
    scheme.check_fit(dims, range(length))
    if not 0 <= layer < dims.layers:
        raise ValueError(f'layer {layer} should be from 0 to {dims.layers - 1}')
    params = probe.parameters(scheme, dims) if params is None else params
    groups = probe.interacting(scheme, dims, params, length)
    pairs = [(a, b) for group in groups for a in group for b in group]
    key = jax.random.key(0) if probe.is_random(scheme) else None
    view = View(length, (length - 1,), layer)
    found = probe.anatomy(scheme, dims, params, view, pairs, key)
    visible_HS = found.visible_HQS[:, 0, ::-1]
    pair_PHS = found.pair_PHQS[:, :, 0, ::-1] / dims.head_dim**-0.5
    group_GHS = np.stack([
        pair_PHS[[n for n, (a, b) in enumerate(pairs) if a == b and a in group]].mean(axis=0)
        for group in groups
    ])  # fmt: skip
    hide = np.where(visible_HS, 0, np.nan)
    return Kernel(
        scheme,
        layer,
        np.arange(length),
        found.bias_HQS[:, 0, ::-1] + hide,
        pair_PHS.sum(axis=0) / dims.head_dim + hide,
        tuple(groups),
        group_GHS + hide,
        found.embed_TD,
    )
