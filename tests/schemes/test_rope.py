"""Rotations against the paper's matrix, and the two pairings against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from posjax.schemes.rope import half_from_interleaved, inv_freq, rotate, wavelengths
from tests.cases import context
from tests.schemes.test_none import founding_draws

EXAMPLES = [
    'rope',
    'rope(theta=30.0)',
    "rope(pairing='half')",
    'rope(scaling=dynamic_ntk(factor=2.0, original_length=6.0))',
    'rope(scaling=longrope((1, 2, 3, 4), (2, 4, 6, 8), original_length=6.0, factor=2.0))',
    'rope(theta=30.0, scaling=by_parts(factor=4.0, original_length=24.0, beta=3.0))',
]


def matrix(position, dim, theta):
    """R of the paper, eq. 15: 2 x 2 rotations down the diagonal."""
    out = np.zeros((dim, dim))
    for i in range(dim // 2):
        angle = position * theta ** (-2 * i / dim)
        out[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
            [np.cos(angle), -np.sin(angle)],
            [np.sin(angle), np.cos(angle)],
        ]
    return out


def score(q, k, at, to, **fields):
    """Rotated q (at position `at`) times rotated k (at `to`), through the scheme's own hook."""
    scheme = parse('rope(' + ', '.join(f'{n}={v!r}' for n, v in fields.items()) + ')')
    shape = (1, 1, 1, len(q))
    q, k = (jnp.float32(x).reshape(shape) for x in (q, k))
    q, k = scheme.qk({}, q, k, context([at], [to]))
    return float((q * k).sum()), q


@pytest.mark.parametrize('dim', [2, 6, 64])
@pytest.mark.parametrize('theta', [1e4, 1e6, 30.0])
def test_golden(dim, theta):
    rng = np.random.default_rng(dim)
    x, pos = rng.normal(size=(1, 5, 3, dim)), np.array([[0, 1, 7, 128, 1000]])
    got = rotate(jnp.float32(x), jnp.asarray(pos), inv_freq(theta, dim))
    expected = np.stack([x[0, t] @ matrix(pos[0, t], dim, theta).T for t in range(5)])[None]
    assert expected.dtype == np.float64
    np.testing.assert_allclose(got, expected, atol=5e-4)


def test_frequencies():
    np.testing.assert_allclose(inv_freq(1e4, 8), [1, 0.1, 0.01, 0.001], rtol=1e-6)
    np.testing.assert_allclose(inv_freq(1e6, 8)[-1], 3.16227766e-05, rtol=1e-6)


def test_founding_scores():
    *_, q, k = founding_draws()
    for at, to in ((3, 5), (10, 12), (100, 102)):
        assert score(q, k, at, to)[0] == pytest.approx(-6.3341, abs=2e-4)
    value, turned = score(q, k, 3, 10)
    assert value == pytest.approx(-5.9618, abs=1e-4)
    assert np.linalg.norm(q) == pytest.approx(4.4482, abs=1e-4)
    assert np.linalg.norm(turned) == pytest.approx(4.4482, abs=1e-4)


@pytest.mark.parametrize('pairing', ['interleaved', 'half'])
def test_scores_depend_on_the_distance_alone(pairing):
    q, k = (1, 0.5, -0.3, 0.8), (0.2, -1, 0.7, 0.4)
    near = [score(q, k, i, j, pairing=pairing)[0] for i, j in ((3, 1), (10, 8), (105, 103))]
    np.testing.assert_allclose(near, near[0], atol=1e-5)
    assert abs(score(q, k, 5, 1, pairing=pairing)[0] - near[0]) > 0.05


def test_pairings_are_one_function_up_to_an_order():
    x, pos = jax.random.normal(jax.random.key(0), (2, 5, 3, 8)), jnp.arange(5)[None]
    order, freq = half_from_interleaved(8), inv_freq(1e4, 8)
    one, other = rotate(x, pos, freq), rotate(x[..., order], pos, freq, 'half')
    np.testing.assert_array_equal(one[..., order], other)
    np.testing.assert_array_equal(other[..., np.argsort(order)], one)
    assert np.abs(rotate(x, pos, freq, 'half') - one).max() > 0.1


def test_heads_turn_alike_and_position_zero_stays():
    y = rotate(jnp.ones((1, 3, 2, 4)), jnp.arange(3)[None], inv_freq(1e4, 4))
    np.testing.assert_array_equal(y[:, :, 0], y[:, :, 1])
    np.testing.assert_array_equal(y[:, 0], jnp.ones((1, 2, 4)))
    assert np.abs(y[:, 1] - y[:, 0]).max() > 0.1


def test_positions_stay_apart_in_bfloat16():
    x = jnp.ones((1, 1024, 1, 2), jnp.bfloat16)
    turned = rotate(x, jnp.arange(1024)[None], inv_freq(1e4, 2))
    assert turned.dtype == jnp.bfloat16
    # Position 257 would be 256 in bfloat16, and cos 256 is -0.04.
    expected = np.cos(257.0) - np.sin(257.0)
    assert float(turned[0, 257, 0, 0]) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize('theta', [1e4, 5e5])
def test_angles_at_a_hundred_thousand(theta):
    pos, dim = 100_000, 128
    one = jnp.tile(jnp.float32([1, 0]), dim // 2).reshape(1, 1, 1, dim)
    turned = np.asarray(rotate(one, jnp.asarray([[pos]]), inv_freq(theta, dim)))[0, 0, 0]
    angle = pos * np.float64(theta) ** (-np.arange(0, dim, 2) / dim)
    got = np.arctan2(turned[1::2], turned[0::2])
    error = np.abs(np.angle(np.exp(1j * (got - angle))))
    # float32 rounds the exponent (times ln of the frequency), the frequency, and the angle.
    bound = 2**-23 * angle * (2 + np.abs(np.log(angle / pos))) + 1e-6
    assert (error < bound).all()


def test_wavelengths():
    assert wavelengths(128, 1e4).dtype == np.float64
    # 2 pi theta^(126/128), by hand.
    assert wavelengths(128, 1e4)[-1] == pytest.approx(54410.14, rel=1e-6)
    assert wavelengths(128, 5e5)[-1] == pytest.approx(2.5592e6, rel=1e-4)
    unfinished = {
        (theta, length): int((wavelengths(128, theta) > length).sum())
        for theta in (1e4, 5e5) for length in (8192, 131072)
    }  # fmt: skip
    by_hand = {
        (theta, length): sum(2 * np.pi * theta ** (2 * i / 128) > length for i in range(64))
        for theta, length in unfinished
    }
    assert unfinished == by_hand
    assert list(unfinished.values()) == [14, 0, 29, 15]


def test_an_odd_head_is_refused_with_its_numbers():
    with pytest.raises(ValueError, match=r'head_dim=65 .width 65 / heads 1. should be even'):
        parse('rope').check_fit(Dims(65, 1, 65, 2), range(32))
