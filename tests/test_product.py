"""x W, and its gradients in whichever order they are taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.product import product

RNG = np.random.default_rng(0)


@pytest.mark.parametrize('inputs, outputs', [(5, 5), (3, 8), (8, 3), (1, 4)])
@pytest.mark.parametrize('dtype, rounding', [('float32', 2e-6), ('bfloat16', 2e-2)])
def test_value_and_gradients_against_float64(inputs, outputs, dtype, rounding):
    x, w, dy = (RNG.normal(size=shape) for shape in ((7, inputs), (inputs, outputs), (7, outputs)))

    @jax.jit  # whole, as in a training step: what XLA folds together, it must also be able to run
    def value_and_gradients(x, w, dy):
        y, back = jax.vjp(lambda x, w: product(x, w, dtype, 'highest'), x, w)
        return y, *back(dy)

    y, dx, dw = value_and_gradients(*map(jnp.float32, (x, w, dy)))
    assert (y.dtype, dx.dtype, dw.dtype) == (jnp.float32,) * 3
    for got, right in ((y, x @ w), (dx, dy @ w.T), (dw, x.T @ dy)):
        got = np.asarray(got, np.float64)
        np.testing.assert_allclose(got, right, atol=rounding * np.abs(right).max())


def test_a_batch_of_products_is_each_alone():
    x, w = jnp.float32(RNG.normal(size=(3, 7, 5))), jnp.float32(RNG.normal(size=(3, 5, 2)))

    def loss(x, w):
        return (product(x, w, 'float32', 'highest') ** 2).sum()

    together = jax.jit(jax.vmap(jax.grad(loss, (0, 1))))(x, w)
    for i in range(3):
        alone = jax.grad(loss, (0, 1))(x[i], w[i])
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-5)
