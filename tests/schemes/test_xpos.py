"""xPos against the paper's scaled vectors in float64, whose range is wide enough for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import Dims, parse
from posjax.schemes.xpos import decayed_scores, log_decay
from tests.cases import context

EXAMPLES = ['xpos', 'xpos(theta=30.0, scale_base=8.0, gamma=1.0)']


def scaled_and_turned(x, position, sign, theta=1e4, scale_base=512.0, gamma=0.4):
    """The paper's vector of one token: each pair turned, times zeta^(sign position / B)."""
    out = np.empty(len(x))
    half = len(x) // 2
    for i in range(half):
        zeta = (i / half + gamma) / (1 + gamma)
        z = complex(x[2 * i], x[2 * i + 1]) * np.exp(1j * position * theta ** (-i / half))
        z *= zeta ** (sign * position / scale_base)
        out[2 * i : 2 * i + 2] = z.real, z.imag
    return out


def paper_scores(q_QHK, k_SHK, q_pos, k_pos, **fields):
    out = np.empty((q_QHK.shape[1], len(q_pos), len(k_pos)))
    for h in range(out.shape[0]):
        for i, q_at in enumerate(q_pos):
            for j, k_at in enumerate(k_pos):
                q = scaled_and_turned(q_QHK[i, h], q_at, +1, **fields)
                k = scaled_and_turned(k_SHK[j, h], k_at, -1, **fields)
                out[h, i, j] = q @ k / np.sqrt(len(q))
    return out


def our_scores(scheme, q, k, q_pos, k_pos):
    ctx = context(q_pos, k_pos, head_dim=q.shape[-1])
    return scheme.scores({}, jnp.float32(q)[None], jnp.float32(k)[None], ctx)[0]


@pytest.mark.parametrize('dim', [2, 6, 64])
@pytest.mark.parametrize('fields', [{}, {'theta': 30.0, 'scale_base': 64.0, 'gamma': 1.0}])
def test_golden(dim, fields):
    rng = np.random.default_rng(dim)
    q, k = rng.normal(size=(4, 3, dim)), rng.normal(size=(5, 3, dim))
    q_pos, k_pos = np.array([0, 7, 100, 1000]), np.array([0, 1, 7, 99, 1000])
    expected = paper_scores(q, k, q_pos, k_pos, **fields)
    assert expected.dtype == np.float64
    words = ', '.join(f'{n}={v}' for n, v in fields.items())
    got = our_scores(parse(f'xpos({words})'), q, k, q_pos, k_pos)
    assert got.dtype == jnp.float32
    # Keys ahead are up to 3.5^(1000/64) too large, so the bound is relative to them; float32 rounds
    # angles of 1,000 radians by up to 1e-4.
    reach = np.maximum(k_pos[None] - q_pos[:, None], 0) / fields.get('scale_base', 512)
    growth = ((1 + fields.get('gamma', 0.4)) / fields.get('gamma', 0.4)) ** reach
    assert (np.abs(got - expected) < 1e-3 * growth).all()


def test_golden_near_a_hundred_thousand():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 2, 64)), rng.normal(size=(6, 2, 64))
    q_pos = np.array([100_000, 100_001])
    k_pos = np.array([0, 40_000, 98_000, 99_500, 99_999, 100_000])
    got = our_scores(parse('xpos'), q, k, q_pos, k_pos)
    expected = paper_scores(q, k, q_pos, k_pos)
    # Angles of 100,000 radians are off by up to 0.01 in float32 (as in RoPE); decay is exact.
    np.testing.assert_allclose(got, expected, atol=0.05)
    assert np.abs(expected[:, :, 3:]).max() > 0.3, 'near tokens should count'
    assert np.abs(got[:, :, 0]).max() < 0.01, 'far tokens should fade'


@pytest.mark.parametrize('position', [1, 600, 4600, 36_000, 100_000, 1_000_000])
def test_one_token_back_is_the_same_number_anywhere(position):
    # One pair of frequency 1, whose angles are integers: only the decay could go wrong.
    scheme = parse('xpos(scale_base=64)')
    one = np.array([[[1.0, 0.0]]])
    score = float(our_scores(scheme, one, one, [position], [position - 1])[0, 0, 0]) * np.sqrt(2)
    zeta = 0.980616  # (0.4 / 1.4) ^ (1/64)
    assert score == pytest.approx(np.cos(1) * zeta, abs=2e-5)


def test_factors_by_hand():
    decay = np.exp(np.float64(log_decay(8, 1.0, 0.4)))
    np.testing.assert_allclose(decay, [0.4 / 1.4, 0.65 / 1.4, 0.9 / 1.4, 1.15 / 1.4], rtol=1e-6)


def test_nothing_overflows_over_a_hundred_thousand_tokens():
    scheme, pos = parse('xpos'), np.array([0, 1, 50_000, 99_999, 100_000])
    q = jax.random.normal(jax.random.key(0), (1, 5, 2, 8))

    def loss(s, q, k):
        out, _ = attend(s, {}, q, k, q, context(pos))
        return (out**2).sum()

    value, grads = jax.value_and_grad(loss, (0, 1, 2))(jax.tree.map(jnp.float32, scheme), q, q)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in jax.tree.leaves(grads))


def test_a_decode_step_and_a_block_are_rows_of_the_whole():
    rng = np.random.default_rng(0)
    x, pos = rng.normal(size=(6, 2, 8)), 100_000 + np.arange(6)
    whole = our_scores(parse('xpos'), x, x, pos, pos)
    for rows in (slice(5, 6), slice(2, 4)):
        part = our_scores(parse('xpos'), x[rows], x, pos[rows], pos)
        np.testing.assert_allclose(part, whole[:, rows], atol=1e-6)


def test_without_decay_it_is_rope():
    x = jnp.float32(np.random.default_rng(0).normal(size=(2, 5, 3, 8)))
    ctx = context(np.arange(5))
    got = decayed_scores(x, x, jnp.zeros((1, 1, 5, 5)), jnp.zeros(4)) * ctx.scale
    np.testing.assert_allclose(got, parse('none').scores({}, x, x, ctx), atol=1e-5)


def test_values_without_a_meaning_are_refused():
    for field in ('theta', 'scale_base', 'gamma'):
        with pytest.raises(ValueError, match=f'{field}=0.0 should be positive'):
            parse(f'xpos({field}=0)')
    with pytest.raises(ValueError, match='head_dim=65 .width 65 / heads 1. should be even'):
        parse('xpos').check_fit(Dims(65, 1, 65, 2), range(32))
