"""Attention as one kernel of cuDNN's, where that is exact for the scheme.

Such a kernel never holds the scores, so a scheme can change them in two ways only: by rotating or
scaling queries and keys before their product, or by a bias that is a product itself, of a few more
columns of queries and keys (`Scheme.columns`). `model.attention = 'fused'` asks for it; whatever
has an `obstacle` is attended to in plain JAX.

The kernel multiplies in bfloat16, too coarse for position numbers. So each column is split into
three of bfloat16 that add up to it, and pairs of them that matter in float32 become columns. What
is left is float32's rounding of a number that grows with the position, where plain attention's
grows with the distance: for ALiBi m j, so 2^-9 at a slope of 1/2 and 65,536 tokens.

Shape suffixes: B batch, T tokens, H heads, K head dim, C columns.
"""

import jax
import jax.numpy as jnp

from posjax import probe
from posjax.probe import View
from posjax.scheme import Context, Dims, Params, Scheme, as_chain, hooks, operands

# What a scheme may do without an obstacle; a bias, if it comes as columns.
_FIT = {'positions', 'embed', 'qk', 'bias'}
# Head dims of the kernel: multiples of the one, up to the other (from Hopper on, twice as many).
_UNIT, _MOST = 8, 128
# Which of three pieces of a query's column meet which of a key's: the others make 2^-23 of it.
_PAIRS = [(a, b) for a in range(3) for b in range(3) if a + b <= 2]


def available() -> bool:
    """Whether this machine has the kernel: a GPU with CUDA, Ampere or later."""
    device = jax.local_devices()[0]
    cuda = 'cuda' in device.client.platform_version
    return cuda and float(device.compute_capability) >= 8


def obstacle(scheme: Scheme, dims: Dims, dtype: str) -> str | None:
    """Why attention under a scheme cannot be fused, whatever the machine; None if it can.

    Args:
      dtype: of what the model multiplies.
    """
    parts = as_chain(scheme).parts
    biased = [part for part in parts if 'bias' in hooks(type(part))]
    for part in parts:
        if others := sorted(set(hooks(type(part))) - _FIT):
            return f'{part.name()} has a hook of its own for {" and ".join(others)}'
    for part in biased:
        if type(part).columns is Scheme.columns:
            return f'the bias of {part.name()} is no product of columns'
        if not dims.causal:
            return f'the bias of {part.name()} is a product of columns under causal attention alone'
        if any('positions' in hooks(type(other)) for other in parts):
            return f'the bias of {part.name()} is a product of columns of rising positions alone'
    if dtype != 'bfloat16':
        return f"model.dtype is {dtype}, and cuDNN's kernel is of bfloat16"
    if (width := _width(scheme, dims)) > _MOST:
        return f'{width} dims a head are more than {_MOST}'
    return None


def _width(scheme, dims) -> int:
    """Dims a head that the kernel multiplies, columns included."""
    whole = as_chain(scheme)

    def rows(key):
        params, ctx = whole.init(key, dims), probe.context(whole, dims, View(2, (0, 1)))
        x_BTHK = jnp.zeros((1, 2, dims.heads, dims.head_dim))
        return whole.qk(params, x_BTHK, x_BTHK, ctx)[0], whole.columns(params, ctx)

    q_BTHK, columns = jax.eval_shape(rows, jax.random.key(0))
    return q_BTHK.shape[-1] + (0 if columns is None else len(_PAIRS) * columns[0].shape[-1])


def attend(
    scheme: Scheme, params: Params, q_BTHK, k_BTHK, v_BTHK, ctx: Context, implementation: str
) -> jax.Array:
    """The mixture of values (B, T, H, K) in float32, of queries and keys of the same tokens, which
    padding may only follow, under causal attention.

    Args:
      implementation: of `jax.nn.dot_product_attention`.
    """
    q_BTHK, k_BTHK = operands(*scheme.qk(params, q_BTHK, k_BTHK, ctx), ctx)
    columns = scheme.columns(params, ctx)
    if columns is not None:
        # The kernel scales columns like all else.
        q_BTHC, k_BTHC = _pieces(columns[0] / ctx.scale), _pieces(columns[1])
        q_BTHK = _joined(q_BTHK, [q_BTHC[a] for a, _ in _PAIRS])
        k_BTHK = _joined(k_BTHK, [k_BTHC[b] for _, b in _PAIRS])
    dims = max(q_BTHK.shape[-1], v_BTHK.shape[-1])
    rows = [_filled(x, -(-dims // _UNIT) * _UNIT) for x in (q_BTHK, k_BTHK, v_BTHK)]
    out = jax.nn.dot_product_attention(
        *rows, scale=ctx.scale, is_causal=ctx.causal, implementation=implementation
    )
    return out[..., : v_BTHK.shape[-1]].astype(jnp.float32)


def _pieces(x) -> list[jax.Array]:
    """Three arrays whose sum is `x` and whose numbers are exact in bfloat16."""
    found, rest = [], x.astype(jnp.float32)
    for _ in range(3):
        # XLA would take a cast there and back for nothing.
        found.append(jax.lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7))
        rest = rest - found[-1]
    return found


def _joined(x_BTHK, columns):
    rows = [jnp.broadcast_to(c, (*x_BTHK.shape[:-1], c.shape[-1])) for c in columns]
    return jnp.concatenate([x_BTHK, *(row.astype(x_BTHK.dtype) for row in rows)], axis=-1)


def _filled(x, dims):
    return jnp.pad(x, (*[(0, 0)] * (x.ndim - 1), (0, dims - x.shape[-1])))
