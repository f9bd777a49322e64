"""Sandwich against products of sinusoidal embeddings."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from posjax.schemes.sinusoidal import table
from tests.cases import context

EXAMPLES = ['sandwich', 'sandwich(dim=6, theta=50.0)']
OTHER = {'dim': [4, 64]}


def embedding(position, dim, theta):
    """sin and cos columns as in the listing of the paper's appendix."""
    angle = [position / theta ** (2 * i / dim) for i in range(dim // 2)]
    return np.array([math.sin(a) for a in angle] + [math.cos(a) for a in angle])


def paper(pos, heads, dim, theta):
    out = np.empty((1, heads, len(pos), len(pos)))
    for h in range(heads):
        for a, i in enumerate(pos):
            for b, j in enumerate(pos):
                product = embedding(i, dim, theta) @ embedding(j, dim, theta)
                out[0, h, a, b] = product / ((h + 1) * 8 / heads)
    return out


def rounding(distance, dim, theta):
    """By how much dim/2 cosines may be off: float32 rounds exponent, frequency, angle and sum."""
    freq = theta ** (-2 * np.arange(dim // 2) / dim)
    return (2**-23 * distance * freq * (2 + np.abs(np.log(freq)))).sum() + 2**-23 * dim


def bias(pos, heads, **fields):
    text = 'sandwich(' + ', '.join(f'{n}={v!r}' for n, v in fields.items()) + ')'
    q = jnp.zeros((1, len(pos), heads, 4))
    return parse(text).bias({}, q, q, context(pos))


@pytest.mark.parametrize('heads', [1, 3, 12])
@pytest.mark.parametrize(('dim', 'theta'), [(2, 1e4), (6, 50.0), (128, 1e4)])
def test_golden(heads, dim, theta):
    pos = [0, 1, 2, 5, 31, 128, 1000]
    expected = paper(pos, heads, dim, theta)
    got = bias(pos, heads, dim=dim, theta=theta)
    assert expected.dtype == np.float64 and got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=rounding(1000, dim, theta) * heads / 8)


def test_far_positions_lose_nothing_at_near_distances():
    pos = [100_000, 100_001, 100_007]
    np.testing.assert_array_equal(bias(pos, 4), bias([0, 1, 7], 4))
    np.testing.assert_allclose(bias(pos, 4), paper(pos, 4, 128, 1e4), rtol=1e-6)


def test_a_distance_of_a_hundred_thousand():
    got, expected = bias([0, 100_000], 8)[0, 0, 1, 0], paper([0, 100_000], 8, 128, 1e4)[0, 0, 1, 0]
    assert abs(got - expected) < rounding(100_000, 128, 1e4)


def test_is_the_product_of_the_tables_of_sinusoidal():
    rows = np.asarray(table(jnp.arange(6), 8, 30.0))
    got = bias(np.arange(6), 2, dim=8, theta=30.0)
    np.testing.assert_allclose(got[0, 0] * 4, rows @ rows.T, atol=1e-5)
    np.testing.assert_allclose(got[0, 1] * 8, rows @ rows.T, atol=1e-5)


def test_by_hand():
    # Distance 0 gives dim/2 cosines of 0; two columns give one cosine of the distance itself.
    assert bias([5], 4)[0, :, 0, 0].tolist() == [32, 16, pytest.approx(32 / 3), 8]
    np.testing.assert_allclose(bias([0, 2], 8, dim=2)[0, 0, 1, 0], math.cos(2), rtol=1e-6)


def test_near_tokens_win():
    last = np.asarray(bias(np.arange(64), 1))[0, 0, -1]
    # Falls all along the first distances, and stays below the start after them.
    assert (np.diff(last[-4:]) > 0).all() and last[:-4].max() < last[-4]
    assert last[-1] == last.max()


def test_settings_without_a_meaning_are_refused():
    for text, message in [
        ('sandwich(dim=7)', 'dim=7 should be even'),
        ('sandwich(dim=0)', 'dim=0 should be even and at least 2'),
        ('sandwich(theta=0)', 'theta=0.0 should be positive'),
    ]:
        with pytest.raises(ValueError, match=message):
            parse(text)
