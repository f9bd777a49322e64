"""x W, with gradients in an order that CPUs are quick at.

XLA on CPUs has fast products only of operands that lie in memory as they are multiplied, and for
bfloat16 none but these: it turns others to float32 and leaves the matrix units (AMX) idle. A
gradient's products have a transposed operand; here it is transposed in memory first, which costs
less. On accelerators nothing is to be gained, and the plain product is taken.
`benchmarks/products.py` measures it.

Shape suffixes: N rows, I inputs, O outputs.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(x_NI: jax.Array, w_IO: jax.Array, dtype: str, precision: str) -> jax.Array:
    """x W (N, O) and its gradients, in float32; float32 operands are multiplied in `dtype`."""
    return _dot(x_NI.astype(dtype), w_IO.astype(dtype), precision)


def _forward(x_NI, w_IO, dtype, precision):
    return product(x_NI, w_IO, dtype, precision), (x_NI.astype(dtype), w_IO)


def _backward(dtype, precision, saved, dy_NO):
    x_NI, w_IO = saved
    dy_NO = dy_NO.astype(dtype)
    dx_NI = _dot(dy_NO, _transposed(w_IO.astype(dtype)), precision)
    if dy_NO.shape[1] < x_NI.shape[1]:  # the narrower operand is the cheaper one to transpose
        return dx_NI, _kept(_dot(_transposed(dy_NO), x_NI, precision)).T
    return dx_NI, _dot(_transposed(x_NI), dy_NO, precision)


product.defvjp(_forward, _backward)


def _transposed(a_AB):
    """a^T; on CPUs in memory.

    It is made flat in between because a transposed array, until its layout is decided, counts as a
    view, and a product with a view as one that is not fast.
    """
    if jax.default_backend() != 'cpu':
        return a_AB.T
    return _kept(a_AB.T.reshape(-1)).reshape(a_AB.shape[::-1])


def _kept(x):
    """Keeps XLA from folding a transpose into the product before or after it: one in bfloat16 that
    was taken for fast, and then is not, cannot be run at all."""
    return jax.lax.optimization_barrier(x)


def _dot(a, b, precision):
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)
