"""Rotary position embedding, and the pure functions that its relatives share."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from posjax.scaling import Scaling, unscaled
from posjax.scaling.scaling import inv_freq as inv_freq
from posjax.scheme import Dims, Scheme, scheme


def angles(pos, inv_freq):
    """Positions times frequencies, (..., F), in float32 whatever `pos` is.

    Args:
      pos: position numbers of any shape, (B, ...) where the frequencies are (B, F).
      inv_freq: radians per position, (F,), or (B, F) for each row of positions (B may be 1).
    """
    rows, each = inv_freq.shape[:-1], (1,) * (pos.ndim + 1 - inv_freq.ndim)
    return pos.astype(jnp.float32)[..., None] * inv_freq.reshape(*rows, *each, -1)


def rotate(x_BTHK, pos_BT, inv_freq, pairing: str = 'interleaved', factor=1.0):
    """Turns each pair of the last dimension by (position x frequency); the angle is in float32.

    Args:
      x_BTHK: queries or keys.
      pos_BT: their position numbers (the leading dimension may be 1).
      inv_freq: radians per position, K/2 of them, (F,), or (B, F) for each sequence.
      pairing: which coordinates form a pair: 'interleaved' (2k, 2k+1), or 'half' (k, k + K/2).
      factor: multiplies the result (YaRN's attention_factor).

    Returns:
      An array like `x_BTHK`, of its dtype.
    """
    angle_BT1F = angles(pos_BT, inv_freq)[:, :, None, :]
    cos, sin = jnp.cos(angle_BT1F) * factor, jnp.sin(angle_BT1F) * factor
    x = x_BTHK.astype(jnp.float32)
    if pairing == 'interleaved':
        a, b = x[..., 0::2], x[..., 1::2]
        turned = jnp.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
    else:
        a, b = jnp.split(x, 2, axis=-1)
        turned = jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    return turned.astype(x_BTHK.dtype)


def half_from_interleaved(dim: int) -> np.ndarray:
    """The order that turns one pairing into the other.

    With `order = half_from_interleaved(K)`, for each head,

        rotate(x, ..., 'interleaved')[..., order] == rotate(x[..., order], ..., 'half')

    so scores agree when the rows of Wq and Wk (never Wv or Wo) are put in this order.
    `np.argsort(order)` leads back.
    """
    return np.concatenate([np.arange(0, dim, 2), np.arange(1, dim, 2)])


def wavelengths(head_dim: int, theta: float = 1e4) -> np.ndarray:
    """Positions per full turn of each pair, float64 (head_dim/2,): 2 pi theta^(2k/head_dim).

    `(wavelengths(128, 5e5) > 8192).sum()` is how many of the 64 pairs never finish a turn within
    8,192 positions, and so meet angles past that length which they never met before it.
    """
    return 2 * np.pi * np.float64(theta) ** (np.arange(0, head_dim, 2) / head_dim)


def check_pairs(scheme: Scheme, dims: Dims) -> None:
    """Raises ValueError where the coordinates of a head cannot be paired."""
    if dims.head_dim % 2:
        raise ValueError(
            f'scheme {scheme.name()} turns pairs: head_dim={dims.head_dim} (width {dims.width} / '
            f'heads {dims.heads}) should be even'
        )


def is_rotary(scheme: Scheme) -> bool:
    """Whether a scheme turns pairs, has a `scaling` for their frequencies, and learns nothing."""
    return isinstance(getattr(scheme, 'scaling', None), Scaling)


@scheme
class rope(Scheme):
    """Rotary position embedding: queries and keys turn with their position.

        (a, b)_k -> (a cos u - b sin u, a sin u + b cos u),    u = t theta^(-2k/K)

    so that q_i . k_j depends on i - j alone, and norms stay as they are.

    Fields:
      theta: base of the geometric series of wavelengths, > 0.
      pairing: which coordinates turn together. 'interleaved' pairs (2k, 2k+1), as the paper, Meta's
        Llama and GPT-J; 'half' pairs (k, k + K/2), as GPT-NeoX and transformers. The two are one
        function up to a fixed order of the rows of Wq and Wk (`half_from_interleaved`), and are not
        interchangeable on trained weights (`posjax.convert` leads from one to the other).
      scaling: of the frequencies, for texts longer than those of training.

    Past the training length angles go on; pairs slower than the training length meet new ones.
    """

    paper = 'Su et al. 2021, arXiv:2104.09864'
    relative = True
    beyond = 'defined, unseen angles'

    theta: float = 1e4
    pairing: Literal['interleaved', 'half'] = 'interleaved'
    scaling: Scaling = unscaled()

    @property
    def sees_length(self) -> bool:
        return self.scaling.sees_length

    def check(self):
        self.require('theta', self.theta > 0, 'positive')
        self.scaling.check()

    def check_fit(self, dims, numbers):
        check_pairs(self, dims)
        self.scaling.check_fit(dims.head_dim)

    def at(self, dims, length):
        return dataclasses.replace(self, scaling=self.scaling.at(self.theta, dims.head_dim, length))

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        dim = q_BQHK.shape[-1]
        freq, factor = self.scaling.frequencies(self.theta, dim, ctx.length_B)
        return (
            rotate(q_BQHK, ctx.q_pos_BQ, freq, self.pairing, factor),
            rotate(k_BSHK, ctx.k_pos_BS, freq, self.pairing, factor),
        )
