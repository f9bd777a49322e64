"""Sliding windows, counted in tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import parse
from tests.cases import context

EXAMPLES = ['window(size=3)', 'rope|window(size=2)']


def attention64(q, k, v, seen):
    """Softmax over the keys seen, query by query."""
    out = np.zeros_like(q)
    for h in range(q.shape[1]):
        for i in range(len(q)):
            keys = [j for j in range(len(k)) if seen(i, j)]
            p = [np.exp(q[i, h] @ k[j, h] / np.sqrt(q.shape[-1])) for j in keys]
            out[i, h] = sum(p[n] * v[j, h] for n, j in enumerate(keys)) / sum(p)
    return out


@pytest.mark.parametrize('size', [1, 2, 3, 7, 50])
@pytest.mark.parametrize('causal', [True, False])
def test_golden(size, causal):
    q, k, v = np.random.default_rng(size).normal(size=(3, 7, 3, 8))
    arrays = [jnp.float32(x)[None] for x in (q, k, v)]
    got, _ = attend(
        parse(f'window(size={size})'), {}, *arrays, context(np.arange(7), causal=causal)
    )
    # As transformers: j > i - window, on both sides without a causal mask.
    expected = attention64(q, k, v, lambda i, j: abs(i - j) < size and (j <= i or not causal))
    assert expected.dtype == np.float64
    np.testing.assert_allclose(got[0], expected, atol=2e-6)


def test_queries_behind_a_cache():
    ctx = context([3, 4], [0, 1, 2, 3, 4])._replace(q_index_Q=jnp.asarray([3, 4]))
    seen = parse('window(size=2)').mask(ctx)[0, 0] & (jnp.arange(5)[None] <= ctx.q_index_Q[:, None])
    np.testing.assert_array_equal(seen, [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]])


def test_tokens_are_counted_whatever_their_numbers():
    plain = parse('window(size=3)').mask(context(np.arange(6)))
    for pos in ([3, 90, 91, 400, 1000, 2047], np.arange(6) / 4, [0, 0, 1, 0, 1, 2]):
        np.testing.assert_array_equal(parse('window(size=3)').mask(context(pos)), plain)


def test_a_window_without_the_token_itself_is_refused():
    with pytest.raises(ValueError, match='size=0 should be at least 1'):
        parse('window(size=0)')
