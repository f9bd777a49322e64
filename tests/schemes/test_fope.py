"""FoPE's series against the paper's equation 13, term by term."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from posjax.schemes.fope import waves
from posjax.schemes.rope import inv_freq
from tests.cases import context

EXAMPLES = ['fope(train_length=64)', 'fope(train_length=20, theta=50.0, learned=True)']
# Only a length on the other side of some wavelength changes anything.
OTHER = {'train_length': [10, 640]}


def series(t, m, h, freqs, train_length, cos_coef, sin_coef):
    """The real and imaginary part that pair m of head h meets at position t."""
    floor = 2 * np.pi / train_length
    if freqs[m] < floor:
        return 1.0, 0.0
    real, imaginary = np.cos(freqs[m] * t), np.sin(freqs[m] * t)
    for n, freq in enumerate(freqs):
        if freq >= floor:
            real += cos_coef[h, n, m] * np.cos(freq * t)
            imaginary += sin_coef[h, n, m] * np.sin(freq * t)
    return real, imaginary


def expected_vectors(x_THK, pos, train_length, theta, cos_coef, sin_coef):
    tokens, heads, dim = x_THK.shape
    freqs = [theta ** (-2 * m / dim) for m in range(dim // 2)]
    out = np.empty((tokens, heads, dim))
    for t in range(tokens):
        for h in range(heads):
            for m in range(dim // 2):
                c, s = series(pos[t], m, h, freqs, train_length, cos_coef, sin_coef)
                a, b = x_THK[t, h, 2 * m : 2 * m + 2]
                out[t, h, 2 * m], out[t, h, 2 * m + 1] = a * c - b * s, a * s + b * c
    return out


def coefficients(seed, layer, heads, pairs, sigma):
    both = np.random.RandomState([seed, layer]).normal(size=(2, heads, pairs, pairs))
    return sigma * both


@pytest.mark.parametrize('dim', [2, 6, 16])
@pytest.mark.parametrize(('train_length', 'theta'), [(7, 1e4), (64, 1e4), (640, 30.0), (8192, 1e6)])
def test_golden(dim, train_length, theta):
    x = np.random.default_rng(dim).normal(size=(5, 3, dim))
    pos = np.array([0, 1, 7, 128, 1000])
    scheme = parse(f'fope(train_length={train_length}, theta={theta}, sigma=0.2, seed=5)')
    for layer in (0, 1):
        ctx = context(pos)._replace(layer=layer)
        q, k = scheme.qk({}, jnp.float32(x)[None], jnp.float32(-x)[None], ctx)
        mix = coefficients(5, layer, 3, dim // 2, 0.2)
        expected = expected_vectors(x, pos, train_length, theta, *mix)
        assert expected.dtype == np.float64
        # float32 rounds angles of up to 1,000 radians by up to 1e-4, in each of dim/2 waves.
        np.testing.assert_allclose(q[0], expected, atol=1e-3)
        np.testing.assert_allclose(k[0], -expected, atol=1e-3)


def test_golden_near_a_hundred_thousand():
    x, pos = np.random.default_rng(0).normal(size=(3, 2, 16)), [99_999, 100_000, 100_001]
    x_BTHK = jnp.float32(x)[None]
    q, _ = parse('fope(train_length=512)').qk({}, x_BTHK, x_BTHK, context(pos))
    expected = expected_vectors(x, pos, 512, 1e4, *coefficients(0, 0, 2, 8, 0.3))
    # Angles of 100,000 radians are off by up to 0.02 in float32.
    np.testing.assert_allclose(q[0], expected, atol=0.1)


def test_golden_learned_coefficients_add_to_the_drawn_ones():
    x, pos = np.random.default_rng(0).normal(size=(3, 2, 8)), [0, 3, 9]
    learned = 0.1 * np.random.default_rng(1).normal(size=(1, 2, 2, 4, 4))
    scheme = parse('fope(train_length=64, learned=True)')
    params = {'mixture': jnp.float32(learned)}
    q, _ = scheme.qk(params, jnp.float32(x)[None], jnp.float32(x)[None], context(pos))
    mix = coefficients(0, 0, 2, 4, 0.3) + learned[0]
    np.testing.assert_allclose(q[0], expected_vectors(x, pos, 64, 1e4, *mix), atol=1e-5)


@pytest.mark.parametrize('train_length', [7, 62, 63, 628, 629])
def test_a_pair_turns_when_its_wavelength_fits_into_training(train_length):
    # Wavelengths of a head of 8: 2 pi times 1, 10, 100, 1000 = 6.28, 62.8, 628.3, 6283.
    cos, sin = waves(
        jnp.asarray([[5]]), inv_freq(1e4, 8), 2 * np.pi / train_length, jnp.zeros((2, 1, 4, 4))
    )
    turning = (train_length > 6.28, train_length > 62.8, train_length > 628.3, False)
    np.testing.assert_array_equal(sin[0, 0, 0] != 0, turning)
    np.testing.assert_array_equal(cos[0, 0, 0] != 1, turning)


def test_angles_are_float32_whatever_the_dtype():
    x, ctx = jnp.ones((1, 2, 1, 8)), context([1, 257])
    scheme = parse('fope(train_length=64)')
    full, half = (scheme.qk({}, y, y, ctx)[0] for y in (x, x.astype(jnp.bfloat16)))
    assert half.dtype == jnp.bfloat16
    # Only the result is rounded, to 8 bits; position 257 itself would not survive that.
    np.testing.assert_allclose(half.astype(jnp.float32), full, rtol=2**-8, atol=1e-6)


def test_without_a_mixture_it_is_p_rope():
    x = jax.random.normal(jax.random.key(0), (1, 9, 2, 8))
    ctx = context(np.arange(9))
    ours = parse('fope(train_length=64, sigma=0)').qk({}, x, x, ctx)
    np.testing.assert_allclose(ours, parse('p_rope(rotary_dim=4)').qk({}, x, x, ctx), atol=1e-6)


def test_drawn_coefficients():
    # The numbers themselves: a trained run depends on them for good.
    first = coefficients(seed=3, layer=1, heads=1, pairs=3, sigma=1.0)[0, 0, 0]
    np.testing.assert_allclose(first, [1.79195419, 1.43701953, 0.89842689], atol=1e-8)
    x, ctx = jnp.ones((1, 3, 2, 8)), context([0, 1, 2])
    one = parse('fope(train_length=64)').qk({}, x, x, ctx)[0]
    deeper = parse('fope(train_length=64)').qk({}, x, x, ctx._replace(layer=1))[0]
    other = parse('fope(train_length=64, seed=1)').qk({}, x, x, ctx)[0]
    assert np.abs(one - deeper).max() > 0.1 and np.abs(one - other).max() > 0.1
    assert np.abs(one[:, :, 0] - one[:, :, 1]).max() > 0.1, 'heads differ'


def test_values_without_a_meaning_are_refused():
    for words, message in (
        ('train_length=6', 'train_length=6 should be at least 7'),
        ('train_length=8, theta=0', 'theta=0.0 should be positive'),
        ('train_length=8, sigma=1', 'sigma=1.0 should be at least 0 and below 1'),
        ('train_length=8, seed=-1', 'seed=-1 should be at least 0'),
    ):
        with pytest.raises(ValueError, match=message):
            parse(f'fope({words})')
    with pytest.raises(ValueError, match='head_dim=65 .width 65 / heads 1. should be even'):
        parse('fope(train_length=8)').check_fit(Dims(65, 1, 65, 2), range(32))
