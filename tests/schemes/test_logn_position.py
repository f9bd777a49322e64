"""Log-n scaling for each query: the published forms, from position 0 to 100,000."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from tests.cases import context

EXAMPLES = ['logn_position(train_length=6)', 'logn_position(train_length=6, clip=False)']

POSITIONS = (0, 1, 2, 5, 6, 510, 511, 512, 100_000)


def factors(positions, **fields):
    """What queries are multiplied by."""
    scheme = parse('logn_position(' + ', '.join(f'{n}={v!r}' for n, v in fields.items()) + ')')
    q, k = scheme.qk({}, jnp.ones((1, len(positions), 2, 4)), jnp.ones(()), context(positions))
    assert k.shape == ()
    np.testing.assert_array_equal(q, jnp.broadcast_to(q[:, :, :1, :1], q.shape))
    return np.asarray(q)[0, :, 0, 0]


@pytest.mark.parametrize('train_length', [2, 6, 512])
def test_golden_rerope(train_length):
    tokens = np.array(POSITIONS, np.float64) + 1
    expected = np.clip(np.log(tokens) / np.log(train_length), 1, None)
    assert expected.dtype == np.float64
    np.testing.assert_allclose(factors(POSITIONS, train_length=train_length), expected, rtol=2e-6)


@pytest.mark.parametrize('train_length', [2, 6, 512])
def test_golden_qwen(train_length):
    table = [math.log(i, train_length) if i > train_length else 1.0 for i in range(1, 600)]
    got = factors(range(599), train_length=train_length)
    np.testing.assert_allclose(got, np.array(table, np.float64), rtol=2e-6)


@pytest.mark.parametrize('train_length', [2, 6, 512])
def test_golden_unclipped(train_length):
    expected = np.array([math.log(i + 1) / math.log(train_length) for i in POSITIONS])
    assert expected.dtype == np.float64 and expected[0] == 0
    got = factors(POSITIONS, train_length=train_length, clip=False)
    np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_golden_plain_logarithm():
    expected = np.log(np.array(POSITIONS, np.float64) + 1)
    got = factors(POSITIONS, train_length=math.e, clip=False)
    np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_biases_are_not_scaled():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 3, 2, 8))
    ctx, biased = context([0, 1, 40]), parse('logn_position(train_length=4)|alibi')
    got = biased.scores({}, jnp.float32(q), jnp.float32(k), ctx)
    factor = np.array([1, 1, np.log(41) / np.log(4)])[None, None, :, None]
    plain = np.einsum('bqhk,bshk->bhqs', q, k) / np.sqrt(8)
    bias = np.asarray(parse('alibi').bias({}, q, k, ctx), np.float64)
    np.testing.assert_allclose(got, plain * factor + bias, atol=2e-5)


def test_fractions_and_places_before_the_sequence():
    got = factors([0.5, -1.0, -7.0], train_length=2, clip=False)
    np.testing.assert_allclose(got, [np.log2(1.5), 0, 0], rtol=2e-6)


def test_a_training_length_without_a_logarithm_is_refused():
    with pytest.raises(ValueError, match='train_length=1.0 should be above 1'):
        parse('logn_position(train_length=1)')
