"""Places of digits within their numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from tests.cases import MODEL, apply, context, random_params

EXAMPLES = [
    'learned(max_length=64)|abacus(digits=4, max_offset=30)',
    'rope|abacus(digits=10, max_offset=3)',
]


def by_hand(sequence, digits, offset=0):
    """Counts along each run of digits."""
    found, run = [], 0
    for token in sequence:
        run = run + 1 if token < digits else 0
        found.append(run + offset if run else 0)
    return found


def placed(sequences, digits=10, key=None, pos=None, max_offset=99):
    toks = jnp.asarray(sequences)
    pos = jnp.arange(toks.shape[1])[None] if pos is None else jnp.asarray(pos)
    scheme = parse(f'abacus(digits={digits}, max_offset={max_offset})')
    return np.asarray(scheme.positions(pos, toks, jnp.full((1,), toks.shape[1]), key))


def test_golden():
    # 27 + 105 = 132 with the last digit first; + is token 10, = is 11.
    spelt = [[7, 2, 10, 5, 0, 1, 11, 2, 3, 1]]
    np.testing.assert_array_equal(placed(spelt), [[1, 2, 0, 1, 2, 3, 0, 1, 2, 3]])
    rng = np.random.default_rng(0)
    for length, digits in ((1, 1), (9, 3), (40, 10), (200, 11)):
        toks = rng.integers(0, 12, (20, length))
        expected = [by_hand(row, digits) for row in toks.tolist()]
        np.testing.assert_array_equal(placed(toks, digits), expected)


def test_golden_one_uniform_offset_for_the_digits_of_a_batch():
    toks, many, largest = np.array([[3, 4, 10, 1], [10, 10, 0, 0]]), 2000, 3
    scheme = parse(f'abacus(max_offset={largest})')
    pos, length = jnp.arange(4)[None], jnp.full((1,), 4)
    keys = jax.random.split(jax.random.key(0), many)
    got = jax.vmap(lambda key: scheme.positions(pos, jnp.asarray(toks), length, key))(keys)
    counts = np.zeros(largest + 1)
    for rows in np.asarray(got):
        offset = rows[0, 0] - 1
        assert rows.tolist() == [by_hand(row, 10, offset) for row in toks.tolist()]
        counts[offset] += 1
    expected = many / (largest + 1)
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees: 1 in 1,000


def test_every_knob_changes_the_places():
    toks, key = [[3, 4, 10, 1]], jax.random.key(0)
    assert not np.array_equal(placed(toks, digits=10), placed(toks, digits=11))
    assert not np.array_equal(placed(toks, key=key), placed(toks, key=key, max_offset=10**6))
    np.testing.assert_array_equal(placed(toks, key=key, max_offset=0), placed(toks))


def test_padding_and_new_sequences_end_a_number():
    # Two places of padding whose tokens are digits, then 5, 6: position 0 three times.
    np.testing.assert_array_equal(placed([[0, 0, 5, 6]], pos=[[0, 0, 0, 1]])[:, 2:], [[1, 2]])
    # Two sequences in one row: positions start again.
    np.testing.assert_array_equal(placed([[5, 6, 7, 8]], pos=[[0, 1, 0, 1]]), [[1, 2, 1, 2]])
    # Fractional positions rise as well.
    np.testing.assert_array_equal(placed([[5, 6, 7]], pos=[[0, 0.5, 1.0]]), [[1, 2, 3]])


def test_digits_of_one_place_share_a_row():
    scheme = parse('learned(max_length=8)|abacus')
    params = random_params(scheme)
    toks = jnp.asarray([[1, 2, 10, 1, 2]])
    pos = scheme.positions(jnp.arange(5)[None], toks, jnp.full((1,), 5), None)
    x = scheme.embed(params['scheme'], jnp.zeros((1, 5, 16)), context(pos[0]))
    rows = np.asarray(params['scheme']['learned']['table'])[[1, 2, 0, 1, 2]]
    np.testing.assert_array_equal(x[0], rows)


def test_a_place_without_a_row_is_never_another_row():
    scheme = parse('learned(max_length=3)|abacus')
    toks = jnp.asarray([[10, 1, 2, 3]])
    got = apply(MODEL, random_params(scheme), toks, scheme).logits_BTC
    assert np.isnan(got[:, 3]).all()


def test_refused():
    with pytest.raises(ValueError, match='digits=0 should be at least 1'):
        parse('abacus(digits=0)')
    with pytest.raises(ValueError, match='max_offset=-1 should be at least 0'):
        parse('abacus(max_offset=-1)')
