"""Positions moved by a random number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from tests.cases import MODEL, apply, random_params, tokens

EXAMPLES = [
    'learned(max_length=40)|random_offset(max_offset=5)',
    'rope|random_offset(max_offset=5)',
]


def moved(key, pos=((0, 1, 2, 5),), batch=3, **fields):
    scheme = parse('random_offset(' + ', '.join(f'{n}={v!r}' for n, v in fields.items()) + ')')
    pos = jnp.asarray(pos)
    toks = jnp.zeros((batch, pos.shape[1]), jnp.int32)
    return scheme.positions(pos, toks, jnp.full((1,), pos.shape[1]), key)


def test_golden_all_positions_move_by_one_uniform_number():
    largest, many = 3, 2000
    counts = np.zeros(largest + 1)
    for row in np.asarray(moved(jax.random.key(0), batch=many, max_offset=largest)):
        offset = row[0]
        assert row.tolist() == [offset, offset + 1, offset + 2, offset + 5]
        counts[offset] += 1
    expected = many / (largest + 1)
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees: 1 in 1,000


def test_nothing_moves_without_a_key_or_an_offset():
    np.testing.assert_array_equal(moved(None, max_offset=9), [[0, 1, 2, 5]])
    still = moved(jax.random.key(0), max_offset=0)
    np.testing.assert_array_equal(still, np.tile([0, 1, 2, 5], (3, 1)))


def test_one_offset_per_batch_or_per_example():
    key = jax.random.key(0)
    rows = np.asarray(moved(key, max_offset=10**6))
    assert rows.shape == (3, 4) and len(set(rows[:, 0].tolist())) == 3
    one = np.asarray(moved(key, max_offset=10**6, per='batch'))
    assert one.shape == (1, 4)
    assert one[0, 0] != moved(jax.random.key(1), max_offset=10**6, per='batch')[0, 0]
    # An example's offset does not depend on how many come with it.
    np.testing.assert_array_equal(moved(key, batch=2, max_offset=10**6), rows[:2])


def test_fractional_positions_stay_fractional():
    got = moved(jax.random.key(0), pos=((0.0, 0.25),), batch=1, max_offset=100)
    assert got.dtype == jnp.float32
    assert float(got[0, 1] - got[0, 0]) == 0.25


def test_a_relative_scheme_does_not_notice():
    scheme = parse('alibi|random_offset(max_offset=50)')
    params, toks = random_params(scheme), tokens()
    plain = apply(MODEL, params, toks, scheme).logits_BTC
    got = apply(MODEL, params, toks, scheme, key=jax.random.key(1)).logits_BTC
    np.testing.assert_allclose(got, plain, atol=1e-5)


def test_an_offset_past_the_table_is_never_another_row():
    scheme = parse('learned(max_length=9)|random_offset(max_offset=1000)')
    params, toks = random_params(scheme), tokens()
    got = apply(MODEL, params, toks, scheme, key=jax.random.key(0)).logits_BTC
    assert np.isnan(got).all()


def test_a_negative_offset_is_refused():
    with pytest.raises(ValueError, match='max_offset=-1 should be at least 0'):
        parse('random_offset(max_offset=-1)')
