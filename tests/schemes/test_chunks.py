"""Chunked attention."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import parse
from tests.cases import context
from tests.schemes.test_window import attention64

EXAMPLES = ['chunks(size=4)', 'rope|chunks(size=2)']


@pytest.mark.parametrize('size', [1, 2, 4, 5, 20])
@pytest.mark.parametrize('causal', [True, False])
def test_golden(size, causal):
    q, k, v = np.random.default_rng(size).normal(size=(3, 11, 3, 8))
    arrays = [jnp.float32(x)[None] for x in (q, k, v)]
    got, _ = attend(
        parse(f'chunks(size={size})'), {}, *arrays, context(np.arange(11), causal=causal)
    )
    expected = attention64(q, k, v, lambda i, j: i // size == j // size and (j <= i or not causal))
    assert expected.dtype == np.float64
    np.testing.assert_allclose(got[0], expected, atol=2e-6)


@pytest.mark.parametrize('numbers', [[0, 1, 2, 3, 4], [7, 8, 9, 10, 11], [2, 90, 500, 501, 700]])
@pytest.mark.parametrize('padding', [0, 1, 2, 3])
def test_chunks_start_at_the_first_real_token(numbers, padding):
    valid = [False] * padding + [True] * 5
    ctx = context([numbers[0]] * padding + numbers, valid=valid)
    seen = parse('chunks(size=2)').mask(ctx)[0, 0]
    expected = [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]
    np.testing.assert_array_equal(seen[padding:, padding:], expected)


def test_every_example_by_its_own_padding():
    ctx = context(np.arange(4))
    valid = jnp.asarray([[True] * 4, [False] + [True] * 3])
    seen = parse('chunks(size=2)').mask(ctx._replace(valid_BS=valid))
    assert seen.shape == (2, 1, 4, 4)
    assert seen[0, 0, 2].tolist() == [0, 0, 1, 1]
    assert seen[1, 0, 2, 1:].tolist() == [1, 1, 0]  # the first is padding, and hidden as such


def test_a_chunk_without_tokens_is_refused():
    with pytest.raises(ValueError, match='size=0 should be at least 1'):
        parse('chunks(size=0)')
