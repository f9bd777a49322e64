"""The logarithmic kernel against the paper, its start, and its gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from posjax.schemes.kerple import log_kernel
from tests.cases import context

EXAMPLES = ['kerple_log']


def softplus(x):
    return math.log1p(math.exp(x))


@pytest.mark.parametrize('heads', [1, 3, 8])
@pytest.mark.parametrize('pos', [[0], [0, 1, 2, 3, 4, 5, 6], [0, 7, 99_991, 100_000]])
def test_golden(heads, pos):
    raw_1, raw_2 = np.random.default_rng(heads).normal(size=(2, heads))
    q = jnp.zeros((1, len(pos), heads, 4))
    params = {'raw_r1': jnp.float32(raw_1), 'raw_r2': jnp.float32(raw_2)}
    got = parse('kerple_log').bias(params, q, q, context(pos))
    expected = np.empty((1, heads, len(pos), len(pos)))
    for h in range(heads):
        r1, r2 = softplus(raw_1[h]), softplus(raw_2[h])
        for a, i in enumerate(pos):
            for b, j in enumerate(pos):
                expected[0, h, a, b] = -r1 * math.log(1 + r2 * abs(i - j))
    assert expected.dtype == np.float64 and got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_values_by_hand():
    d = jnp.float32([0, 1, 3, 50])
    got = log_kernel(d, 1.0, 1.0)
    np.testing.assert_allclose(got, [0, -0.693147, -1.386294, -3.931826], rtol=1e-6)
    assert (np.diff(log_kernel(jnp.arange(50.0), 1.0, 1.0)) < 0).all()


def test_starts_as_the_authors_do():
    params = parse('kerple_log').init(jax.random.key(0), Dims(4000, 2000, 2, 2))
    r1, r2 = (np.asarray(jax.nn.softplus(params[name])) for name in ('raw_r1', 'raw_r2'))
    for r, most in ((r1, 2), (r2, 1)):
        # U(0, most), clipped at 0.01: quarters, and the ends.
        assert (
            r.dtype == np.float32 and r.min() == pytest.approx(0.01, rel=1e-4) and r.max() <= most
        )
        quarters = np.array([0.25, 0.5, 0.75])
        np.testing.assert_allclose(np.quantile(r, quarters), quarters * most, atol=0.04 * most)
    assert abs(np.corrcoef(r1, r2)[0, 1]) < 0.1


def test_bias_can_only_fall_with_distance_whatever_was_learned():
    q = jnp.zeros((1, 40, 3, 4))
    params = {'raw_r1': jnp.float32([-9, 0, 9]), 'raw_r2': jnp.float32([-9, 0, 9])}
    last = np.asarray(parse('kerple_log').bias(params, q, q, context(np.arange(40))))[0, :, -1]
    assert (np.diff(last, axis=1) > 0).all() and (last[:, -1] == 0).all()


def test_gradients_are_the_formulas():
    d = np.array([0.0, 1.0, 12.0, 1e5])
    by_r1, by_r2 = (jax.jacobian(log_kernel, argnums=n)(jnp.float32(d), 1.5, 0.3) for n in (1, 2))
    np.testing.assert_allclose(by_r1, -np.log(1 + 0.3 * d), rtol=1e-6)
    np.testing.assert_allclose(by_r2, -1.5 * d / (1 + 0.3 * d), rtol=1e-6)
