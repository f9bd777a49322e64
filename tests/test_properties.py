"""Any text and any config: a value that prints back to itself, or one line; never a traceback."""

import dataclasses
import json
import math
import types
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posjax import config as config_lib
from posjax import plan
from posjax.config import ConfigError
from posjax.interventions import Intervention
from posjax.interventions import parse as parse_intervention
from posjax.scaling import Scaling
from posjax.scheme import Scheme
from posjax.scheme import parse as parse_scheme
from posjax.spec import Spec, is_spec, is_variadic
from posjax.sweep import group
from posjax.tasks.task import Task
from posjax.text import parse as parse_text

KINDS = (Scheme, Task, Intervention, Scaling)
EXAMPLES = settings(max_examples=60)


def parse(text: str, base: type[Spec]):
    whole = {Scheme: parse_scheme, Intervention: parse_intervention}.get(base)
    return whole(text) if whole else parse_text(text, base)


def numbers(annotation) -> st.SearchStrategy:
    """Texts of values of a field's type, in and out of its meaning."""
    ints = st.integers(-3, 70) | st.sampled_from([2**31 - 1, 2**31, -(10**30)])
    floats = (
        st.floats(allow_nan=False, allow_infinity=False)
        | st.floats(-4, 1e6, width=32, allow_subnormal=False)
        | ints
    )
    if is_spec(annotation):
        return texts(annotation, depth=0)
    if is_variadic(annotation):
        inner = texts(typing.get_args(annotation)[0], depth=0)
        return st.lists(inner, max_size=3).map(lambda t: f'({", ".join(t)},)' if t else '()')
    if typing.get_origin(annotation) is tuple:
        inner = numbers(typing.get_args(annotation)[0])
        return st.lists(inner, max_size=3).map(lambda t: f'({", ".join(t)},)' if t else '()')
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return st.one_of(*map(numbers, typing.get_args(annotation)))
    if typing.get_origin(annotation) is typing.Literal:
        return st.sampled_from(typing.get_args(annotation)).map(repr)
    return {
        float: floats.map(repr),
        int: ints.map(repr),
        bool: st.booleans().map(repr),
        str: st.text(max_size=8).map(repr),
    }[annotation]


@st.composite
def texts(draw, base: type[Spec], depth: int = 1):
    """`name(field=value, ...)` over the registry: known names and types, any values."""
    cls = draw(st.sampled_from(sorted(base.registry.values(), key=lambda c: c.name())))
    shown = [
        f'{field.name}={draw(numbers(field.type))}'
        for field in dataclasses.fields(cls)
        if (depth or not is_spec(field.type) and not is_variadic(field.type))
        and (field.default is dataclasses.MISSING or draw(st.booleans()))
    ]
    text = f'{cls.name()}({", ".join(shown)})'
    if base in (Scheme, Intervention) and depth and draw(st.booleans()):
        text += '|' + draw(texts(base, depth=0))
    return text


def one_line(error: ValueError) -> None:
    assert '\n' not in str(error) and str(error).strip()


@pytest.mark.parametrize('base', KINDS)
@EXAMPLES
@given(data=st.data())
def test_a_text_of_the_registry_is_a_value_or_one_line(base, data):
    text = data.draw(texts(base))
    try:
        value = parse(text, base)
    except ValueError as error:
        one_line(error)
    else:
        assert parse(value.text, base) == value
        assert parse(value.text, base).text == value.text


@pytest.mark.parametrize('base', KINDS)
@EXAMPLES
@given(data=st.data())
def test_a_damaged_text_is_a_value_or_one_line(base, data):
    text = data.draw(texts(base))
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    try:
        value = parse(text[:start] + data.draw(st.text(max_size=4)) + text[stop:], base)
    except ValueError as error:
        one_line(error)
    else:
        assert parse(value.text, base) == value


@pytest.mark.parametrize(
    'text',
    ['(' * 5000, '-' * 9000 + '1', 'rope' + '|rope' * 3000, 'rope(theta=' + '9' * 5000 + ')',
     'rope(theta=1' + '0' * 400 + ')', 'rope(theta=1j)', 'rope(theta=b"x")', 'rope(theta=...)',
     'a\x00b', '\ud800', 'rope\n(theta=1)\n', 'rope(theta={[]: 1})', 'rope(theta=-(-1))'],
)  # fmt: skip
def test_texts_that_break_parsers(text):
    for base in KINDS:
        try:
            parse(text, base)
        except ValueError as error:
            one_line(error)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(['rope', 'lag', 'none', 'None', 1, 2, 8, 0.5, '../x']),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=2),
    max_leaves=4,
)
FIELDS = sorted(config_lib.flatten(config_lib.default()))


def changed(values):
    config = config_lib.default()
    for name, value in values.items():
        *groups, last = name.split('.')
        target = config
        for part in groups:
            target = target[part]
        with target.ignore_type():
            target[last] = value
    return config


@settings(max_examples=300)
@given(values=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, min_size=1, max_size=2))
def test_a_config_is_runs_or_one_line(values):
    config = changed(values)
    try:
        runs = plan.runs(config)
    except ConfigError as error:
        one_line(error)
        return
    again = config_lib.from_json(config_lib.to_json(config))
    assert plan.runs(again) == runs and config_lib.differences(config, again) == []
    for of in group(runs):
        assert all(c.isalnum() or c in '-_' for c in of.name), 'a name that leaves the folder'
    assert all(math.isfinite(run.optim.learning_rate) for run in runs)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(['model', 'width', 'task', 'sweep', 'x', '']), inner)
    ),
    max_leaves=6,
)


@EXAMPLES
@given(value=JSON, text=st.text(max_size=30))
def test_a_stored_config_is_a_config_or_one_line(value, text):
    for stored in (json.dumps(value), text):
        try:
            config_lib.from_json(stored)
        except ConfigError as error:
            one_line(error)
