"""Windows with attention sinks."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import parse
from tests.cases import context
from tests.schemes.test_window import attention64

EXAMPLES = ['sinks(size=2, number=1)', 'rope|sinks(size=1, number=2)']


@pytest.mark.parametrize(('size', 'number'), [(1, 1), (2, 1), (1, 4), (3, 2), (9, 9)])
@pytest.mark.parametrize('causal', [True, False])
def test_golden(size, number, causal):
    q, k, v = np.random.default_rng(size).normal(size=(3, 9, 3, 8))
    arrays = [jnp.float32(x)[None] for x in (q, k, v)]
    scheme = parse(f'sinks(size={size}, number={number})')
    got, _ = attend(scheme, {}, *arrays, context(np.arange(9), causal=causal))

    def seen(i, j):
        return (j in range(i - size + 1, i + size) or j in range(number)) and (j <= i or not causal)

    expected = attention64(q, k, v, seen)
    assert expected.dtype == np.float64
    np.testing.assert_allclose(got[0], expected, atol=2e-6)


@pytest.mark.parametrize(
    'numbers', [[0, 1, 2, 3], [7, 8, 9, 10], [2, 90, 500, 501], [0, 0.5, 1, 2]]
)
def test_sinks_are_the_first_real_tokens_whatever_their_numbers(numbers):
    padded = [numbers[0]] * 2 + numbers
    ctx = context(padded, valid=[False] * 2 + [True] * 4)
    seen = parse('sinks(size=1, number=1)').mask(ctx)[0, 0]
    np.testing.assert_array_equal(seen[-1, 2:], [1, 0, 0, 1])
    bare = parse('sinks(size=1, number=1)').mask(context(numbers))[0, 0]
    np.testing.assert_array_equal(bare[-1], [1, 0, 0, 1])


def test_sinks_behind_a_cache_with_room():
    # Three tokens so far, room for two more: room repeats the last number.
    ctx = context([2], [0, 1, 2, 2, 2])._replace(q_index_Q=jnp.asarray([2]))
    seen = parse('sinks(size=1, number=1)').mask(ctx)[0, 0, 0]
    np.testing.assert_array_equal(seen[:3], [1, 0, 1])
    # The very first token, with nothing but room behind it, sees itself.
    ctx = context([0], [0, 0, 0, 0, 0])._replace(q_index_Q=jnp.asarray([0]))
    assert parse('sinks(size=1, number=1)').mask(ctx)[0, 0, 0, 0]


def test_refused():
    with pytest.raises(ValueError, match='size=0 should be at least 1'):
        parse('sinks(size=0)')
    with pytest.raises(ValueError, match='number=0 should be at least 1'):
        parse('sinks(size=2, number=0)')
