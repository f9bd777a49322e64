"""Masks: where they are applied, how they are aligned, and what a row without keys gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import Dims, Scheme, as_chain, dot_scores, parse
from posjax.spec import structured
from tests.cases import context

NOPE = parse('none')


def weights(q, k, ctx, **kwargs):
    _, w = attend(kwargs.pop('scheme', NOPE), {}, q, k, jnp.ones_like(k), ctx, **kwargs)
    return np.asarray(w)


def test_equal_scores_share_what_is_visible_and_no_more():
    x = jnp.zeros((1, 3, 1, 4))
    expected = [[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(weights(x, x, context([0, 1, 2]))[0, 0], expected, atol=1e-6)


def test_late_queries_see_all_earlier_keys():
    # Two queries at the end of five keys, as in cached decoding: aligned to the bottom right.
    q, k = jnp.zeros((1, 2, 1, 4)), jnp.zeros((1, 5, 1, 4))
    ctx = context([3, 4], range(5))._replace(q_index_Q=jnp.asarray([3, 4]))
    seen = weights(q, k, ctx)[0, 0] > 0
    np.testing.assert_array_equal(seen, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])


def test_causality_goes_by_place_not_by_position_number():
    x = jnp.zeros((1, 3, 1, 4))
    np.testing.assert_array_equal(
        weights(x, x, context([9, 2, 5]))[0, 0] > 0, np.tril(np.ones((3, 3), bool))
    )


@pytest.mark.parametrize('block', [0, 1])
def test_a_row_without_keys_is_zero_with_finite_gradients(block):
    q = jax.random.normal(jax.random.key(0), (1, 2, 1, 4))
    ctx = context([0, 1], valid=[False, True])

    def out(q):
        return attend(NOPE, {}, q, q, q, ctx, block=block)[0]

    np.testing.assert_array_equal(out(q)[0, 0], 0)
    np.testing.assert_allclose(out(q)[0, 1], q[0, 1], atol=1e-6)
    grad = jax.grad(lambda q: (out(q) ** 2).sum())(q)
    assert np.isfinite(grad).all() and np.abs(grad).max() > 0


def test_a_scheme_mask_intersects_with_the_causal_one():
    @structured
    class nearest(Scheme):
        def mask(self, ctx):
            return (ctx.q_pos_BQ[:, None, :, None] - ctx.k_pos_BS[:, None, None, :]) < 2

    x = jnp.zeros((1, 4, 1, 4))
    got = weights(x, x, context(range(4)), scheme=nearest())[0, 0]
    expected = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_two_whole_scores_do_not_chain():
    @structured
    class whole(Scheme):
        def scores(self, params, q_BQHK, k_BSHK, ctx):
            return jnp.zeros(())

    with pytest.raises(ValueError, match='whole and whole both define the whole score; keep one'):
        whole() | whole()


def test_a_whole_score_and_a_bias_add():
    @structured
    class twice(Scheme):
        def scores(self, params, q_BQHK, k_BSHK, ctx):
            return 2 * dot_scores(q_BQHK, k_BSHK, ctx)

    q = jax.random.normal(jax.random.key(0), (1, 3, 2, 4))
    ctx = context(range(3), head_dim=4)
    bias = parse('alibi').bias({}, q, q, ctx)
    expected = 2 * NOPE.scores({}, q, q, ctx) + bias
    np.testing.assert_allclose(
        (twice() | parse('alibi')).scores({}, q, q, ctx), expected, atol=1e-6
    )


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('text', ['none', 'rope|alibi', 'shaw', 'window(size=3)'])
def test_blocks_under_padding_and_after_earlier_tokens(text, causal):
    scheme, keys, past = as_chain(parse(text)), 23, 6
    params = scheme.init(jax.random.key(0), Dims(16, 2, 8, 1))
    q, k, v = jax.random.normal(jax.random.key(1), (3, 2, keys, 2, 8))
    q = q[:, past:]
    # One sequence all of padding before its last tokens, a whole tile of it.
    valid = np.arange(keys) >= np.array([[2], [9]])
    ctx = context(range(keys), causal=causal)
    ctx = ctx._replace(
        q_pos_BQ=ctx.q_pos_BQ[:, past:], q_index_Q=ctx.q_index_Q[past:], valid_BS=valid
    )
    whole, _ = attend(scheme, params, q, k, v, ctx)
    for block in (1, 2, 5):
        by_blocks, _ = attend(scheme, params, q, k, v, ctx, block)
        np.testing.assert_allclose(by_blocks, whole, atol=2e-6)
    if causal:
        assert (whole[1, : 9 - past] == 0).all(), 'of queries that see no key'


def test_blockwise_memory_does_not_grow_with_the_square_of_the_length():
    def temporary(length, block):
        x = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
        alibi = parse('alibi')

        def f(q):
            pos = jnp.arange(length)
            ctx = context(pos)
            return attend(alibi, {}, q, q, q, ctx, block=block)[0]

        return jax.jit(f).lower(x).compile().memory_analysis().temp_size_in_bytes

    # Twice the length: twice the memory by blocks, four times at once.
    assert temporary(2048, 64) < 2.5 * temporary(1024, 64)
    assert temporary(2048, 64) < temporary(2048, 0) / 8
    # What grows are keys and values, as they are multiplied; queries are read where they lie.
    assert temporary(4096, 64) - temporary(2048, 64) < 2.5 * (2048 * 2 * 8 * 4)
