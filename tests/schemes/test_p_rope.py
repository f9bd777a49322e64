"""RoPE without its low frequencies, against the paper's rule on explicit rotation matrices."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from posjax.schemes.partial_rope import proportional
from posjax.schemes.rope import inv_freq
from tests.cases import context

EXAMPLES = ['p_rope(rotary_dim=4)', "p_rope(rotary_dim=6, theta=30.0, pairing='half')"]
OTHER = {'rotary_dim': [2, 4, 6, 8]}


def frequencies(p, dim, theta):
    """Rotation angles per position, the fraction 1 - p of lowest ones set to 0."""
    turning = int(p * dim // 2)
    return [1 / theta ** (2 * k / dim) if k < turning else 0.0 for k in range(dim // 2)]


def matrix(position, freqs, pairing):
    """The block rotation of a head, row by row, in float64."""
    dim = 2 * len(freqs)
    out = np.zeros((dim, dim))
    for k, freq in enumerate(freqs):
        a, b = (2 * k, 2 * k + 1) if pairing == 'interleaved' else (k, k + dim // 2)
        out[a, a] = out[b, b] = np.cos(position * freq)
        out[b, a], out[a, b] = np.sin(position * freq), -np.sin(position * freq)
    return out


@pytest.mark.parametrize('pairing', ['interleaved', 'half'])
@pytest.mark.parametrize('theta', [1e4, 30.0])
@pytest.mark.parametrize(('dim', 'p'), [(8, 0.25), (6, 0.5), (10, 0.75), (64, 0.3), (2, 1.0)])
def test_golden(dim, p, theta, pairing):
    x = np.random.default_rng(dim).normal(size=(1, 5, 3, dim))
    pos = np.array([0, 1, 7, 128, 1000])
    rotary_dim = 2 * int(p * dim // 2)
    scheme = parse(f'p_rope(rotary_dim={rotary_dim}, theta={theta}, pairing={pairing!r})')
    q, k = scheme.qk({}, jnp.float32(x), jnp.float32(-x), context(pos))
    turns = [matrix(t, frequencies(p, dim, theta), pairing) for t in pos]
    expected = np.stack([x[0, t] @ turns[t].T for t in range(5)])[None]
    assert expected.dtype == np.float64
    # float32 rounds angles of up to 1,000 radians by up to 1e-4.
    np.testing.assert_allclose(q, expected, atol=5e-4)
    np.testing.assert_allclose(k, -expected, atol=5e-4)


def test_golden_at_a_hundred_thousand():
    one = jnp.tile(jnp.float32([1, 0]), 64).reshape(1, 1, 1, 128)
    q, _ = parse('p_rope(rotary_dim=64)').qk({}, one, one, context([100_000]))
    angle = 1e5 * np.array(frequencies(0.5, 128, 1e4))
    error = np.abs(np.angle(np.exp(1j * (np.arctan2(q[..., 1::2], q[..., 0::2])[0, 0, 0] - angle))))
    # float32 rounds the frequency, its logarithm, and the angle.
    assert (error < 4 * 2**-23 * angle + 1e-6).all()
    assert (error[32:] == 0).all()


def test_frequencies_by_hand():
    # The full head's series 1, 0.1, 0.01, 0.001, cut; partial_rope would have 1 and 0.01.
    np.testing.assert_allclose(proportional(inv_freq(1e4, 8), 4), [1, 0.1, 0, 0], rtol=1e-6)


def test_all_dims_turning_is_rope():
    x = jnp.float32(np.random.default_rng(1).normal(size=(1, 4, 2, 8)))
    ctx = context(np.arange(4))
    whole, part = parse('rope').qk({}, x, x, ctx), parse('p_rope(rotary_dim=8)').qk({}, x, x, ctx)
    np.testing.assert_array_equal(whole, part)


def test_it_is_not_partial_rope():
    x = jnp.float32(np.random.default_rng(1).normal(size=(1, 4, 2, 8)))
    ctx = context(np.arange(4))
    one = parse('p_rope(rotary_dim=4)').qk({}, x, x, ctx)[0]
    assert np.abs(one - parse('partial_rope(rotary_dim=4)').qk({}, x, x, ctx)[0]).max() > 0.1
