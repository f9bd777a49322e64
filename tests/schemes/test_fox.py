"""Forget gates against the paper, section 3, by loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from posjax.schemes.fox import precise_cumsum
from tests.cases import context

EXAMPLES = ['fox']


def log_forget(x, w, b):
    """log sigmoid(x w + b), tokens by heads."""
    return -np.logaddexp(0, -(x @ w + b))


def reference(log_f):
    """D_ij = sum_{l=j+1..i} log f_l for j <= i, one matrix per head."""
    tokens, heads = log_f.shape
    d = np.zeros((heads, tokens, tokens))
    for h in range(heads):
        for i in range(tokens):
            for j in range(i + 1):
                d[h, i, j] = sum(log_f[m, h] for m in range(j + 1, i + 1))
    return d


@pytest.mark.parametrize(('tokens', 'heads', 'dim'), [(1, 1, 2), (9, 3, 5), (17, 2, 8)])
def test_golden(tokens, heads, dim):
    rng = np.random.default_rng(tokens)
    q, k = rng.normal(size=(2, tokens, heads, dim))
    w, b = rng.normal(size=(2, heads, dim, heads)), rng.normal(size=(2, heads))
    params = {'w': jnp.float32(w), 'b': jnp.float32(b)}
    ctx = context(np.arange(tokens), head_dim=dim)._replace(layer=1)
    got = parse('fox').scores(params, jnp.float32(q[None]), jnp.float32(k[None]), ctx)[0]
    width = heads * dim
    d = reference(log_forget(k.reshape(tokens, width), w[1].reshape(width, heads), b[1]))
    expected = np.einsum('qhk,shk->hqs', q, k) / np.sqrt(dim) + d
    assert expected.dtype == np.float64
    np.testing.assert_allclose(got, expected, atol=5e-5)


def test_golden_the_published_gate_on_the_layer_input():
    tokens, heads, dim, width = 11, 2, 4, 8
    rng = np.random.default_rng(0)
    x = rng.normal(size=(tokens, width))
    w_k, b_k = rng.normal(size=(width, width)), rng.normal(size=width)
    w_f, b_f = rng.normal(size=(width, heads)), rng.normal(size=heads)
    k = (x @ w_k + b_k).reshape(1, tokens, heads, dim)
    w = np.linalg.solve(w_k, w_f)
    params = {
        'w': jnp.float32(w.reshape(1, heads, dim, heads)),
        'b': jnp.float32((b_f - b_k @ w)[None]),
    }
    got = parse('fox').bias(params, jnp.float32(k), jnp.float32(k), context(np.arange(tokens)))[0]
    expected = reference(log_forget(x, w_f, b_f))
    assert expected.dtype == np.float64
    # The solved weights are some tens, which costs two digits.
    np.testing.assert_allclose(got, expected, atol=1e-3)


def test_golden_over_a_hundred_thousand_tokens():
    tokens = 100_000
    rng = np.random.default_rng(0)
    k = np.float32(rng.normal(size=(1, tokens, 1, 1)))
    params = {'w': jnp.ones((1, 1, 1, 1)), 'b': jnp.zeros((1, 1))}
    at = np.array([50_000, tokens - 1])
    ctx = context(at, np.arange(tokens))._replace(q_index_Q=jnp.asarray(at))
    # Compiled: a compiler that reordered the sums would undo their precision.
    got = jax.jit(lambda x: parse('fox').bias(params, x[:, at], x, ctx))(k)[0, 0]
    sums = np.cumsum(log_forget(np.float64(k[0, :, 0]), np.ones((1, 1)), 0.0)[:, 0])
    assert sums.dtype == np.float64 and sums[-1] < -50_000
    for row, i in zip(np.asarray(got), at, strict=True):
        near, expected = row[i - 60 : i + 1], sums[i] - sums[i - 60 : i + 1]
        np.testing.assert_allclose(near, expected, atol=2e-5)
        np.testing.assert_allclose(row[: i + 1], sums[i] - sums[: i + 1], rtol=1e-6, atol=2e-5)
        assert (row[i + 1 :] == 0).all()


def test_sums_keep_what_float32_would_drop():
    x = jnp.float32([1e8, 1, 1, 1, -1e8])
    high, low = precise_cumsum(x)
    exact = np.cumsum([1e8, 1, 1, 1, -1e8])
    np.testing.assert_array_equal(np.float64(high) + np.float64(low), exact)
    assert jnp.cumsum(x)[-1] != 3
    slopes = jax.jacobian(lambda v: sum(precise_cumsum(v)))(x)
    np.testing.assert_array_equal(slopes, np.tril(np.ones((5, 5))))


def test_open_gates_forget_nothing_and_half_open_ones_are_a_linear_bias():
    k, ctx = jnp.ones((1, 6, 1, 2)), context(np.arange(6))
    params = {'w': jnp.zeros((1, 1, 2, 1)), 'b': jnp.float32([[100.0]])}
    np.testing.assert_allclose(parse('fox').bias(params, k, k, ctx), 0, atol=1e-30)
    half = parse('fox').bias({**params, 'b': jnp.zeros((1, 1))}, k, k, ctx)[0, 0]
    i, j = np.tril_indices(6)
    np.testing.assert_allclose(half[i, j], (i - j) * np.log(0.5), rtol=1e-6)


@pytest.mark.parametrize('logit', [-1e4, 1e4])
def test_gradients_of_shut_and_open_gates_are_finite(logit):
    k, ctx = jnp.ones((1, 6, 1, 2)), context(np.arange(6))
    w = jnp.zeros((1, 1, 2, 1))

    def loss(b):
        weights = jax.nn.softmax(parse('fox').bias({'w': w, 'b': b}, k, k, ctx))
        return (weights[..., 0] ** 2).sum()

    assert np.isfinite(jax.grad(loss)(jnp.full((1, 1), logit))).all()


def test_initial_values_halve_a_key_at_every_token():
    params = parse('fox').init(jax.random.key(0), Dims(128, 4, 32, 3))
    assert {name: x.shape for name, x in params.items()} == {'w': (3, 4, 32, 4), 'b': (3, 4)}
    assert np.std(params['w']) == pytest.approx(0.02, rel=0.1)
    assert not params['b'].any()
