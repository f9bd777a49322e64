"""NoPE against plain attention, on the founding numbers."""

import numpy as np

from posjax.attention import attend
from posjax.scheme import parse
from tests.cases import context

EXAMPLES = ['none']


def founding_draws():
    """The arrays of the founding checks, in their order of drawing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 8))
    wq, wk, wv = (rng.normal(size=(8, 8)) / np.sqrt(8) for _ in range(3))
    order = rng.permutation(5)
    q, k = rng.normal(size=8), rng.normal(size=8)
    return x, wq, wk, wv, order, q, k


def attention64(x, wq, wk, wv, causal):
    s = (x @ wq) @ (x @ wk).T / np.sqrt(8)
    if causal:
        s = np.where(np.tril(np.ones(s.shape, bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ (x @ wv)


def ours(x, wq, wk, wv, causal):
    q, k, v = (np.float32(x @ w)[None, :, None] for w in (wq, wk, wv))
    out, _ = attend(parse('none'), {}, q, k, v, context(np.arange(len(x)), causal=causal))
    return np.asarray(out)[0, :, 0]


def test_golden():
    x, wq, wk, wv, *_ = founding_draws()
    for causal in (False, True):
        expected = attention64(x, wq, wk, wv, causal)
        assert expected.dtype == np.float64
        np.testing.assert_allclose(ours(x, wq, wk, wv, causal), expected, atol=2e-6)


def test_permutation_equivariant_only_without_a_causal_mask():
    x, wq, wk, wv, order, *_ = founding_draws()
    free = ours(x, wq, wk, wv, causal=False)
    np.testing.assert_allclose(ours(x[order], wq, wk, wv, causal=False), free[order], atol=2e-6)
    causal = ours(x, wq, wk, wv, causal=True)
    assert np.abs(ours(x[order], wq, wk, wv, causal=True) - causal[order]).max() > 0.1
