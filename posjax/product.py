"""x W, with gradients in an order that CPUs are quick at.

XLA on CPUs transposes the operand of a weight gradient by strided copies, which can cost more than
the product itself, and multiplies bfloat16 in the matrix units (AMX) only where operands need no
transposing and the result is float32. Both can be had by choosing the order of products; on
accelerators nothing is to be gained, and the plain product is taken. `benchmarks/products.py`
measures it.

Shape suffixes: N rows, I inputs, O outputs.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x_NI: jax.Array, w_IO: jax.Array, precision: str) -> jax.Array:
    """x W in float32 (N, O); operands are multiplied in the dtype of `x_NI`."""
    return _dot(x_NI, w_IO.astype(x_NI.dtype), precision)


def _forward(x_NI, w_IO, precision):
    return product(x_NI, w_IO, precision), (x_NI, w_IO)


def _backward(precision, saved, dy_NO):
    x_NI, w_IO = saved
    dy_NO = dy_NO.astype(x_NI.dtype)
    dx_NI = _dot(dy_NO, w_IO.astype(x_NI.dtype).T, precision).astype(x_NI.dtype)
    dw_IO = jax.lax.platform_dependent(
        x_NI,
        dy_NO,
        cpu=functools.partial(_weight_gradient_on_cpu, precision=precision),
        default=lambda x_NI, dy_NO: _dot(x_NI.T, dy_NO, precision),
    )
    return dx_NI, dw_IO.astype(w_IO.dtype)


product.defvjp(_forward, _backward)


def _weight_gradient_on_cpu(x_NI, dy_NO, precision):
    """x^T dy, in float32, with the narrower operand as the transposed one."""
    if dy_NO.shape[1] < x_NI.shape[1]:
        return _kept(_transposed_product(dy_NO, x_NI, precision)).T
    return _transposed_product(x_NI, dy_NO, precision)


def _transposed_product(a_NA, b_NB, precision):
    """a^T b. In bfloat16 the transpose is a product with the identity, itself in matrix units."""
    if a_NA.dtype == jnp.float32:
        return _dot(a_NA.T, b_NB, precision)
    identity = jnp.eye(a_NA.shape[1], dtype=a_NA.dtype)
    a_AN = _kept(_dot(identity, a_NA.T, precision).astype(a_NA.dtype))
    return _dot(a_AN, b_NB, precision)


def _kept(x):
    """Keeps XLA from folding a transpose into the product that made it."""
    return jax.lax.optimization_barrier(x)


def _dot(a, b, precision):
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)
