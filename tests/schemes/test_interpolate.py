"""Positions closer together."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from tests.cases import MODEL, apply, context, random_params, tokens

EXAMPLES = [
    'rope|interpolate(factor=2.0)',
    'learned(max_length=40)|interpolate(factor=2.5)',
    'alibi|interpolate(factor=3.0)',
]


def test_golden():
    pos = jnp.arange(5)[None]
    moved = parse('interpolate(factor=4.0)').positions(pos, None, None, None)
    np.testing.assert_array_equal(moved, [[0, 0.25, 0.5, 0.75, 1]])
    shifted = parse('shift(by=3)|interpolate(factor=2.0)').positions(pos, None, None, None)
    np.testing.assert_array_equal(shifted, [[1.5, 2, 2.5, 3, 3.5]])


def test_it_is_linear_scaling_of_frequencies():
    toks, params = tokens(length=24), random_params(parse('rope'))
    by_position, by_frequency, plain = (
        apply(MODEL, params, toks, parse(text)).logits_BTC
        for text in ('rope|interpolate(4)', 'rope(scaling=linear(4))', 'rope')
    )
    np.testing.assert_allclose(by_position, by_frequency, atol=1e-5)
    assert np.abs(by_position - plain).max() > 0.01


def test_a_table_is_read_between_its_rows():
    table = np.random.default_rng(0).normal(size=(3, 4))
    ctx = context(jnp.float32([0, 0.25, 1.5, 2, 2.5]))
    params = {'table': jnp.float32(table)}
    got = parse('learned(max_length=3)').embed(params, jnp.zeros((1, 5, 4)), ctx)[0]
    expected = [table[0], 0.75 * table[0] + 0.25 * table[1], (table[1] + table[2]) / 2, table[2]]
    np.testing.assert_allclose(got[:4], expected, atol=1e-6)
    assert np.isnan(got[4]).all()  # half of a row that is not there


def test_a_factor_below_one_is_refused():
    with pytest.raises(ValueError, match='scheme interpolate: factor=0.5 should be at least 1'):
        parse('interpolate(factor=0.5)')
