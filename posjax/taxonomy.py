"""The table of schemes, generated from the classes."""

import dataclasses
import inspect

import jax

import posjax.schemes  # noqa: F401  (fills the registry)
from posjax.scheme import Dims, Scheme, hooks

# Required fields of a scheme take these values where only its kind matters.
_EXAMPLE = {int: 2, float: 2.0}


def example(cls: type[Scheme]) -> Scheme:
    """An instance with defaults, and small numbers for required fields."""
    return cls(**{
        f.name: _EXAMPLE[f.type]
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING
    })  # fmt: skip


def learns(cls: type[Scheme]) -> bool:
    """Whether the scheme has parameters of its own."""
    dims = Dims(width=8, heads=2, head_dim=4, layers=2)
    return bool(jax.eval_shape(lambda: example(cls).init(jax.random.key(0), dims)))


def markdown() -> str:
    """All registered schemes as a Markdown table."""
    rows = [('scheme', 'what it is', 'hooks', 'learned', 'relative', 'past the training length',
             'paper')]  # fmt: skip
    rows.append(('---',) * len(rows[0]))
    for name, cls in sorted(Scheme.registry.items()):
        rows.append((
            f'`{name}`',
            inspect.getdoc(cls).splitlines()[0].rstrip('.').split(':')[0],
            ', '.join(hooks(cls)) or '–',
            'yes' if learns(cls) else 'no',
            'yes' if example(cls).relative else 'no',
            cls.beyond,
            cls.paper,
        ))  # fmt: skip
    return '\n'.join('| ' + ' | '.join(row) + ' |' for row in rows)
