"""From a text to a value: `rope(theta=5e5)|logn(train_length=32)`, read and never executed."""

import ast
import dataclasses
import difflib
import math
import types
import typing
import warnings
from typing import Any

from posjax.spec import Spec, is_spec, is_variadic

# Everything is computed in 32 bits, where larger numbers wrap around and smaller ones are 0.
_LARGEST_INT = 2**31 - 1
_SMALLEST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127


def parse(text: str, base: type[Spec], combine=None) -> Any:
    """The value a text stands for; nothing is ever executed.

    Args:
      text: `name`, `name(field=literal, ...)`, or these joined with `|` where `combine` is given.
      base: the kind of value (its `registry` lists the names).
      combine: joins the values of `a|b|c`; None refuses `|`.

    Raises:
      ValueError: one line that names the text, what is wrong with it, and the remedy.
    """
    if not isinstance(text, str):
        raise ValueError(f'{base.kind} {text!r}: expected a text such as {_example(base)!r}')
    try:
        with warnings.catch_warnings():
            # Of `1or 2` Python only warns, on stderr.
            warnings.simplefilter('error', SyntaxWarning)
            tree = ast.parse(text.strip(), mode='eval').body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(
            f'{base.kind} {text!r} is not of the form name(field=value, ...)'
            + (' or a|b' if combine else '')
        ) from None
    return _build(tree, text, base, combine)


def split(words: str) -> list[str]:
    """`none,shift(by=1),a` at commas outside all parentheses."""
    parts, depth = [''], 0
    for letter in words:
        depth += {'(': 1, ')': -1}.get(letter, 0)
        if letter == ',' and depth <= 0:
            parts.append('')
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def suggest(word: str, known) -> str:
    """`; did you mean 'x'? known: x, y, z`, for the end of an error message."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1)
    return (f'; did you mean {near[0]!r}?' if near else ';') + ' known: ' + ', '.join(known)


def _build(tree, text, base, combine):
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr) and combine:
        return combine(*(_build(side, text, base, combine) for side in (tree.left, tree.right)))
    call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
    if not isinstance(call.func, ast.Name):
        raise ValueError(f'{base.kind} {text!r}: expected name or name(field=value, ...)')
    name = call.func.id
    if name not in base.registry:
        raise ValueError(f'unknown {base.kind} {name!r}{suggest(name, base.registry)}')
    cls = base.registry[name]
    fields = {f.name: f for f in dataclasses.fields(cls)}
    given = list(zip(_positional(cls, call, fields), call.args, strict=True))
    values: dict[str, Any] = {}
    for key, node in given + [(k.arg, k.value) for k in call.keywords]:
        where = f'{base.kind} {name}'
        if key not in fields:
            hint = suggest(str(key), fields) if fields else '; it takes no arguments'
            raise ValueError(f'{where} has no field {str(key)!r}{hint}')
        value = _value(node, fields[key].type, f'{where}: {key}', text, base, combine)
        if key in values and not is_variadic(fields[key].type):
            raise ValueError(f'{where}: {key} is given twice')
        values[key] = values.get(key, ()) + value if key in values else value
    missing = [f for f, d in fields.items() if d.default is dataclasses.MISSING and f not in values]
    if missing:
        raise ValueError(f'{base.kind} {name} needs {", ".join(missing)}, as in {_example(cls)!r}')
    built = cls(**values)
    built.check()
    return built


def _positional(cls, call, fields):
    """Names for positional arguments: in field order, a last tuple of specs takes all the rest."""
    names = list(fields)
    if len(call.args) > len(names) and names and is_variadic(fields[names[-1]].type):
        names += [names[-1]] * (len(call.args) - len(names))
    if len(call.args) > len(names):
        raise ValueError(f'{cls.kind} {cls.name()} takes at most {len(names)} arguments, '
                         f'got {len(call.args)}')  # fmt: skip
    return names[: len(call.args)]


def _value(node, annotation, where, text, base, combine):
    if is_spec(annotation):
        # `|` joins values of the kind that is being parsed, and of no other.
        return _build(node, text, annotation, combine if annotation is base else None)
    if is_variadic(annotation):
        nodes = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
        return tuple(_build(n, text, base, combine) for n in nodes)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f'{where}={ast.unparse(node)} is not a literal value') from None
    return coerce(value, annotation, where)


def coerce(value, annotation, where: str):
    """`value` as the annotated type (an int will do for a float), or a one-line ValueError."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):  # a number, or a word
        word = next(a for a in args if typing.get_origin(a) is typing.Literal)
        number = next(a for a in args if a is not word)
        if isinstance(value, str) and value not in typing.get_args(word):
            words = ' or '.join(map(repr, typing.get_args(word)))
            raise ValueError(f'{where}={value!r} should be {_kind_of(number)}, or {words}')
        return coerce(value, word if isinstance(value, str) else number, where)
    if origin is typing.Literal:
        if value not in args or isinstance(value, bool) != isinstance(args[0], bool):
            raise ValueError(f'{where}={value!r}{suggest(str(value), map(str, args))}')
        return value
    if origin is tuple:
        items = value if isinstance(value, tuple | list) else (value,)
        return tuple(coerce(item, args[0], where) for item in items)
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    if type(value) is not annotation:
        raise ValueError(f'{where}={value!r} should be {_kind_of(annotation)}')
    if annotation is int and abs(value) > _LARGEST_INT:
        raise ValueError(f'{where}={value!r} should be at most {_LARGEST_INT} in size')
    if annotation is float and not (value == 0 or _SMALLEST <= abs(value) <= _LARGEST):
        raise ValueError(f'{where}={value!r} should be a finite number that float32 can hold')
    return value


def _kind_of(annotation) -> str:
    if isinstance(annotation, types.GenericAlias):
        return f'a tuple of {annotation.__args__[0].__name__}s'
    return {int: 'an integer', float: 'a number', bool: 'True or False', str: 'a text'}.get(
        annotation, str(annotation)
    )


def _example(cls) -> str:
    """A text of this class, or of the first class of its registry, that shows the form."""
    if cls.__dict__.get('__dataclass_fields__') is None:
        return next(iter(sorted(cls.registry)), 'name')
    example = {int: '8', float: '2.0', bool: 'True', str: "'x'"}
    shown = [
        f'{f.name}={example.get(f.type, "...")}'
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING
    ]
    return cls.name() + (f'({", ".join(shown)})' if shown else '')
