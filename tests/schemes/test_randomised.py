"""Random position numbers: what is drawn, how often, and what later tokens cannot change."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import model as model_lib
from posjax.scheme import parse
from posjax.schemes.randomised import draws, even_sample, sorted_sample
from tests.cases import MODEL, apply, random_params, tokens

EXAMPLES = ['rope|randomised(max_position=40)', 'sinusoidal|randomised(max_position=40)']


def drawn(key, lengths, places=None, batch=None, **fields):
    """Numbers (B, T) for plain positions 0, 1, ..., places - 1 of sequences of these lengths."""
    scheme = parse('randomised(' + ', '.join(f'{n}={v!r}' for n, v in fields.items()) + ')')
    lengths = jnp.asarray(lengths)
    pos = jnp.arange(places or int(lengths.max()))[None]
    toks = jnp.zeros((batch or lengths.size, pos.shape[1]), jnp.int32)
    return np.asarray(scheme.positions(pos, toks, lengths, key))


def keys(count):
    return jax.random.split(jax.random.key(0), count)


def test_golden_is_the_sorted_start_of_a_random_order():
    for length, most in ((1, 1), (1, 9), (9, 9), (7, 2048), (2048, 2048)):
        key = draws(jax.random.key(length), 'batch', 1)[0]
        order = np.asarray(jax.random.permutation(key, most))
        expected = sorted(m for m in range(most) if order[m] < length)
        assert len(expected) == length
        got = sorted_sample(key[None], jnp.full((1, 1), length), most, jnp.arange(length)[None])
        np.testing.assert_array_equal(got[0], expected)


def test_golden_every_subset_is_drawn_equally_often():
    many = 6000
    pos, length = jnp.arange(2)[None], jnp.full((1,), 2)
    scheme, toks = parse('randomised(max_position=4)'), jnp.zeros((1, 2), jnp.int32)
    got = jax.vmap(lambda key: scheme.positions(pos, toks, length, key)[0])(keys(many))
    found, counts = np.unique(np.asarray(got), axis=0, return_counts=True)
    assert found.tolist() == [list(pair) for pair in itertools.combinations(range(4), 2)]
    expected = many / 6
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # chi-square, 5 degrees: 1 in 1,000


def test_golden_even_numbers_are_the_means_of_order_statistics():
    for most in (1, 2, 7, 40):
        for length in range(1, most + 1):
            # The mean over all subsets, counted out where they are few.
            if most <= 7:
                subsets = list(itertools.combinations(range(most), length))
                means = [Fraction(sum(s[i] for s in subsets), len(subsets)) for i in range(length)]
            else:
                means = [Fraction((i + 1) * (most + 1), length + 1) - 1 for i in range(length)]
            got = even_sample(jnp.full((1, 1), length), most, jnp.arange(most)[None])[0, :length]
            np.testing.assert_array_equal(got, [m.numerator // m.denominator for m in means])


def test_even_numbers_are_exact_at_any_size():
    most = 65534
    for length in (1, 3, 32768, 65533, 65534):
        got = even_sample(jnp.full((1, 1), length), most, jnp.arange(most)[None])[0, :length]
        expected = np.array([(i + 1) * (most + 1) // (length + 1) - 1 for i in range(length)])
        assert expected.dtype == np.int64
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize('key', [None, jax.random.key(3)])
def test_numbers_rise_strictly_within_the_range(key):
    got = drawn(key, [1, 5, 12], places=12, max_position=12, per='example')
    for row, length in zip(got, (1, 5, 12), strict=True):
        assert (np.diff(row) > 0).all()
        assert row[0] >= 0 and row[length - 1] < 12
    assert got[2].tolist() == list(range(12))


def test_nothing_is_random_without_a_key_or_when_even():
    np.testing.assert_array_equal(drawn(None, [3], max_position=19), [[4, 9, 14]])
    even = drawn(jax.random.key(0), [3], max_position=19, draw='even')
    np.testing.assert_array_equal(even, [[4, 9, 14]])


def test_every_knob_changes_what_is_drawn():
    key = jax.random.key(1)
    plain = drawn(key, [6], batch=3, max_position=500)
    for fields in ({'max_position': 501}, {'per': 'example'}, {'draw': 'even'}):
        changed = drawn(key, [6], batch=3, **({'max_position': 500} | fields))
        assert not np.array_equal(np.broadcast_to(plain, changed.shape), changed), fields


def test_one_draw_per_batch_or_per_example():
    assert drawn(jax.random.key(1), [6], batch=4, per='batch').shape == (1, 6)
    rows = drawn(jax.random.key(1), [6], batch=4, per='example')
    assert len({tuple(row) for row in rows.tolist()}) == 4
    # An example's draw does not depend on how many come with it.
    fewer = drawn(jax.random.key(1), [6], batch=2, per='example')
    np.testing.assert_array_equal(fewer, rows[:2])
    other = drawn(jax.random.key(2), [6], batch=4, per='example')
    assert not np.array_equal(other, rows)


def test_a_longer_sequence_keeps_the_numbers_of_a_shorter_one():
    key = jax.random.key(5)
    shorter, longer = drawn(key, [7]), drawn(key, [8])
    assert set(shorter[0]) < set(longer[0])


def test_room_for_later_tokens_changes_nothing():
    key = jax.random.key(7)
    np.testing.assert_array_equal(drawn(key, [7], places=20)[:, :7], drawn(key, [7], places=7))


def test_fractions_lie_between_numbers_and_more_tokens_than_numbers_go_past_the_range():
    scheme, toks = parse("randomised(max_position=4, draw='even')"), jnp.zeros((1, 4), jnp.int32)
    got = scheme.positions(jnp.float32([[0, 0.5, 1, 1.25]]), toks, jnp.full((1,), 2), None)
    np.testing.assert_array_equal(got, [[0, 0.5, 2, 2.25]])
    np.testing.assert_array_equal(drawn(jax.random.key(0), [6], max_position=4), [range(6)])


@pytest.mark.slow
def test_decoding_and_padding_with_a_key():
    scheme, key = parse("sinusoidal|randomised(max_position=40, per='example')"), jax.random.key(2)
    params, toks = random_params(scheme), tokens()

    def run(toks, **more):
        return apply(MODEL, params, toks, scheme, key=key, **more)

    whole = run(toks).logits_BTC
    assert np.abs(whole - apply(MODEL, params, toks, scheme).logits_BTC).max() > 1e-2
    padded = jnp.concatenate([jnp.zeros((3, 2), jnp.int32), toks], axis=1)
    valid = jnp.broadcast_to(jnp.arange(11)[None] >= 2, padded.shape)
    np.testing.assert_allclose(run(padded, valid_BT=valid).logits_BTC[:, 2:], whole, atol=5e-5)
    cache, parts = model_lib.empty_cache(MODEL, 3, 12), []
    for part in (toks[:, :4], toks[:, 4:5], toks[:, 5:]):
        out = run(part, cache=cache, length=9)
        cache = out.cache
        parts.append(out.logits_BTC)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=5e-5)


def test_more_tokens_than_numbers_are_refused():
    scheme = parse('randomised(max_position=8)')
    scheme.check_fit(MODEL.dims, range(8))
    with pytest.raises(ValueError, match='has 8 numbers for 9 tokens; ask for at most 8'):
        scheme.check_fit(MODEL.dims, range(9))
    for most in (0, 65535):
        with pytest.raises(ValueError, match=f'max_position={most} should be from 1 to 65534'):
            parse(f'randomised(max_position={most})')
