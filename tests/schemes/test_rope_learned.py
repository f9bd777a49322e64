"""Learned frequencies against exp of the paper's generator, a skew matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from posjax.scheme import Dims, parse
from tests.cases import context

EXAMPLES = ['rope_learned', 'rope_learned(theta=30.0, log_freq_scale=1.0)']


def generator(log_freqs):
    """L of the paper on coordinate planes: one 2 x 2 skew block a plane, times its frequency."""
    out = np.zeros((2 * len(log_freqs), 2 * len(log_freqs)))
    for plane, log_freq in enumerate(log_freqs):
        out[2 * plane + 1, 2 * plane] = np.exp(log_freq)
        out[2 * plane, 2 * plane + 1] = -np.exp(log_freq)
    return out


@pytest.mark.parametrize('dim', [2, 6, 16])
@pytest.mark.parametrize(('theta', 'scale'), [(1e4, 16.0), (30.0, 1.0)])
def test_golden(dim, theta, scale):
    rng = np.random.default_rng(dim)
    x, w = rng.normal(size=(1, 5, 3, dim)), rng.normal(size=(2, dim // 2))
    pos = np.array([0, 1, 7, 40, 300])
    scheme = parse(f'rope_learned(theta={theta}, log_freq_scale={scale})')
    for layer in (0, 1):
        ctx = context(pos)._replace(layer=layer)
        q, k = scheme.qk({'log_ratio': jnp.float32(w)}, jnp.float32(x), jnp.float32(2 * x), ctx)
        logs = [-2 * m / dim * np.log(theta) + w[layer, m] / scale for m in range(dim // 2)]
        turns = [scipy.linalg.expm(t * generator(logs)) for t in pos]
        expected = np.stack([x[0, t] @ turns[t].T for t in range(5)])
        assert expected.dtype == np.float64
        # Frequencies reach e^2, angles 2,000 radians, which float32 rounds by up to 2e-4.
        np.testing.assert_allclose(q[0], expected, atol=2e-3)
        np.testing.assert_allclose(k[0], 2 * expected, atol=4e-3)


def test_golden_at_a_hundred_thousand():
    one, w = jnp.tile(jnp.float32([1, 0]), 8).reshape(1, 1, 1, 16), np.linspace(-3, 3, 8)
    params = {'log_ratio': jnp.float32(w)[None]}
    q, _ = parse('rope_learned').qk(params, one, one, context([100_000]))
    angle = 1e5 * 1e4 ** (-np.arange(0, 16, 2) / 16) * np.exp(w / 16)
    error = np.abs(np.angle(np.exp(1j * (np.arctan2(q[..., 1::2], q[..., 0::2])[0, 0, 0] - angle))))
    # float32 rounds two exponents (their size times that), the frequency, and the angle.
    bound = 2**-23 * angle * (3 + np.abs(np.log(angle / 1e5)) + np.abs(w / 16)) + 1e-6
    assert (error < bound).all()


def test_it_starts_as_rope():
    scheme, x = parse('rope_learned(theta=500.0)'), jnp.ones((1, 9, 2, 8))
    params = scheme.init(jax.random.key(0), Dims(16, 2, 8, 3))
    assert params['log_ratio'].shape == (3, 4)
    ctx = context(np.arange(9))
    rope = parse('rope(theta=500.0)').qk({}, x, x, ctx)
    np.testing.assert_array_equal(scheme.qk(params, x, x, ctx), rope)


def test_values_without_a_meaning_are_refused():
    with pytest.raises(ValueError, match='log_freq_scale=0.0 should be positive'):
        parse('rope_learned(log_freq_scale=0)')
    with pytest.raises(ValueError, match='head_dim=65 .width 65 / heads 1. should be even'):
        parse('rope_learned').check_fit(Dims(65, 1, 65, 2), range(32))
