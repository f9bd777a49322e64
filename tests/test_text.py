"""The one text form: what it reads, what it refuses, and that it never executes."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posjax.interventions import Intervention
from posjax.scheme import Scheme, parse, scheme
from posjax.tasks.task import Task
from posjax.text import parse as parse_any
from posjax.text import split


@pytest.mark.parametrize(
    ('text', 'canonical'),
    [
        ('rope(theta=5e5)|logn(train_length=32)', 'rope(theta=500000.0)|logn(train_length=32.0)'),
        (' rope ( ) ', 'rope'),
        ('rope(1e4)', 'rope'),
        ('rope(theta=10000)', 'rope'),
        ("rope(1e6, 'half')", "rope(theta=1000000.0, pairing='half')"),
        ('alibi(slopes=0.5)', 'alibi(slopes=(0.5,))'),
        ('alibi(slopes=[1, 2])', 'alibi(slopes=(1.0, 2.0))'),
        ('none|rope|none', 'rope'),
        ('none|none', 'none'),
        ('shift(by=-3)', 'shift(by=-3)'),
    ],
)
def test_canonical_text(text, canonical):
    assert parse(text).text == canonical == str(parse(canonical)) == repr(parse(canonical))


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('ropee', "unknown scheme 'ropee'; did you mean 'rope'\\? known: abacus"),
        ('rope(thta=1)', "no field 'thta'; did you mean 'theta'"),
        ("rope(theta='x')", "theta='x' should be a number"),
        ('rope(theta=True)', 'theta=True should be a number'),
        ('rope(theta=1e999)', 'theta=inf should be a finite number'),
        ('rope(theta=1e39)', 'theta=1e\\+39 should be a finite number that float32 can hold'),
        ('rope(theta=1e-39)', 'theta=1e-39 should be a finite number that float32 can hold'),
        ('shift(by=3000000000)', 'by=3000000000 should be at most 2147483647 in size'),
        ('rope(theta=-1.0)', 'theta=-1.0 should be positive'),
        ('sinusoidal(theta=0)', 'theta=0.0 should be positive'),
        ("rope(pairing='hlf')", "pairing='hlf'; did you mean 'half'"),
        ('rope(theta=10, theta=11)', 'theta is given twice|not of the form'),
        ('rope(1, theta=11)', 'theta is given twice'),
        ("rope(1, 'half', unscaled, 4)", 'at most 3 arguments, got 4'),
        ('rope(scaling=rope)', "unknown scaling 'rope'"),
        ('rope(scaling=linear(2)|linear(3))', 'expected name'),
        ('none(1)', 'at most 0 arguments|takes no arguments'),
        ('none(x=1)', 'it takes no arguments'),
        ('learned(max_length=1.5)', 'max_length=1.5 should be an integer'),
        ('learned(max_length=0)', 'max_length=0 should be at least 1'),
        ('logn', 'needs train_length'),
        ('rope(', 'not of the form'),
        ('rope(theta=1or 2)', 'not of the form'),
        ('', 'not of the form'),
        ('rope+alibi', 'expected name'),
        ('rope(theta=__import__("os"))', 'is not a literal value'),
        ('().__class__', 'expected name'),
        ('rope(**{})', "no field 'None'"),
        ('rope(*[1])', 'is not a literal value'),
    ],
)  # fmt: skip
def test_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        parse(text)
    assert '\n' not in str(error.value)


def test_only_texts_are_read():
    with pytest.raises(ValueError, match='expected a text such as'):
        parse(3)


@pytest.mark.parametrize('base', [Scheme, Task, Intervention])
@given(text=st.text(max_size=40) | st.text('rope()|=,.123"\'ntheta ', max_size=40))
def test_any_text_is_a_value_or_one_line(base, text):
    try:
        value = parse_any(text, base)
    except ValueError as error:
        assert '\n' not in str(error)
    else:
        assert parse_any(value.text, base) == value


@given(theta=st.floats(1e-30, 1e30), pairing=st.sampled_from(['interleaved', 'half']),
       slopes=st.lists(st.floats(0, 1e6, allow_subnormal=False, width=32), max_size=4))  # fmt: skip
def test_round_trip_is_exact(theta, pairing, slopes):
    registry = Scheme.registry
    for value in (registry['rope'](theta, pairing), registry['alibi'](tuple(slopes))):
        assert parse(value.text) == value


def test_a_name_is_registered_once():
    with pytest.raises(
        ValueError, match=r"scheme 'rope' is registered twice: in posjax.schemes.rope"
    ):

        @scheme
        class rope(Scheme):
            """Another."""


def test_floats_are_data_and_the_rest_is_structure():
    assert jax.tree.leaves(parse("rope(theta=5.0, pairing='half')")) == [5.0]
    assert jax.tree.structure(parse('rope(theta=5.0)')) == jax.tree.structure(parse('rope'))
    assert jax.tree.structure(parse("rope(pairing='half')")) != jax.tree.structure(parse('rope'))
    assert jax.tree.leaves(parse('alibi(slopes=(1, 2))|logn(train_length=3)')) == [1.0, 2.0, 3.0]
    assert jax.tree.leaves(parse('learned(max_length=7)')) == []


def test_lists_are_split_outside_parentheses():
    words = 'none, longrope((1.0, 2.0), (3.0,)) |logn,shift(by=1),'
    assert split(words) == ['none', 'longrope((1.0, 2.0), (3.0,)) |logn', 'shift(by=1)']
