"""Linear biases against the paper and its authors' code."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import parse
from posjax.schemes.alibi import geometric_slopes, paper_slopes
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
        assert len(set(slopes)) == heads and min(slopes) > 0 and max(slopes) < 1


def mpt_slopes(heads, bias_max=8):
    """The rule of MPT: the next power of two, every other slope of it, then the ones left out."""
    power = 2 ** math.ceil(math.log2(heads))
    slopes = [1 / 2 ** ((k + 1) * bias_max / power) for k in range(power)]
    return slopes if power == heads else (slopes[1::2] + slopes[::2])[:heads]


def test_the_rule_of_mpt_gives_the_same_slopes():
    for heads in range(1, 71):
        np.testing.assert_allclose(paper_slopes(heads), mpt_slopes(heads), rtol=1e-12)
        np.testing.assert_allclose(paper_slopes(heads, 16), mpt_slopes(heads, 16), rtol=1e-12)
    assert paper_slopes(4, 16) == (2**-4, 2**-8, 2**-12, 2**-16)


def test_the_text_of_the_paper_differs_from_its_code_between_powers_of_two():
    expected = [0.39685, 0.157490, 0.0625, 0.024803, 0.009843, 0.003906]
    np.testing.assert_allclose(geometric_slopes(6), expected, rtol=1e-4)
    for heads in range(1, 71):
        same = np.allclose(geometric_slopes(heads), paper_slopes(heads))
        assert same == (heads & (heads - 1) == 0)


def test_a_bias_of_the_key_alone_is_the_same_only_under_a_causal_mask():
    rng = np.random.default_rng(0)
    q, k = (jnp.float32(rng.normal(size=(1, 5, 1, 8))) for _ in range(2))
    scores = (
        np.asarray(q[0, :, 0] @ k[0, :, 0].T, np.float64) / np.sqrt(8) + 0.25 * np.arange(5)[None]
    )
    for causal in (True, False):
        s = np.where(np.tril(np.ones((5, 5), bool)) | (not causal), scores, -np.inf)
        key_only = np.exp(s) / np.exp(s).sum(axis=1, keepdims=True)
        scheme = parse('alibi(slopes=(0.25,))')
        _, weights = attend(scheme, {}, q, k, k, context(np.arange(5), causal=causal))
        error = np.abs(weights[0, 0] - key_only).max()
        assert error < 1e-6 if causal else error > 0.1


def test_near_tokens_win():
    q = jnp.zeros((1, 4, 1, 8))
    _, weights = attend(parse('alibi(slopes=(0.5,))'), {}, q, q, q, context(np.arange(4)))
    np.testing.assert_allclose(
        weights[0, 0, 3], [0.101536, 0.167405, 0.276004, 0.455054], atol=1e-6
    )


def test_symmetric_without_a_causal_mask():
    q = jnp.zeros((1, 3, 1, 8))
    scheme = parse('alibi(slopes=(1.0,))')
    _, weights = attend(scheme, {}, q, q, q, context(np.arange(3), causal=False))
    np.testing.assert_allclose(weights[0, 0, 0], [0.665241, 0.244728, 0.090031], atol=1e-6)
    np.testing.assert_allclose(weights[0, 0], weights[0, 0, ::-1, ::-1], atol=1e-6)


def test_a_wrong_number_of_slopes_is_refused():
    with pytest.raises(ValueError, match='1 slopes for 2 heads; give 2, or none'):
        parse('alibi(slopes=(0.5,))').check_fit(MODEL.dims, range(8))
    with pytest.raises(ValueError, match='at least 0'):
        parse('alibi(slopes=(-0.5,))')
