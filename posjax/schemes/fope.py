"""Every rotation a mixture of several frequencies."""

import jax.numpy as jnp
import numpy as np

from posjax.scheme import Scheme, scheme
from posjax.schemes.rope import angles, check_pairs, inv_freq


def waves(pos_BT, freq_F, floor, mixture_2HFF):
    """Fourier series of the position, one a head and pair: (cosines, sines), each (B, T, H, F).

        cos[.., m] = cos(t f_m) + sum_n mixture[0, h, n, m] cos(t f_n)    where f_m >= floor, else 1
        sin[.., m] = sin(t f_m) + sum_n mixture[1, h, n, m] sin(t f_n)    where f_m >= floor, else 0

    with n over the frequencies of at least `floor`.

    Args:
      pos_BT: position numbers (the leading dimension may be 1).
      freq_F: radians per position of each pair.
      floor: the lowest frequency that is kept.
      mixture_2HFF: what frequency n adds to pair m, for cosines and for sines.
    """
    kept_F = (freq_F >= floor)[None, None]
    angle_BTF = angles(pos_BT, freq_F)

    def series(wave_BTF, mixture_HFF, rest):
        wave_BTF = jnp.where(kept_F, wave_BTF, 0.0)
        # Other roundings of this product would turn vectors differently on each kind of hardware.
        more_BTHF = jnp.einsum('BTN,HNM->BTHM', wave_BTF, mixture_HFF, precision='highest')
        return jnp.where(kept_F[:, :, None], wave_BTF[:, :, None] + more_BTHF, rest)

    return (
        series(jnp.cos(angle_BTF), mixture_2HFF[0], 1.0),
        series(jnp.sin(angle_BTF), mixture_2HFF[1], 0.0),
    )


@scheme
class fope(Scheme):
    """Fourier position embedding: RoPE with mixed frequencies, and none that training never closed.

        (a, b)_m -> (a C_m - b S_m, a S_m + b C_m)
        C_m(t) = cos(t f_m) + sum_n A_nm cos(t f_n),    S_m(t) = sin(t f_m) + sum_n B_nm sin(t f_n)
        C_m = 1, S_m = 0 where f_m < 2 pi / train_length,    f_m = theta^(-2m/K)

    n runs over the kept frequencies (the paper allows others besides). A and B are drawn from N(0,
    sigma^2), separately for every layer and head, and stay fixed, as in the paper; they are no part
    of the parameters, and runs that differ in their seed share them. Unlike a rotation the mixture
    is not relative: products of two series hold terms of i and j apart. Pairs are (2m, 2m+1).

    This is equation 13. The authors' code further divides each column by its sum, lets at most half
    of the pairs turn, and gives the pairs without a frequency S = 1 instead of 0.

    Fields:
      train_length: tokens in training, >= 7 (in 6, even the fastest pair does not finish a turn).
      theta: base of the geometric series of wavelengths, > 0.
      sigma: standard deviation of the coefficients, >= 0, below 1 as the pair's own frequency
        should dominate; 0.3 was best for the paper's smallest model.
      learned: adds learned coefficients, 0 at first, to the fixed ones.
      seed: which fixed coefficients are drawn, >= 0.

    Past the training length every kept wave has been seen from end to end, and repeats.
    """

    paper = 'Hua et al. 2024, arXiv:2412.17739'
    beyond = 'defined; whole periods repeat'

    train_length: int
    theta: float = 1e4
    sigma: float = 0.3
    learned: bool = False
    seed: int = 0

    def check(self):
        self.require(
            'train_length',
            self.train_length >= 7,
            'at least 7 (no frequency finishes a turn in less, and nothing would turn)',
        )
        self.require('theta', self.theta > 0, 'positive')
        self.require('sigma', 0 <= self.sigma < 1, 'at least 0 and below 1')
        self.require('seed', self.seed >= 0, 'at least 0')

    def check_fit(self, dims, numbers):
        check_pairs(self, dims)

    def init(self, key, dims):
        if not self.learned:
            return {}
        pairs = dims.head_dim // 2
        return {'mixture': jnp.zeros((dims.layers, 2, dims.heads, pairs, pairs))}

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        heads, pairs = q_BQHK.shape[2], q_BQHK.shape[3] // 2
        # NumPy promises to draw the same numbers from RandomState for good; checkpoints need that.
        draws = np.random.RandomState([self.seed, ctx.layer]).normal(size=(2, heads, pairs, pairs))
        mixture_2HFF = self.sigma * jnp.asarray(draws, jnp.float32)
        if self.learned:
            mixture_2HFF = mixture_2HFF + params['mixture'][ctx.layer]
        freq_F, floor = inv_freq(self.theta, 2 * pairs), 2 * np.pi / self.train_length

        def turn(x_BTHK, pos_BT):
            cos_BTHF, sin_BTHF = waves(pos_BT, freq_F, floor, mixture_2HFF)
            x = x_BTHK.astype(jnp.float32)
            a, b = x[..., 0::2], x[..., 1::2]
            turned = [a * cos_BTHF - b * sin_BTHF, a * sin_BTHF + b * cos_BTHF]
            return jnp.stack(turned, axis=-1).reshape(x.shape).astype(x_BTHK.dtype)

        return turn(q_BQHK, ctx.q_pos_BQ), turn(k_BSHK, ctx.k_pos_BS)
