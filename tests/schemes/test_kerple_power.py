"""The power kernel against the paper, its start, and its gradients at distance 0."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from posjax.schemes.kerple import power_kernel
from tests.cases import context

EXAMPLES = ['kerple_power']


@pytest.mark.parametrize('heads', [1, 3, 8])
@pytest.mark.parametrize('pos', [[0], [0, 1, 2, 3, 4, 5, 6], [0, 7, 99_991, 100_000]])
def test_golden(heads, pos):
    raw_1, raw_2 = np.random.default_rng(heads).normal(size=(2, heads))
    q = jnp.zeros((1, len(pos), heads, 4))
    params = {'raw_r1': jnp.float32(raw_1), 'raw_r2': jnp.float32(raw_2)}
    got = parse('kerple_power').bias(params, q, q, context(pos))
    expected = np.empty((1, heads, len(pos), len(pos)))
    for h in range(heads):
        r1, r2 = math.log(1 + math.exp(raw_1[h])), 2 / (1 + math.exp(-raw_2[h]))
        for a, i in enumerate(pos):
            for b, j in enumerate(pos):
                expected[0, h, a, b] = -r1 * math.pow(abs(i - j), r2)
    assert expected.dtype == np.float64 and got.dtype == jnp.float32
    # float32 rounds the exponent, which 1e5 magnifies by its logarithm, 11.5.
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_exponent_one_is_alibi():
    pos, slopes = np.array([0, 3, 4, 90]), (0.5, 0.25)
    q = jnp.zeros((1, 4, 2, 4))
    raw_r1 = jnp.log(jnp.expm1(jnp.float32(slopes)))
    got = parse('kerple_power').bias({'raw_r1': raw_r1, 'raw_r2': jnp.zeros(2)}, q, q, context(pos))
    alibi = parse(f'alibi(slopes={slopes})').bias({}, q, q, context(pos))
    np.testing.assert_allclose(got, alibi, rtol=1e-5)


def test_starts_as_the_authors_do():
    params = parse('kerple_power').init(jax.random.key(0), Dims(4000, 2000, 2, 2))
    r1 = np.asarray(jax.nn.softplus(params['raw_r1']))
    r2 = np.asarray(2 * jax.nn.sigmoid(params['raw_r2']))
    for r, most in ((r1, 1), (r2, 2)):
        assert (
            r.dtype == np.float32 and r.min() == pytest.approx(0.01, rel=1e-4) and r.max() <= most
        )
        quarters = np.array([0.25, 0.5, 0.75])
        np.testing.assert_allclose(np.quantile(r, quarters), quarters * most, atol=0.04 * most)
    assert abs(np.corrcoef(r1, r2)[0, 1]) < 0.1


@pytest.mark.parametrize('r2', [0.01, 0.5, 1.0, 2.0])
def test_gradients_are_the_formulas_also_at_distance_zero(r2):
    d = np.array([0.0, 1.0, 12.0, 1e4])
    by_d, by_r1, by_r2 = (
        jax.jacobian(power_kernel, argnums=n)(jnp.float32(d), 1.5, r2) for n in (0, 1, 2)
    )
    np.testing.assert_allclose(by_r1, -(d**r2), rtol=1e-5)
    # d^r ln d goes to 0 with d.
    np.testing.assert_allclose(by_r2, [0, *(-1.5 * d[1:] ** r2 * np.log(d[1:]))], rtol=1e-5)
    np.testing.assert_allclose(np.diag(by_d)[1:], -1.5 * r2 * d[1:] ** (r2 - 1), rtol=1e-5)
    assert by_d[0, 0] == 0


def test_distances_count_both_ways():
    d = jnp.float32([-4, 4])
    np.testing.assert_allclose(power_kernel(d, 2.0, 0.5), [-4, -4], rtol=1e-6)
