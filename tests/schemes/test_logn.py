"""Scores that sharpen with length."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax import interventions
from posjax.scheme import chain, parse
from tests.cases import context

EXAMPLES = ['logn(train_length=6)']


@pytest.mark.parametrize(('length', 'train_length'), [(128, 32), (32, 32), (7, 100)])
def test_golden(length, train_length):
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 3, 2, 8))
    scheme = chain(parse(f'logn(train_length={train_length})'), parse('alibi'))
    ctx = context([0, 1, 2], length=length)
    got = scheme.scores({}, jnp.float32(q), jnp.float32(k), ctx)
    plain = np.einsum('bqhk,bshk->bhqs', q, k) / np.sqrt(8)
    bias = np.asarray(parse('alibi').bias({}, q, k, ctx), np.float64)
    # The bias is not scaled: only q.k is.
    np.testing.assert_allclose(got, plain * np.log(length) / np.log(train_length) + bias, atol=2e-5)


def test_length_one_is_finite():
    q, _ = parse('logn(train_length=32)').qk({}, jnp.ones((1, 1, 1, 2)), None, context([0]))
    np.testing.assert_array_equal(q, 0)


def test_the_intervention_takes_the_training_length():
    changed = interventions.parse('logn')(parse('rope'), train_length=32, length=128)
    assert changed == parse('rope|logn(train_length=32)')


def test_a_training_length_without_a_logarithm_is_refused():
    with pytest.raises(ValueError, match='train_length=1.0 should be above 1'):
        parse('logn(train_length=1)')
