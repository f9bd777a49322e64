"""Weights of queries and keys between the two pairings of rotary dims.

'interleaved' turns coordinates (2k, 2k+1) together, 'half' (k, k + r/2). Weights trained with one
are wrong with the other, without any error. Put in another order, they give the same scores:

    half = query_key(kernel, head_dim, 'half')
    params = parameters(params, model, 'half')      of a posjax model; then rope(pairing='half')

Values and the output projection stay as they are.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from posjax.model import Model
from posjax.schemes.rope import half_from_interleaved

Pairing = Literal['interleaved', 'half']


def query_key(
    weights, head_dim: int, to: Pairing, *, rotary_dim: int | None = None, axis: int = -1
):
    """A kernel or bias of queries, or of keys, for the other pairing.

    Args:
      weights: an array with all heads along one axis, heads x head_dim; grouped-query keys have
        fewer heads than queries, and are converted by themselves.
      head_dim: dims of one head.
      to: the pairing it will be used with; it is in the other.
      rotary_dim: how many of a head's first dims turn (`partial_rope`); all by default.
      axis: of the heads: the last for kernels (in, out) and biases, the first for PyTorch's
        (out, in).

    Returns:
      The array in its new order.

    Raises:
      ValueError: an axis that is not whole heads, or a pairing that is none.
    """
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    size = weights.shape[axis]
    if size % head_dim:
        raise ValueError(f'axis {axis} has {size} entries, which is not a whole number of heads of '
                         f'head_dim={head_dim}; check both')  # fmt: skip
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ValueError(
            f'rotary_dim={rotary_dim} should be even, and from 2 to head_dim={head_dim}'
        )
    if to not in ('interleaved', 'half'):
        raise ValueError(f"to={to!r} should be 'interleaved' or 'half'")
    order = half_from_interleaved(rotary_dim)
    if to == 'interleaved':
        order = np.argsort(order)
    of_head = np.concatenate([order, np.arange(rotary_dim, head_dim)])
    starts = np.arange(0, size, head_dim)
    return jnp.take(weights, (starts[:, None] + of_head[None]).reshape(-1), axis=axis)


def parameters(params, model: Model, to: Pairing, *, rotary_dim: int | None = None):
    """A posjax model's parameters for the other pairing; only queries and keys change.

    Args:
      params: from `posjax.init`, or a trained run's.
      model, to, rotary_dim: as `query_key`.
    """

    def convert(path, leaf):
        if 'qkv' not in [getattr(key, 'key', None) for key in path]:
            return leaf
        q, k, v = jnp.split(leaf, 3, axis=-1)
        q, k = (query_key(x, model.dims.head_dim, to, rotary_dim=rotary_dim) for x in (q, k))
        return jnp.concatenate([q, k, v], axis=-1)

    return params | {'net': jax.tree_util.tree_map_with_path(convert, params['net'])}
