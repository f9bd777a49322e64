"""RoPE on a part of the head, against pairs turned one by one."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from tests.cases import context

EXAMPLES = ['partial_rope(rotary_dim=4)', "partial_rope(rotary_dim=6, theta=30.0, pairing='half')"]
OTHER = {'rotary_dim': [2, 4, 6, 8]}


def turned_by_hand(x_BTHK, pos, r, theta, pairing):
    """Every pair as one complex number, in float64; dims from r on are left alone."""
    out = np.array(x_BTHK, np.float64)
    for t, position in enumerate(pos):
        for k in range(r // 2):
            a, b = (2 * k, 2 * k + 1) if pairing == 'interleaved' else (k, k + r // 2)
            z = out[:, t, :, a] + 1j * out[:, t, :, b]
            z = z * np.exp(1j * position / theta ** (2 * k / r))
            out[:, t, :, a], out[:, t, :, b] = z.real, z.imag
    return out


def turn(text, x, pos):
    q, k = parse(text).qk({}, jnp.float32(x), jnp.float32(x[..., ::-1]), context(pos))
    return np.asarray(q), np.asarray(k)


@pytest.mark.parametrize('pairing', ['interleaved', 'half'])
@pytest.mark.parametrize('theta', [1e4, 30.0])
@pytest.mark.parametrize(('dim', 'r'), [(8, 2), (8, 6), (8, 8), (7, 4), (64, 16)])
def test_golden(dim, r, theta, pairing):
    x = np.random.default_rng(dim + r).normal(size=(1, 6, 3, dim))
    pos = np.array([0, 1, 7, 128, 1000, 3])
    q, k = turn(f'partial_rope(rotary_dim={r}, theta={theta}, pairing={pairing!r})', x, pos)
    expected = turned_by_hand(x, pos, r, theta, pairing)
    assert expected.dtype == np.float64
    # float32 rounds angles of up to 1,000 radians by up to 1e-4.
    np.testing.assert_allclose(q, expected, atol=5e-4)
    np.testing.assert_allclose(k, turned_by_hand(x[..., ::-1], pos, r, theta, pairing), atol=5e-4)
    np.testing.assert_array_equal(q[..., r:], np.float32(x[..., r:]))


def test_golden_at_a_hundred_thousand():
    x = np.random.default_rng(0).normal(size=(1, 3, 2, 64))
    pos = np.array([99_999, 100_000, 100_001])
    q, _ = turn('partial_rope(rotary_dim=16)', x, pos)
    expected = turned_by_hand(x, pos, 16, 1e4, 'interleaved')
    # Frequency, its logarithm and angle are float32: three roundings of 100,000 radians.
    np.testing.assert_allclose(q, expected, atol=3 * 2**-24 * 1e5 * np.abs(x).max())


def test_turning_all_dims_is_rope():
    x = np.random.default_rng(1).normal(size=(1, 4, 2, 8))
    pos = np.arange(4)
    np.testing.assert_array_equal(turn('rope', x, pos), turn('partial_rope(8)', x, pos))


def test_wavelengths_span_the_whole_range_whatever_the_part():
    # Three quarters of a full-head series would stop at theta^(-2 2/8) = 0.01.
    one = np.tile([1.0, 0.0], 4).reshape(1, 1, 1, 8)
    q, _ = turn('partial_rope(rotary_dim=6)', one, [1])
    angle = np.arctan2(q[0, 0, 0, 1::2], q[0, 0, 0, 0::2])
    np.testing.assert_allclose(angle, [1, 1e4 ** (-2 / 6), 1e4 ** (-4 / 6), 0], rtol=1e-5)


@pytest.mark.parametrize('name', ['partial_rope', 'p_rope'])
def test_impossible_parts_are_refused_with_their_numbers(name):
    # GPT-NeoX's rule on a head of 4 with 75 %: int(0.75 * 4) = 3.
    with pytest.raises(ValueError, match=f'scheme {name}: rotary_dim=3 should be even'):
        parse(f'{name}(rotary_dim=3)')
    for empty in (0, -2):
        with pytest.raises(ValueError, match=f'rotary_dim={empty} should be even and at least 2'):
            parse(f'{name}(rotary_dim={empty})')
    with pytest.raises(ValueError, match=r'turns 10 dims .* has head_dim=8 .width 16 / heads 2'):
        parse(f'{name}(rotary_dim=10)').check_fit(Dims(16, 2, 8, 1), range(4))
    parse(f'{name}(rotary_dim=8)').check_fit(Dims(16, 2, 8, 1), range(4))


def test_an_odd_head_is_fine_where_an_even_part_turns():
    parse('partial_rope(rotary_dim=4)').check_fit(Dims(7, 1, 7, 1), range(4))
    with pytest.raises(ValueError, match=r'head_dim=7 .width 7 / heads 1. should be even'):
        parse('p_rope(rotary_dim=4)').check_fit(Dims(7, 1, 7, 1), range(4))
