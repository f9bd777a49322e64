"""Values with one text form: frozen dataclasses that are also JAX pytrees.

    rope(theta=500000.0)   <->   rope(theta=5e5)

Schemes, tasks and interventions are all of this kind. Two rules give the whole bench its shape:

  * Fields annotated `float`, `tuple[float, ...]`, or with another such class are *data*: leaves of
    the pytree. They can be traced, stacked along a run axis, differentiated.
  * Every other field (int, bool, str, Literal, tuple[int, ...]) is *structure*: it takes part in
    the treedef, so two values with equal structure share one compiled program.

JAX rebuilds these dataclasses with tracers inside, so values are never validated in
`__post_init__`: a class has a `check()` that parsing (text.py) and configs call.
"""

import dataclasses
import typing
from typing import ClassVar, Self

import jax


class Spec:
    """Base of everything that has a text form. `kind` names what it is in error messages."""

    kind: ClassVar[str] = 'value'
    registry: ClassVar[dict[str, type[Self]]]

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @property
    def text(self) -> str:
        """The canonical text: the name, and the fields that differ from their defaults."""
        shown = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default is dataclasses.MISSING or value != field.default:
                shown.append(f'{field.name}={_text_of(value)}')
        return self.name() + (f'({", ".join(shown)})' if shown else '')

    def __repr__(self) -> str:
        return self.text

    def check(self) -> None:
        """Raises ValueError, in one line, where a field is set outside its meaning."""

    def require(self, field: str, good: bool, what: str) -> None:
        """For `check`: raises ValueError, unless `good`, that `field` should be `what`."""
        if not good:
            value = getattr(self, field)
            raise ValueError(f'{self.kind} {self.name()}: {field}={value!r} should be {what}')


def structured(cls=None, *, data: tuple[str, ...] = ()):
    """Makes a class a frozen dataclass and a pytree; `data` adds fields to the leaves."""
    if cls is None:
        return lambda c: structured(c, data=data)
    cls = dataclasses.dataclass(frozen=True, repr=not issubclass(cls, Spec))(cls)
    fields = dataclasses.fields(cls)
    leaves = [f.name for f in fields if f.name in data or is_data(f.type)]
    rest = [f.name for f in fields if f.name not in leaves]
    jax.tree_util.register_dataclass(cls, data_fields=leaves, meta_fields=rest)
    return cls


def register(cls):
    """Decorator: `structured`, and findable by its class name in the texts of its kind."""
    cls = structured(cls)
    known = cls.registry.get(cls.name())
    # A module that is executed again (a notebook's reload) may replace its own class, nothing else.
    if known and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f'{cls.kind} {cls.name()!r} is registered twice: in {known.__module__} '
                         f'and in {cls.__module__}; rename one')  # fmt: skip
    cls.registry[cls.name()] = cls
    return cls


def is_spec(annotation) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Spec)


def is_variadic(annotation) -> bool:
    args = typing.get_args(annotation)
    return typing.get_origin(annotation) is tuple and bool(args) and is_spec(args[0])


def is_data(annotation) -> bool:
    """Whether fields annotated so are leaves: numbers that may be traced."""
    return (
        annotation is float
        or annotation == tuple[float, ...]
        or is_spec(annotation)
        or is_variadic(annotation)
        or (isinstance(annotation, type) and hasattr(annotation, '__dataclass_fields__'))
    )


def _text_of(value) -> str:
    if isinstance(value, Spec):
        return value.text
    if isinstance(value, tuple):
        return '(' + ', '.join(map(_text_of, value)) + (',)' if len(value) == 1 else ')')
    return repr(value)
