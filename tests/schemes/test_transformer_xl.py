"""Transformer-XL's scores against the four terms of the paper, section 3.3."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from tests.cases import context
from tests.schemes.test_shaw import largest

EXAMPLES = ['transformer_xl', 'transformer_xl(theta=30.0)']


def sinusoid(t, width, theta):
    """R_t: sines of all frequencies, then their cosines (the authors' order)."""
    angle = [t / theta ** (column / width) for column in range(0, width, 2)]
    return np.array([np.sin(a) for a in angle] + [np.cos(a) for a in angle])


def reference(q, k, u, v, w_r, q_pos, k_pos, theta):
    """(q k + q W R + u k + v W R) / sqrt(d) for each head, query and key."""
    heads, dim = u.shape
    a = np.zeros((heads, len(q_pos), len(k_pos)))
    for i, at in enumerate(q_pos):
        for j, to in enumerate(k_pos):
            r = sinusoid(float(at) - float(to), heads * dim, theta)
            for h in range(heads):
                w_r_r = w_r[:, h].T @ r
                terms = (q[i, h] @ k[j, h], q[i, h] @ w_r_r, u[h] @ k[j, h], v[h] @ w_r_r)
                a[h, i, j] = sum(terms) / np.sqrt(dim)
    return a


def both(heads, dim, q_pos, k_pos, theta, seed=0):
    """The scheme's scores, the reference's, and a bound on what float32 angles can do."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(len(q_pos), heads, dim)), rng.normal(size=(len(k_pos), heads, dim))
    u, v = rng.normal(size=(2, heads, dim))
    w_r = rng.normal(size=(2, 2 * -(-heads * dim // 2), heads, dim)) / np.sqrt(heads * dim)
    params = {'u': jnp.float32(u), 'v': jnp.float32(v), 'w_r': jnp.float32(w_r)}
    scheme = parse(f'transformer_xl(theta={theta})')
    ctx = context(q_pos, k_pos, head_dim=dim)._replace(layer=1)
    got = scheme.scores(params, jnp.float32(q[None]), jnp.float32(k[None]), ctx)[0]
    expected = reference(q, k, u, v, w_r[1], q_pos, k_pos, theta)
    assert expected.dtype == np.float64
    assert got.dtype == jnp.float32
    return np.asarray(got), expected


@pytest.mark.parametrize(('heads', 'dim'), [(1, 2), (2, 8), (3, 5)])
@pytest.mark.parametrize('theta', [1e4, 30.0])
def test_golden(heads, dim, theta):
    pos = np.array([0, 1, 2, 3, 7, 40, 41])
    got, expected = both(heads, dim, pos, pos, theta)
    np.testing.assert_allclose(got, expected, atol=5e-5)


def test_golden_at_a_hundred_thousand():
    # A block of queries far into a sequence: nearby keys as exact as at its start.
    q_pos = 100_000 + np.arange(5)
    got, expected = both(2, 8, q_pos, np.arange(99_990, 100_005), 1e4)
    np.testing.assert_allclose(got, expected, atol=2e-5)
    # Far keys: float32 rounds an angle of 100,000 to 1/128; a score sums 16 columns, some |a| < 4.
    got, expected = both(2, 8, q_pos, np.array([0, 1, 17, 50_000]), 1e4)
    np.testing.assert_allclose(got, expected, atol=0.05)


def test_golden_fractional_positions():
    pos = np.array([0.0, 0.25, 1.5, 3.75], np.float32)
    got, expected = both(2, 4, pos, pos, 1e4)
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_the_bias_is_what_the_products_of_content_leave():
    rng = np.random.default_rng(0)
    scheme, dims = parse('transformer_xl'), Dims(16, 2, 8, 2)
    params = scheme.init(jax.random.key(0), dims)
    q, k = jnp.float32(rng.normal(size=(2, 1, 4, 2, 8)))
    ctx = context(np.arange(4))
    # At distance 0 the sines vanish: only the lower half of W_R is left.
    no_cos = {**params, 'w_r': params['w_r'].at[:, 8:].set(0), 'u': jnp.zeros((2, 8))}
    bias = np.asarray(scheme.bias(no_cos, q, k, ctx))
    np.testing.assert_allclose(np.diagonal(bias, axis1=2, axis2=3), 0, atol=1e-6)
    assert np.abs(bias[..., 0, 1]).max() > 1e-3


def test_no_array_of_queries_by_keys_by_width():
    scheme, tokens, dim = parse('transformer_xl'), 64, 32
    params = scheme.init(jax.random.key(0), Dims(dim, 1, dim, 1))
    q, ctx = jnp.ones((1, tokens, 1, dim)), context(np.arange(tokens), head_dim=dim)
    assert largest(lambda x: scheme.bias(params, x, x, ctx), q) <= tokens**2


def test_initial_values():
    params = parse('transformer_xl').init(jax.random.key(0), Dims(256, 4, 64, 3))
    assert params['u'].shape == params['v'].shape == (4, 64)
    assert params['w_r'].shape == (3, 256, 4, 64)
    assert np.abs(params['w_r']).max() == pytest.approx(1 / 16, rel=1e-3)
    assert np.std(params['u']) == pytest.approx(0.02, rel=0.2)
    assert np.abs(params['u'] - params['v']).max() > 0.01


def test_a_base_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match='theta=0.0 should be positive'):
        parse('transformer_xl(theta=0)')
