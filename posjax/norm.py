"""Layer norm without its scale and bias."""

import jax
import jax.numpy as jnp

_EPSILON = 1e-5  # as PyTorch's


@jax.custom_vjp
def standardised(x: jax.Array) -> jax.Array:
    """(x - mean) / sqrt(variance + 1e-5) over the last dimension.

    The gradient is written out: what differentiation makes of mean and variance goes over `x` more
    often, which takes a thirtieth of a training step on CPUs.
    """
    return _forward(x)[0]


def _forward(x):
    mean = x.mean(axis=-1, keepdims=True)
    # In one pass. It can come out below zero, by rounding.
    variance = jnp.maximum((x * x).mean(axis=-1, keepdims=True) - mean * mean, 0)
    inverse = jax.lax.rsqrt(variance + _EPSILON)
    y = (x - mean) * inverse
    return y, (y, inverse)


def _backward(saved, dy):
    y, inverse = saved
    along = (dy * y).mean(axis=-1, keepdims=True)
    return (inverse * (dy - dy.mean(axis=-1, keepdims=True) - y * along),)


standardised.defvjp(_forward, _backward)
