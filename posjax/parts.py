"""Numbers of a scheme, one by one, and how those that say the same are told together."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Part:
    """One number of a scheme, in the view of the last token.

    Attributes:
      what: 'bias', 'pair 3', 'embedding column 3', 'learned/table rows 32–127', ...
      heads, layers: where it is so; () for what does not differ there.
      unit: of `trained` and `asked`, which are (lowest, highest): 'score', 'turns' of a rotation,
        'size' of a vector, 'entries' of parameters that the token reads.
      over: what `met` runs over: 'distance' back from the token to a key, or 'position'.
      met: for each of these, from 0: 1 met in training, 0 not, NaN out of sight.
    """

    what: str
    heads: tuple[int, ...]
    layers: tuple[int, ...]
    unit: str
    trained: tuple[float, float]
    asked: tuple[float, float]
    over: str
    met: tuple[float, ...]

    @property
    def unmet(self) -> float:
        """The share of visible keys, or of positions, at which training never met the like."""
        met = np.asarray(self.met)
        return float((met == 0).sum() / max((~np.isnan(met)).sum(), 1))


def merged(parts: Sequence[Part]) -> list[Part]:
    """Parts that say the same of several heads, layers or coordinates, as one.

    Numbers that were met throughout say the same however far they reach.
    """

    def together(parts, key, field, join):
        groups: dict = {}
        for part in parts:
            said = (part.trained, part.asked) if part.unmet else ()
            said = tuple(f'{x:.3g}' for ends in said for x in ends)
            same = key(part), part.unit, part.over, said, np.asarray(part.met).tobytes()
            groups.setdefault(same, []).append(part)
        return [
            dataclasses.replace(group[0], trained=_hull(p.trained for p in group),
                                asked=_hull(p.asked for p in group), **{field: join(group)})
            for group in groups.values()
        ]  # fmt: skip

    def union(field):
        return lambda group: tuple(sorted({n for part in group for n in getattr(part, field)}))

    def names(group):
        kind, numbers = _kind(group[0]), [int(part.what.rpartition(' ')[2]) for part in group[1:]]
        first = group[0].what.rpartition(' ')[2]
        return f'{kind}s {span([int(first), *numbers])}' if numbers else group[0].what

    parts = together(parts, lambda p: (p.what, p.heads), 'layers', union('layers'))
    parts = together(parts, lambda p: (p.what, p.layers), 'heads', union('heads'))
    return together(parts, lambda p: (_kind(p), p.heads, p.layers), 'what', names)


def _kind(part: Part) -> str:
    """`pair` of `pair 3`; names that do not end in a number of their own stay whole."""
    kind, _, number = part.what.rpartition(' ')
    return kind if number.isdigit() and part.unit != 'entries' else part.what


def _hull(ranges):
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def span(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as `1–3, 7`."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ', '.join(str(r[0]) if len(r) == 1 else f'{r[0]}–{r[-1]}' for r in runs) or '–'
