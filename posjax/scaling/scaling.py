"""What a scaling of frequencies is, and the two that change none: `unscaled` and `given`.

A scaling is a function (theta, dim, length) -> (inv_freq, attention_factor): radians per position
of each pair, and what multiplies cosines and sines, so that q.k is multiplied by its square. It is
a Spec whose numbers are data, and a field of the schemes that turn pairs.

Shape suffixes: B batch, F frequencies (half of the dims that turn).
"""

from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from posjax.spec import Spec, register


def inv_freq(theta, dim: int):
    """Radians per position of each pair, float32 (ceil(dim/2),): theta^(-2k/dim), k = 0, 1, ..."""
    exponent = jnp.asarray(np.arange(0, dim, 2) / dim, jnp.float32)
    return jnp.power(jnp.float32(theta), -exponent)


class Scaling(Spec):
    """The interface.

    Class attributes a scaling declares:
      paper: author, year, arXiv id, or the code that defines it.
      sees_length: True when the frequencies depend on the length of the text at hand.
    """

    kind = 'scaling'
    registry: ClassVar[dict[str, type[Self]]] = {}
    paper: ClassVar[str] = ''
    sees_length: ClassVar[bool] = False

    def frequencies(self, theta, dim: int, length_B):
        """Frequencies and the factor of the attention.

        Args:
          theta: base of the unscaled frequencies.
          dim: how many dims turn.
          length_B: tokens in the whole sequence (B or 1 of them), also under cached decoding. Data.

        Returns:
          inv_freq, float32 (F,), or (B, F) where it depends on the length; and attention_factor, a
          number that multiplies cosines and sines.
        """
        raise NotImplementedError(f'scaling {self.name()} has no frequencies')

    def check_fit(self, dim: int) -> None:
        """Raises ValueError where this scaling cannot serve heads of which `dim` dims turn."""

    def at(self, theta, dim: int, length: int) -> 'given':
        """What it comes to at one length, as numbers: all scalings then have one structure.

        Raises:
          ValueError: as check_fit.
        """
        self.check_fit(dim)
        freq, factor = self.frequencies(theta, dim, jnp.full((1,), length))
        freq_F = np.asarray(jax.device_get(freq)).reshape(-1)
        return given(tuple(map(float, freq_F)), float(factor))


def require_factor(scaling: Scaling) -> None:
    should = 'at least 1 (it is the new length / the trained one)'
    scaling.require('factor', scaling.factor >= 1, should)


def require_original_length(scaling: Scaling) -> None:
    ok = scaling.original_length > 1
    scaling.require('original_length', ok, 'above 1 (tokens in training)')


@register
class unscaled(Scaling):
    """Frequencies as they are: theta^(-2k/d)."""

    paper = 'Su et al. 2021, arXiv:2104.09864'

    def frequencies(self, theta, dim, length_B):
        return inv_freq(theta, dim), 1.0


@register
class given(Scaling):
    """Frequencies written out; theta is not looked at.

    Fields:
      inv_freq: radians per position of each pair, as many as there are pairs.
      attention_factor: what multiplies cosines and sines.
    """

    paper = 'Su et al. 2021, arXiv:2104.09864'

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0

    def check_fit(self, dim):
        if len(self.inv_freq) != dim // 2:
            raise ValueError(
                f'scaling given has {len(self.inv_freq)} frequencies where {dim} dims turn; give '
                f'{dim // 2}'
            )

    def frequencies(self, theta, dim, length_B):
        freq_F = jnp.stack([jnp.float32(freq) for freq in self.inv_freq])
        return freq_F, jnp.float32(self.attention_factor)
