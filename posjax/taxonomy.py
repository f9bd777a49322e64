"""The table of schemes, generated from the classes."""

import dataclasses
import inspect
import typing

import jax

import posjax.schemes  # noqa: F401  (fills the registry)
from posjax.scheme import Dims, Scheme, hooks
from posjax.spec import is_data

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


def explained(cls: type[Scheme]) -> str:
    """One scheme for a person: formula and fields, their types and defaults, hooks and paper."""
    fields = [
        f'    {f.name}: {_plain(f.type)}'
        + ('' if f.default is dataclasses.MISSING else f' = {f.default!r}')
        + (', data: may differ along a run axis' if is_data(f.type) else '')
        for f in dataclasses.fields(cls)
    ]
    facts = {
        'hooks': ', '.join(hooks(cls)) or 'none',
        'learned': 'yes' if learns(cls) else 'no',
        'relative': 'yes' if example(cls).relative else 'no',
        'past the training length': cls.beyond,
        'paper': cls.paper,
    }
    parts = [cls.name(), inspect.getdoc(cls)]
    if fields:
        parts.append('\n'.join(['Types and defaults:', *fields]))
    parts.append('\n'.join(f'{name}: {fact}' for name, fact in facts.items()))
    return '\n\n'.join(parts)


def _plain(annotation) -> str:
    """`float`, `tuple[float, ...]`, `Literal['a', 'b']`: without the modules they come from."""
    plain = isinstance(annotation, type) and not typing.get_args(annotation)
    return annotation.__name__ if plain else str(annotation).replace('typing.', '')
