"""Weights between the pairings of rotary dims, so that a model's answers stay."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.convert import parameters, query_key
from posjax.scheme import parse
from posjax.schemes.rope import inv_freq, rotate
from tests.cases import MODEL, apply, random_params, tokens


@pytest.mark.parametrize(('scheme', 'rotary_dim'), [('rope', None), ('partial_rope(4)', 4)])
def test_logits_are_equal_after_conversion_and_not_without(scheme, rotary_dim):
    interleaved = parse(scheme)
    half = dataclasses.replace(interleaved, pairing='half')
    params, toks = random_params(parse('rope')), tokens()
    expected = apply(MODEL, params, toks, interleaved).logits_BTC
    tolerance = 1e-5 * np.abs(expected).max()

    converted = parameters(params, MODEL, 'half', rotary_dim=rotary_dim)
    got = apply(MODEL, converted, toks, half).logits_BTC
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    assert np.abs(apply(MODEL, params, toks, half).logits_BTC - expected).max() > 1000 * tolerance

    back = parameters(converted, MODEL, 'interleaved', rotary_dim=rotary_dim)
    for a, b in zip(_leaves(back), _leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)


def _leaves(params):
    return [params['net']['block_0']['qkv'][name] for name in ('kernel', 'bias')]


def test_grouped_query_heads_score_the_same():
    """Four query heads share two key heads; each projection is converted by itself."""
    rng, dim, pos = np.random.default_rng(0), 8, jnp.arange(5)[None]
    x = jnp.float32(rng.normal(size=(1, 5, 12)))
    wq, wk = (jnp.float32(rng.normal(size=(12, heads * dim))) for heads in (4, 2))

    def scores(wq, wk, pairing):
        q, k = (
            rotate((x @ w).reshape(1, 5, -1, dim), pos, inv_freq(1e4, dim), pairing)
            for w in (wq, wk)
        )
        return jnp.einsum('bqhk,bshk->bhqs', q, jnp.repeat(k, 2, axis=2))

    expected = scores(wq, wk, 'interleaved')
    got = scores(query_key(wq, dim, 'half'), query_key(wk, dim, 'half'), 'half')
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    assert np.abs(scores(wq, query_key(wk, dim, 'half'), 'half') - expected).max() > 1


def test_golden_order():
    """Meta's weights to transformers': pairs of rows (2k, 2k+1) become rows k and k + K/2."""
    heads, dim, width = 3, 6, 2
    rows = np.arange(heads * dim * width).reshape(heads * dim, width)
    expected = np.zeros_like(rows)
    for h in range(heads):
        for k in range(dim // 2):
            for which in (0, 1):
                expected[h * dim + which * dim // 2 + k] = rows[h * dim + 2 * k + which]
    np.testing.assert_array_equal(query_key(rows, dim, 'half', axis=0), expected)
    np.testing.assert_array_equal(query_key(rows.T, dim, 'half'), expected.T)
    np.testing.assert_array_equal(query_key(expected, dim, 'interleaved', axis=0), rows)
    # What does not turn stays where it is.
    part = query_key(np.arange(6), 6, 'half', rotary_dim=4)
    np.testing.assert_array_equal(part, [0, 2, 1, 3, 4, 5])


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'head_dim': 7, 'to': 'half'}, 'axis -1 has 12 entries, which is not a whole number of'),
        ({'head_dim': 6, 'to': 'half', 'rotary_dim': 3}, 'rotary_dim=3 should be even, and from 2'),
        ({'head_dim': 6, 'to': 'half', 'rotary_dim': 8}, 'from 2 to head_dim=6'),
        ({'head_dim': 6, 'to': 'neox'}, "to='neox' should be 'interleaved' or 'half'"),
    ],
)
def test_refused_in_one_line(kwargs, message):
    with pytest.raises(ValueError, match=message):
        query_key(np.zeros((4, 12)), **kwargs)
