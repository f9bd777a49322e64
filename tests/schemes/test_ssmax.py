"""Scalable softmax against its definition: powers of the number of tokens."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import Dims, parse
from tests.cases import context

EXAMPLES = ['ssmax', 'ssmax(with_bias=True)']
OTHER = {'train_length': [32]}


@pytest.mark.parametrize('with_bias', [False, True])
@pytest.mark.parametrize(('heads', 'layer', 'first'), [(1, 0, 0), (3, 2, 0), (3, 1, 100_000)])
def test_golden(with_bias, heads, layer, first):
    tokens, size = 5, 4
    rng = np.random.default_rng(heads)
    q, k, v = rng.normal(size=(3, 1, tokens, heads, size))
    scale, bias = rng.normal(size=(2, 3, heads))
    params = {'scale': jnp.float32(scale)} | ({'bias': jnp.float32(bias)} if with_bias else {})
    ctx = context(first + np.arange(tokens), head_dim=size)._replace(layer=layer)
    scheme = parse(f'ssmax(with_bias={with_bias})')
    got, _ = attend(scheme, params, *map(jnp.float32, (q, k, v)), ctx)
    expected = np.zeros((tokens, heads, size))
    for i in range(tokens):
        n = first + i + 1
        for h in range(heads):
            z = [q[0, i, h] @ k[0, j, h] / math.sqrt(size) for j in range(i + 1)]
            p = [n ** (scale[layer, h] * x) * math.exp(bias[layer, h] * x * with_bias) for x in z]
            expected[i, h] = sum(p[j] * v[0, j, h] for j in range(i + 1)) / sum(p)
    assert expected.dtype == np.float64
    # Scores up to 60 in float32.
    np.testing.assert_allclose(got[0], expected, atol=5e-5)


@pytest.mark.parametrize('train_length', [2, 32, 1024])
def test_the_factor_starts_at_one_on_average(train_length):
    scheme, dims = parse(f'ssmax(train_length={train_length}, with_bias=True)'), Dims(12, 3, 4, 2)
    params = scheme.init(jax.random.key(0), dims)
    assert params['scale'].shape == params['bias'].shape == (2, 3)
    ctx = context(np.arange(train_length))
    q, _ = scheme.qk(params, jnp.ones((1, train_length, 3, 4)), jnp.ones(()), ctx)
    assert float(q.mean()) == pytest.approx(1, rel=1e-5)
    if train_length == 1024:
        np.testing.assert_allclose(params['scale'], 0.168, atol=5e-4)  # the paper's


def test_the_first_token_sees_itself_whatever_its_score():
    q = jnp.ones((1, 2, 1, 4))
    params = {'scale': jnp.full((1, 1), 3.0)}
    scaled, _ = parse('ssmax').qk(params, q, q, context([0, 1]))
    np.testing.assert_array_equal(scaled[0, 0], 0)
    _, weights = attend(parse('ssmax'), params, q, q, q, context([0, 1]))
    np.testing.assert_array_equal(weights[0, 0, 0], [1, 0])


def test_a_training_length_without_a_logarithm_is_refused():
    with pytest.raises(ValueError, match='train_length=1 should be at least 2'):
        parse('ssmax(train_length=1)')
