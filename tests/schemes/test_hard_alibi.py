"""Windows that grow with the head, against the paper's masked softmax."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import parse
from posjax.schemes.hard_alibi import paper_windows
from tests.cases import MODEL, context

EXAMPLES = ['hard_alibi', 'hard_alibi(windows=(2, 5))']
OTHER = {'windows': [(3, 4), (0, 2)]}


def paper(q, k, windows):
    """Weights with masks built diagonal by diagonal, as the authors build them: head h opens h."""
    length, heads = q.shape[1:3]
    weights = np.zeros((heads, length, length))
    for h, window in enumerate(windows):
        s = np.full((length, length), -np.inf)
        for back in range(window or length):
            for i in range(back, length):
                s[i, i - back] = q[0, i, h] @ k[0, i - back, h] / np.sqrt(q.shape[-1])
        p = np.exp(s - s.max(axis=1, keepdims=True))
        weights[h] = p / p.sum(axis=1, keepdims=True)
    return weights


@pytest.mark.parametrize('length', [1, 2, 9])
@pytest.mark.parametrize(('heads', 'masked'), [(1, 1), (3, 1), (5, 5), (16, 8)])
def test_golden(heads, masked, length):
    windows = paper_windows(heads, masked)
    q, k = np.random.default_rng(heads).normal(size=(2, 1, length, heads, 4))
    expected = paper(q, k, windows)
    scheme = parse(f'hard_alibi(windows={windows})')
    ctx = context(np.arange(length), head_dim=4)
    _, weights = attend(scheme, {}, jnp.float32(q), jnp.float32(k), jnp.float32(k), ctx)
    assert expected.dtype == np.float64
    np.testing.assert_allclose(weights[0], expected, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(weights[0]) > 0, expected > 0)


def test_paper_windows():
    assert paper_windows(16) == (1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0)
    assert paper_windows(5) == (1, 2, 0, 0, 0)
    assert paper_windows(3, 3) == (1, 2, 3)
    assert paper_windows(1) == (0,)


def test_who_sees_whom():
    seen = parse('hard_alibi(windows=(1, 2, 0))').mask(context([0, 1, 2, 99_999, 100_000]))
    near = np.eye(5, dtype=bool)
    np.testing.assert_array_equal(seen[0, 0], near)
    near[[1, 2, 4], [0, 1, 3]] = near[[0, 1, 3], [1, 2, 4]] = (
        True  # both ways: causality is not ours
    )
    np.testing.assert_array_equal(seen[0, 1], near)
    assert seen[0, 2].all()


def test_heads_without_a_window_are_nope():
    q, k = jnp.float32(np.random.default_rng(0).normal(size=(2, 1, 7, 2, 4)))
    _, ours = attend(
        parse('hard_alibi(windows=(2, 0))'), {}, q, k, k, context(np.arange(7), head_dim=4)
    )
    _, nope = attend(parse('none'), {}, q, k, k, context(np.arange(7), head_dim=4))
    np.testing.assert_allclose(ours[0, 1], nope[0, 1], atol=1e-7)
    assert np.abs(ours[0, 0] - nope[0, 0]).max() > 0.1


def test_windows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r'windows=.1, -2. should all be at least 0'):
        parse('hard_alibi(windows=(1, -2))')
    with pytest.raises(ValueError, match=r'3 windows for 2 heads; give 2, such as windows=.1, 0.'):
        parse('hard_alibi(windows=(1, 2, 0))').check_fit(MODEL.dims, range(8))


def test_without_windows_it_takes_the_papers_for_the_models_heads():
    ctx = context(np.arange(5), heads=6)
    given = parse(f'hard_alibi(windows={paper_windows(6)})').mask(ctx)
    np.testing.assert_array_equal(parse('hard_alibi').mask(ctx), given)
