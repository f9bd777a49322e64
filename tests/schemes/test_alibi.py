"""Linear biases against the paper and its authors' code."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import parse
from posjax.schemes.alibi import paper_slopes
from tests.cases import MODEL, context

EXAMPLES = ['alibi', 'alibi(slopes=(0.5, 0.0625))']


def authors_slopes(n):
    """The rule of the authors' fairseq code, written recursively as there."""
    if n & (n - 1) == 0:
        return [2.0 ** (-8 * (i + 1) / n) for i in range(n)]
    m = 1 << (n.bit_length() - 1)
    return authors_slopes(m) + authors_slopes(2 * m)[0::2][: n - m]


def test_golden():
    pos = np.array([0, 1, 2, 5, 100_000])
    q = jnp.zeros((1, 5, 12, 8))
    got = parse('alibi').bias({}, q, q, context(pos))
    slopes = np.array(authors_slopes(12))
    expected = -slopes[None, :, None, None] * np.abs(pos[:, None] - pos[None, :])
    assert expected.dtype == np.float64
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_slopes_for_any_number_of_heads():
    assert paper_slopes(1) == (2**-8,)
    assert paper_slopes(3) == (0.0625, 0.00390625, 0.25)
    assert paper_slopes(6) == (0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125)
    for heads in range(1, 71):
        slopes = paper_slopes(heads)
        np.testing.assert_allclose(slopes, authors_slopes(heads), rtol=1e-12)
        assert len(set(slopes)) == heads and 0 < min(slopes) and max(slopes) < 1


def test_near_tokens_win():
    q = jnp.zeros((1, 4, 1, 8))
    _, weights = attend(parse('alibi(slopes=(0.5,))'), {}, q, q, q, context(np.arange(4)))
    np.testing.assert_allclose(weights[0, 0, 3], [0.101536, 0.167405, 0.276004, 0.455054], atol=1e-6)


def test_symmetric_without_a_causal_mask():
    q = jnp.zeros((1, 3, 1, 8))
    scheme = parse('alibi(slopes=(1.0,))')
    _, weights = attend(scheme, {}, q, q, q, context(np.arange(3), causal=False))
    np.testing.assert_allclose(weights[0, 0, 0], [0.665241, 0.244728, 0.090031], atol=1e-6)
    np.testing.assert_allclose(weights[0, 0], weights[0, 0, ::-1, ::-1], atol=1e-6)


def test_a_wrong_number_of_slopes_is_refused():
    with pytest.raises(ValueError, match='1 slopes for 2 heads; give 2, or none'):
        parse('alibi(slopes=(0.5,))').check_fit(MODEL.dims, 8)
    with pytest.raises(ValueError, match='at least 0'):
        parse('alibi(slopes=(-0.5,))')
