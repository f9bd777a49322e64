"""Rotations whose speeds are learned."""

import jax.numpy as jnp

from posjax.scheme import Scheme, scheme
from posjax.schemes.rope import check_pairs, inv_freq, rotate


@scheme
class rope_learned(Scheme):
    """RoPE with learned frequencies: every pair finds its own wavelength, in every layer.

        (a, b)_k -> (a cos u - b sin u, a sin u + b cos u),    u = t theta^(-2k/K) exp(w_k / c)

    w = 0 at first, which is RoPE. It is the commuting case of multiplicative GRAPE, on coordinate
    planes: one set of frequencies a layer, shared by its heads, as the authors' code has by
    default. They learn log frequencies; here w is the distance from RoPE's, so that weight decay
    pulls towards RoPE and not towards one radian a token. Pairs are (2k, 2k+1); q and k are not
    normalised.

    Fields:
      theta: base of the geometric series of wavelengths at the start, > 0.
      log_freq_scale: c, by which learned log frequencies are divided, > 0; an Adam step moves them
        c times less than other parameters. The authors' configuration has 16.

    Past the training length angles go on, at speeds that fitted the training length.
    """

    paper = 'Zhang et al. 2025, arXiv:2512.07805 (GRAPE, commuting)'
    relative = True
    beyond = 'defined, unseen angles'

    theta: float = 1e4
    log_freq_scale: float = 16.0

    def check(self):
        for name in ('theta', 'log_freq_scale'):
            self.require(name, getattr(self, name) > 0, 'positive')

    def check_fit(self, dims, numbers):
        check_pairs(self, dims)

    def init(self, key, dims):
        return {'log_ratio': jnp.zeros((dims.layers, dims.head_dim // 2))}

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        ratio_F = jnp.exp(params['log_ratio'][ctx.layer] / self.log_freq_scale)
        freq_F = inv_freq(self.theta, q_BQHK.shape[-1]) * ratio_F
        return rotate(q_BQHK, ctx.q_pos_BQ, freq_F), rotate(k_BSHK, ctx.k_pos_BS, freq_F)
