"""FIRE against the paper's formula, and against the known way to get it wrong."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from posjax.schemes.fire import interpolated
from tests.cases import context

# Thresholds within the few positions of the laws: far ones normalise all queries alike. Widths
# whose random draws leave c away from 0, where its gradient is a small difference of large numbers.
EXAMPLES = ['fire(hidden=12, threshold=3.0)', 'fire(hidden=24, threshold=4.0, shared=True)']


def psi(x, c):
    return math.log(c * x + 1)


def paper(pos, c, threshold, w_in, b_in, w_out):
    """b(i, j) = f(psi(i - j) / psi(max(L, i))), one pair and one hidden unit at a time."""
    heads = w_out.shape[1]
    out = np.zeros((1, heads, len(pos), len(pos)))
    for a, i in enumerate(pos):
        for b, j in enumerate(pos):
            x = psi(abs(i - j), c) / psi(max(threshold, i), c)
            for unit in range(len(w_in)):
                out[0, :, a, b] += max(0.0, x * w_in[unit] + b_in[unit]) * w_out[unit]
    return out


@pytest.mark.parametrize('layer', [0, 1, 2])
@pytest.mark.parametrize('heads', [1, 3])
@pytest.mark.parametrize('pos', [[0], [0, 1, 2, 3, 4, 5, 6], [0, 5, 99_991, 100_000]])
def test_golden(pos, heads, layer):
    rng = np.random.default_rng(layer)
    c, factor = rng.normal(size=(2, 3))
    w_in, b_in, w_out = (
        rng.normal(size=(3, 7)),
        rng.normal(size=(3, 7)),
        rng.normal(size=(3, 7, heads)),
    )
    params = {'c': c, 'threshold_factor': factor, 'w_in': w_in, 'b_in': b_in, 'w_out': w_out}
    q = jnp.zeros((1, len(pos), heads, 4))
    ctx = context(pos)._replace(layer=layer)
    got = parse('fire(hidden=7, threshold=4.0)').bias(jax.tree.map(jnp.float32, params), q, q, ctx)
    expected = paper(
        pos, abs(c[layer]), 4 * abs(factor[layer]), w_in[layer], b_in[layer], w_out[layer]
    )
    assert expected.dtype == np.float64 and got.dtype == jnp.float32
    # Seven hidden units of either sign: rounding is that of the largest.
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * max(1.0, np.abs(expected).max()))


def test_fractions_by_hand():
    i, d = jnp.float32([2, 7, 7, 0]), jnp.float32([1, 7, 3, 0])
    got = interpolated(d, i, 1.0, 4.0)
    np.testing.assert_allclose(got, [0.430677, 1, 0.666667, 0], atol=1e-6)


def test_the_normaliser_is_the_larger_of_threshold_and_position():
    i = np.arange(40)[:, None]
    d = np.maximum(i - np.arange(40)[None], 0)
    got = np.asarray(interpolated(jnp.float32(d), jnp.float32(i), 0.5, 8.0))
    assert got.min() == 0 and got.max() < 1 + 1e-6
    # Before the threshold the first key is nearer than 1, past it at 1. Clamping the position from
    # above, as one published code does, gives 1 and then more than 1.
    first = got[:, 0]
    assert (first[:8] < 0.96).all() and (np.diff(first[:9]) > 0).all()
    np.testing.assert_allclose(first[8:], 1, atol=1e-5)
    wrong = np.log1p(0.5 * d[:, 0]) / np.log1p(0.5 * np.minimum(8, np.maximum(i[:, 0], 1e-9)))
    assert wrong[20] > 1.4 and wrong[3] == pytest.approx(1)


def test_finite_at_position_zero_whatever_was_learned():
    for c, threshold in ((0.0, 4.0), (0.0, 0.0), (1.0, 0.0), (-2.0, 4.0)):
        value, grads = jax.value_and_grad(interpolated, argnums=(0, 2, 3))(0.0, 0.0, c, threshold)
        assert value == 0 and np.isfinite(grads).all()


def test_layers_have_their_own_parameters_or_share_them():
    dims = Dims(8, 2, 4, 3)
    own, shared = (parse(t).init(jax.random.key(0), dims) for t in ('fire', 'fire(shared=True)'))
    assert {n: p.shape for n, p in own.items()} == {
        'c': (3,), 'threshold_factor': (3,), 'w_in': (3, 32), 'b_in': (3, 32), 'w_out': (3, 32, 2)
    }  # fmt: skip
    assert all(p.shape == (1, *own[n].shape[1:]) for n, p in shared.items())
    assert np.abs(own['w_in'][0] - own['w_in'][1]).max() > 0.1
    ctx, q = context(np.arange(6)), jnp.zeros((1, 6, 2, 4))
    for text, params, same in (('fire', own, False), ('fire(shared=True)', shared, True)):
        biases = [parse(text).bias(params, q, q, ctx._replace(layer=n)) for n in (0, 2)]
        assert bool(np.allclose(*biases)) == same


def test_starts_as_the_listing_does():
    params = parse('fire(hidden=4000)').init(jax.random.key(0), Dims(8, 2, 4, 1))
    assert float(params['c'][0]) == pytest.approx(0.1) and float(params['threshold_factor'][0]) == 1
    for name, bound in (('w_in', 1), ('b_in', 1), ('w_out', 4000**-0.5)):
        values = np.asarray(params[name])
        assert 0.99 * bound < np.abs(values).max() <= bound
        assert values.std() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_settings_without_a_meaning_are_refused():
    with pytest.raises(ValueError, match='hidden=0 should be at least 1'):
        parse('fire(hidden=0)')
    with pytest.raises(ValueError, match='threshold=0.0 should be positive'):
        parse('fire(threshold=0)')
