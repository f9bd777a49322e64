"""Distances that end at a window, against a score for every pair of tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from tests.cases import context
from tests.schemes.test_rope import matrix

EXAMPLES = [
    'rerope(window=3.0)',
    'rerope(window=2.5, leak=0.3, scheme=partial_rope(rotary_dim=4))|logn_position(train_length=4)',
]
POSITIONS = np.array([0, 1, 2, 3, 5, 8, 13, 14])


def scores64(q, k, pos, distance_of, theta=1e4):
    """Every score by itself: the query turned by the distance that the scheme gives the pair."""
    out = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            turned = matrix(distance_of(pos[i], pos[j]), q.shape[-1], theta) @ q[i]
            out[i, j] = turned @ k[j] / np.sqrt(q.shape[-1])
    return out


def scores(text, q, k, pos):
    arrays = [jnp.float32(x)[None, :, None] for x in (q, k)]
    return parse(text).scores({}, *arrays, context(pos, head_dim=q.shape[-1]))[0, 0]


@pytest.mark.parametrize('dim', [2, 6])
@pytest.mark.parametrize(('window', 'leak'), [(1, 0.0), (3, 0.0), (4, 0.25), (2.5, 1.0), (50, 0.0)])
def test_golden(dim, window, leak):
    def distance_of(i, j):
        return i - j if i - j < window else window + leak * (i - j - window)

    q, k = np.random.default_rng(dim).normal(size=(2, len(POSITIONS), dim))
    expected = scores64(q, k, POSITIONS, distance_of, theta=30.0)
    assert expected.dtype == np.float64
    text = f'rerope(window={window}, leak={leak}, scheme=rope(theta=30.0))'
    np.testing.assert_allclose(scores(text, q, k, POSITIONS), expected, atol=3e-6)


def test_a_leak_of_one_or_a_wide_window_is_rope():
    q, k = np.random.default_rng(0).normal(size=(2, len(POSITIONS), 8))
    plain = scores('rope', q, k, POSITIONS)
    np.testing.assert_allclose(scores('rerope(3.0, 1.0)', q, k, POSITIONS), plain, atol=3e-6)
    np.testing.assert_array_equal(scores('rerope(window=15.0)', q, k, POSITIONS), plain)
    assert np.abs(scores('rerope(window=14.0)', q, k, POSITIONS) - plain).max() == 0  # 14 -> 14
    assert np.abs(scores('rerope(window=13.0)', q, k, POSITIONS) - plain).max() > 1e-3


def test_a_temperature_comes_on_top():
    q, k = np.random.default_rng(0).normal(size=(2, len(POSITIONS), 8))
    factor = np.maximum(1, np.log(POSITIONS + 1) / np.log(4))
    bare = scores('rerope(window=3.0)', q, k, POSITIONS)
    for text in ('rerope(3.0)|logn_position(4)', 'logn_position(4)|rerope(3.0)'):
        np.testing.assert_allclose(
            scores(text, q, k, POSITIONS), bare * factor[:, None], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('rerope(window=0.5)', 'scheme rerope: window=0.5 should be at least 1'),
        ('rerope(window=4.0, leak=1.5)', 'leak=1.5 should be from 0 to 1'),
        ('rerope(window=4.0, scheme=alibi)', 'scheme=alibi is none; take rope, partial_rope or'),
        ('rerope(window=4.0, scheme=rope|logn(8))', r'chain the rest outside, as rerope\(...\)'),
        ('rerope(window=4.0, scheme=rope(theta=-1))', 'theta=-1.0 should be positive'),
        ('rerope(window=4.0)|xpos', 'both define the whole score'),
        ('self_extend(group=0, window=4)', 'scheme self_extend: group=0 should be at least 1'),
        ('lm_infinite(window=4, number=0)', 'scheme lm_infinite: number=0 should be at least 1'),
    ],
)
def test_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        parse(text)
    assert '\n' not in str(error.value)


def test_what_its_rotation_needs_and_sees_is_its_own():
    with pytest.raises(ValueError, match='head_dim=7'):
        parse('rerope(window=4.0)').check_fit(Dims(7, 1, 7, 1), range(8))
    for name in ('rerope(4.0', 'self_extend(2, 4', 'lm_infinite(4'):
        scaled = parse(f'{name}, scheme=rope(scaling=dynamic_ntk(1, 6)))')
        assert scaled.sees_length and not scaled.at(Dims(16, 2, 8, 1), 9).sees_length
