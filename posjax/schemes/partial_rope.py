"""Rotations that leave a part of every head unturned: the two meanings of partial rotary."""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from posjax.scaling import Scaling, unscaled
from posjax.scheme import Scheme, scheme
from posjax.schemes.rope import check_pairs, rotate


def proportional(inv_freq, rotary_dim: int):
    """Frequencies of a whole head (..., dim/2), with 0 after the rotary_dim/2 highest."""
    return inv_freq.at[..., rotary_dim // 2 :].set(0.0)


def _check(scheme):
    even = scheme.rotary_dim >= 2 and scheme.rotary_dim % 2 == 0
    what = 'even and at least 2 (pairs turn; for none use the scheme none)'
    scheme.require('rotary_dim', even, what)
    scheme.require('theta', scheme.theta > 0, 'positive')
    scheme.scaling.check()


def _check_fit(scheme, dims):
    if scheme.rotary_dim > dims.head_dim:
        raise ValueError(
            f'scheme {scheme.text} turns {scheme.rotary_dim} dims of a head that has '
            f'head_dim={dims.head_dim} (width {dims.width} / heads {dims.heads}); turn fewer'
        )


@scheme
class partial_rope(Scheme):
    """RoPE on the first rotary_dim dims of every head: a small RoPE beside a NoPE.

        [x_1 | x_2] -> [R(t) x_1 | x_2],    R(t) turns pair k of x_1 by t theta^(-2k/r)

    with r = rotary_dim: the rotated part has the whole range of wavelengths, 1 to theta. This is
    'partial rotary' in GPT-J and GPT-NeoX; `p_rope` is the other scheme of that name.

    Fields:
      rotary_dim: how many dims of a head turn, even, 2 to head_dim. A number and not a fraction:
        GPT-NeoX's int(0.25 x head_dim) may be odd, and which dims turn is structure.
      theta: base of the geometric series of wavelengths, > 0.
      pairing: which of the first rotary_dim coordinates turn together. 'interleaved' pairs
        (2k, 2k+1), as GPT-J; 'half' pairs (k, k + rotary_dim/2), as GPT-NeoX and transformers.
      scaling: of the rotary_dim/2 frequencies, for texts longer than those of training.

    Past the training length angles go on as in RoPE; the unturned dims notice nothing.
    """

    paper = 'Wang & Komatsuzaki 2021 (GPT-J); Black et al. 2022, arXiv:2204.06745 (GPT-NeoX)'
    relative = True
    beyond = 'defined, unseen angles in a part'

    rotary_dim: int
    theta: float = 1e4
    pairing: Literal['interleaved', 'half'] = 'interleaved'
    scaling: Scaling = unscaled()

    @property
    def sees_length(self) -> bool:
        return self.scaling.sees_length

    def check(self):
        _check(self)

    def check_fit(self, dims, numbers):
        _check_fit(self, dims)
        self.scaling.check_fit(self.rotary_dim)

    def at(self, dims, length):
        return dataclasses.replace(
            self, scaling=self.scaling.at(self.theta, self.rotary_dim, length)
        )

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        r = self.rotary_dim
        freq, factor = self.scaling.frequencies(self.theta, r, ctx.length_B)

        def turn(x_BTHK, pos_BT):
            turned = rotate(x_BTHK[..., :r], pos_BT, freq, self.pairing, factor)
            return jnp.concatenate([turned, x_BTHK[..., r:]], axis=-1)

        return turn(q_BQHK, ctx.q_pos_BQ), turn(k_BSHK, ctx.k_pos_BS)


@scheme
class p_rope(Scheme):
    """RoPE whose lowest frequencies are 0: its slow pairs, which carry content, do not turn.

        u_k = t theta^(-2k/K) for k < rotary_dim/2,    u_k = 0 for the other pairs

    The exponent's denominator is the whole head's K, so the turning pairs keep RoPE's fast end;
    `partial_rope` instead spreads all wavelengths over fewer dims. p = rotary_dim / K: 1 is RoPE,
    0 would be NoPE. transformers calls it 'proportional' and has int(p K // 2) pairs turn, which
    is rotary_dim = 2 int(p K // 2) here.

    Fields:
      rotary_dim: how many dims of a head turn, p K; even, 2 to head_dim.
      theta: base of the geometric series of wavelengths, > 0.
      pairing: which coordinates turn together. 'interleaved' pairs (2k, 2k+1); 'half' pairs
        (k, k + K/2) over the whole head, as transformers, so that the turning dims are the first
        rotary_dim/2 of either half.
      scaling: of the whole head's frequencies, before the slow ones become 0.

    Past the training length fast angles repeat; the pairs that would meet new ones do not turn.
    """

    paper = 'Barbero et al. 2024, arXiv:2410.06205'
    relative = True
    beyond = 'defined; slow pairs do not turn'

    rotary_dim: int
    theta: float = 1e4
    pairing: Literal['interleaved', 'half'] = 'interleaved'
    scaling: Scaling = unscaled()

    @property
    def sees_length(self) -> bool:
        return self.scaling.sees_length

    def check(self):
        _check(self)

    def check_fit(self, dims, numbers):
        _check_fit(self, dims)
        check_pairs(self, dims)  # whose frequencies are those of the whole head
        self.scaling.check_fit(dims.head_dim)

    def at(self, dims, length):
        return dataclasses.replace(self, scaling=self.scaling.at(self.theta, dims.head_dim, length))

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        dim = q_BQHK.shape[-1]
        freq, factor = self.scaling.frequencies(self.theta, dim, ctx.length_B)
        freq = proportional(freq, self.rotary_dim)
        return (
            rotate(q_BQHK, ctx.q_pos_BQ, freq, self.pairing, factor),
            rotate(k_BSHK, ctx.k_pos_BS, freq, self.pairing, factor),
        )
