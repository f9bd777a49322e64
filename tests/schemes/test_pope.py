"""PoPE's score against the paper's sum over coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from tests.cases import context

EXAMPLES = ['pope', "pope(theta=30.0, phases='uniform')"]


def paper_score(q_K, k_K, t, s, delta_K, theta):
    """Equation 6 for a query at t and a key at s; delta is bounded as the text below it says."""
    total = 0.0
    for c in range(1, len(q_K) + 1):
        magnitudes = np.log(1 + np.exp(q_K[c - 1])) * np.log(1 + np.exp(k_K[c - 1]))
        frequency = theta ** (-(c - 1) / len(q_K))
        delta = min(max(delta_K[c - 1], -2 * np.pi), 0.0)
        total += magnitudes * np.cos((s - t) * frequency + delta)
    return total / np.sqrt(len(q_K))


def scores(text, params, q, k, q_pos, k_pos, layer=0):
    ctx = context(q_pos, k_pos, head_dim=q.shape[-1])._replace(layer=layer)
    scheme = parse(text)
    return np.asarray(scheme.scores(params, jnp.float32(q)[None], jnp.float32(k)[None], ctx))[0]


def compare(text, dim, q_pos, k_pos, theta, atol):
    rng = np.random.default_rng(dim)
    q, k = rng.normal(size=(len(q_pos), 3, dim)), rng.normal(size=(len(k_pos), 3, dim))
    # Phases on both sides of the interval's ends.
    delta = rng.uniform(-9, 3, size=(2, 3, dim))
    for layer in (0, 1):
        got = scores(text, {'phase': jnp.float32(delta)}, q, k, q_pos, k_pos, layer)
        expected = np.array([
            [[paper_score(q[i, h], k[j, h], q_pos[i], k_pos[j], delta[layer, h], theta)
              for j in range(len(k_pos))] for i in range(len(q_pos))] for h in range(3)
        ])  # fmt: skip
        assert expected.dtype == np.float64
        np.testing.assert_allclose(got, expected, atol=atol)


@pytest.mark.parametrize('dim', [1, 3, 8, 32])
@pytest.mark.parametrize('theta', [1e4, 30.0])
def test_golden(dim, theta):
    # float32 rounds angles of up to 1,000 radians by up to 1e-4, in each of a few coordinates.
    compare(f'pope(theta={theta})', dim, [0, 7, 128, 1000], [0, 1, 7, 120, 999], theta, atol=1e-3)


def test_golden_near_a_hundred_thousand():
    # Angles of 100,000 radians are off by up to 0.02 in float32.
    compare('pope', 16, [100_000, 100_001], [0, 99_000, 99_999, 100_000], 1e4, atol=0.05)


def test_vectors_double_and_phases_are_float32_whatever_the_dtype():
    x = jnp.ones((1, 3, 2, 4), jnp.bfloat16)
    for y in parse('pope').qk({'phase': jnp.zeros((1, 2, 4))}, x, x, context([0, 1, 257])):
        assert y.shape == (1, 3, 2, 8) and y.dtype == jnp.bfloat16
        # Position 257 would be 256 in bfloat16, and cos 256 is -0.04.
        assert float(y[0, 2, 0, 0]) == pytest.approx(np.log(1 + np.e) * np.cos(257), abs=0.01)


def test_content_never_moves_a_phase():
    # With one coordinate, whatever q and k are, the score peaks where the phase says.
    delta = {'phase': jnp.full((1, 1, 1), -2.0)}
    for q, k in ((3.0, -1.0), (-2.0, 0.5)):
        q, k = np.full((1, 1, 1), q), np.full((41, 1, 1), k)
        row = scores('pope', delta, q, k, [20], np.arange(41))[0, 0]
        # cos((s - 20) - 2) = 1 at s = 22, and again every 2 pi.
        assert row[16:26].argmax() == 6


def test_initial_phases():
    dims = Dims(128, 2, 64, 3)
    zero = parse('pope').init(jax.random.key(0), dims)['phase']
    np.testing.assert_array_equal(zero, np.zeros((3, 2, 64)))
    uniform = parse("pope(phases='uniform')").init(jax.random.key(0), dims)['phase']
    assert uniform.shape == (3, 2, 64)
    assert -2 * np.pi <= uniform.min() < -6 and -0.3 < uniform.max() <= 0
    assert float(uniform.mean()) == pytest.approx(-np.pi, abs=0.3)


def test_phases_at_zero_get_a_gradient():
    x, y = jax.random.normal(jax.random.key(0), (2, 1, 4, 2, 8))
    ctx = context(np.arange(4))

    def total(phase):
        q, k = parse('pope').qk({'phase': phase}, x, y, ctx)
        return (parse('none').scores({}, q, k, ctx)[:, :, -1] ** 2).sum()

    assert (np.abs(jax.grad(total)(jnp.zeros((1, 2, 8)))) > 1e-5).all()


def test_a_base_without_a_meaning_is_refused():
    with pytest.raises(ValueError, match='theta=-1.0 should be positive'):
        parse('pope(theta=-1)')
