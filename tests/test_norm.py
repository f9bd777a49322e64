"""Layer norm, and its written-out gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.norm import standardised


@pytest.mark.parametrize('width', [1, 8, 64])
def test_value_and_gradient_against_float64(width):
    rng = np.random.default_rng(width)
    x, dy = 3 * rng.normal(size=(5, 7, width)) + 1, rng.normal(size=(5, 7, width))

    def right(x):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)

    y, back = jax.vjp(standardised, jnp.float32(x))
    np.testing.assert_allclose(y, right(x), atol=2e-6)
    step = 1e-5
    slopes = [
        ((right(x + step * e) - right(x - step * e)) / (2 * step) * dy).sum(axis=-1)
        for e in np.eye(width)
    ]
    # Of one number alone the norm is 0 whatever it is, up to the rounding of its mean.
    atol = 2e-5 if width > 1 else 1e-2
    np.testing.assert_allclose(back(jnp.float32(dy))[0], np.stack(slopes, axis=-1), atol=atol)


def test_equal_numbers_have_a_finite_gradient():
    y, back = jax.vjp(standardised, jnp.full((1, 4), 1e3))
    (dx,) = back(jnp.arange(4.0)[None])
    assert (y == 0).all() and jnp.isfinite(dx).all()
