"""Learned slopes: where they start, what they do, and that they learn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from tests.cases import context
from tests.schemes.test_alibi import authors_slopes

EXAMPLES = ['alibi_learned']


@pytest.mark.parametrize('heads', [1, 3, 8])
@pytest.mark.parametrize('pos', [[0], [0, 1, 2, 3, 4], [0, 99_991, 100_000]])
def test_golden(heads, pos):
    logs = np.random.default_rng(heads).normal(size=heads)
    q = jnp.zeros((1, len(pos), heads, 4))
    got = parse('alibi_learned').bias({'log_slopes': jnp.float32(logs)}, q, q, context(pos))
    expected = np.empty((1, heads, len(pos), len(pos)))
    for h in range(heads):
        for a, i in enumerate(pos):
            for b, j in enumerate(pos):
                expected[0, h, a, b] = -math.exp(logs[h]) * abs(i - j)
    assert expected.dtype == np.float64 and got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize('heads', [1, 2, 6, 12])
def test_starts_as_alibi(heads):
    params = parse('alibi_learned').init(jax.random.key(0), Dims(4 * heads, heads, 4, 2))
    np.testing.assert_allclose(np.exp(params['log_slopes']), authors_slopes(heads), rtol=1e-6)
    q, ctx = jnp.zeros((1, 5, heads, 4)), context([0, 1, 2, 7, 30])
    fixed = parse('alibi').bias({}, q, q, ctx)
    np.testing.assert_allclose(parse('alibi_learned').bias(params, q, q, ctx), fixed, rtol=1e-6)


def test_the_gradient_of_a_logarithm_is_the_bias():
    q, ctx = jnp.zeros((1, 3, 2, 4)), context([0, 1, 5])
    logs = jnp.float32([-1, 0.5])
    by_log = jax.jacobian(lambda x: parse('alibi_learned').bias({'log_slopes': x}, q, q, ctx))(logs)
    own = np.einsum('BHQSH->BHQS', np.asarray(by_log))
    np.testing.assert_allclose(
        own, parse('alibi_learned').bias({'log_slopes': logs}, q, q, ctx), rtol=1e-6
    )
