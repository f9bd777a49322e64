"""Contextual positions against the paper, equations 3 to 5 and its interpolation, by loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from posjax.schemes.cope_contextual import interpolate
from tests.cases import context

EXAMPLES = ['cope_contextual', 'cope_contextual(max_pos=4)']


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(q, k, e):
    """(q_i . (k_j + e[p_ij])) / sqrt(d) for j <= i, and the positions p."""
    tokens, heads, dim = q.shape
    scores, p = np.zeros((2, heads, tokens, tokens))
    for h in range(heads):
        for i in range(tokens):
            for j in range(i + 1):
                gates = [sigmoid(q[i, h] @ k[m, h] / np.sqrt(dim)) for m in range(j, i + 1)]
                p[h, i, j] = min(sum(gates), len(e) - 1)
                low, high = math.floor(p[h, i, j]), math.ceil(p[h, i, j])
                part = p[h, i, j] - low
                between = part * e[high] + (1 - part) * e[low]
                scores[h, i, j] = q[i, h] @ (k[j, h] + between) / np.sqrt(dim)
    return scores, p


@pytest.mark.parametrize('max_pos', [2, 5, 64])
@pytest.mark.parametrize(('tokens', 'heads', 'dim'), [(1, 1, 2), (9, 3, 5), (17, 2, 8)])
def test_golden(max_pos, tokens, heads, dim):
    rng = np.random.default_rng(tokens)
    q, k = rng.normal(size=(2, tokens, heads, dim))
    e = rng.normal(size=(2, max_pos, dim))
    ctx = context(np.arange(tokens), head_dim=dim)._replace(layer=1)
    scheme = parse(f'cope_contextual(max_pos={max_pos})')
    params = {'embedding': jnp.float32(e)}
    got = scheme.scores(params, jnp.float32(q[None]), jnp.float32(k[None]), ctx)
    expected, p = reference(q, k, e[1])
    assert expected.dtype == np.float64
    if tokens > 9:
        assert (p == max_pos - 1).any() == (max_pos < 64), 'some cases should clip, and not all'
    np.testing.assert_allclose(np.tril(got[0]), expected, atol=2e-5)


def test_golden_over_a_hundred_thousand_tokens():
    tokens, dim, max_pos = 100_000, 4, 64
    rng = np.random.default_rng(0)
    q = np.ones((1, dim))
    # Gates near 1/3,000, so that the count reaches some 55 only at the far end.
    k = rng.normal(size=(tokens, dim)) - 2 * math.log(3000) / dim
    e = rng.normal(size=(1, max_pos, dim))
    ctx = context([0], np.arange(tokens), head_dim=dim)
    ctx = ctx._replace(q_index_Q=jnp.array([tokens - 1]))
    params, scheme = {'embedding': jnp.float32(e)}, parse(f'cope_contextual(max_pos={max_pos})')
    got = scheme.bias(params, jnp.float32(q[None, :, None]), jnp.float32(k[None, :, None]), ctx)
    p = np.cumsum(sigmoid(k @ q[0] / 2)[::-1])[::-1]
    assert p.dtype == np.float64 and 40 < p[0] < max_pos - 1
    expected = np.interp(p, np.arange(max_pos), e[0] @ q[0]) / 2
    # Counts near 50, rounded to 2^-19 at each of 17 levels of sums, times differences of e.
    np.testing.assert_allclose(got[0, 0, 0], expected, atol=3e-4)


def bias_of_scores(sign, max_pos=4, tokens=7):
    """The bias where every score is `sign` times a thousand, and q . e / sqrt(K)."""
    e = np.random.default_rng(0).normal(size=(1, max_pos, 4))
    q = 100 * np.ones((1, tokens, 1, 4))
    scheme = parse(f'cope_contextual(max_pos={max_pos})')
    ctx = context(np.arange(tokens), head_dim=4)

    def bias(k):
        return scheme.bias({'embedding': jnp.float32(e)}, jnp.float32(q), k, ctx)

    return bias, jnp.float32(sign * 5 * np.ones(q.shape)), e[0] @ q[0, 0, 0] / 2


def test_open_gates_count_tokens():
    bias, k, by_row = bias_of_scores(1)
    i, j = np.tril_indices(7)
    # The query counts itself: its own position is 1.
    np.testing.assert_allclose(bias(k)[0, 0][i, j], by_row[np.minimum(i - j + 1, 3)], rtol=1e-6)
    assert np.isfinite(jax.grad(lambda x: (bias(x) ** 2).sum())(k)).all()


def test_closed_gates_leave_every_key_at_position_zero():
    bias, k, by_row = bias_of_scores(-1)
    np.testing.assert_allclose(bias(k), by_row[0], rtol=1e-6)


def test_both_ends_of_the_table_are_read():
    values = jnp.float32([3.0, 5.0, 11.0]).reshape(1, 1, 1, 3)
    places = jnp.float32([0, 0.5, 1, 1.75, 2]).reshape(1, 1, 1, 5)
    np.testing.assert_array_equal(interpolate(values, places)[0, 0, 0], [3, 4, 5, 9.5, 11])
    slopes = jax.grad(lambda p: interpolate(values, p).sum())(places)
    np.testing.assert_array_equal(slopes[0, 0, 0], [2, 2, 6, 6, 6])


def test_embeddings_start_at_zero():
    scheme = parse('cope_contextual(max_pos=5)')
    table = scheme.init(jax.random.key(0), Dims(16, 2, 8, 3))['embedding']
    assert table.shape == (3, 5, 8)
    assert not table.any()


def test_a_single_position_is_refused():
    with pytest.raises(ValueError, match='max_pos=1 should be at least 2'):
        parse('cope_contextual(max_pos=1)')
