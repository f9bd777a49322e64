"""Scalings by one number: position interpolation, and the NTK-aware changes of the base.

    linear         theta^(-2k/d) / s                     all pairs s times slower
    ntk            (theta s^(d/(d-2)))^(-2k/d)           the fastest pair as it was, the slowest / s
    ntk_su         (theta s)^(-2k/d) / s^(2/d)           the slowest pair / s, the fastest / s^(2/d)
    dynamic_ntk    ntk with s = factor l/L - (factor-1)  for l > L tokens; unscaled up to L

`ntk` and `ntk_su` agree at the slowest pair, k = d/2 - 1, and nowhere else.
"""

import jax
import jax.numpy as jnp

from posjax.scaling.scaling import Scaling, inv_freq, require_factor, require_original_length
from posjax.spec import register


def ntk_base(theta, dim: int, factor):
    """The base at which the slowest of dim/2 pairs is `factor` times slower; dim > 2."""
    return jnp.float32(theta) * jnp.power(jnp.float32(factor), dim / (dim - 2))


def check_base_fits(scaling: Scaling, dim: int) -> None:
    """Raises ValueError where there is one pair: no base slows it."""
    if dim <= 2:
        raise ValueError(
            f'scaling {scaling.name()} changes the base, and of {dim} rotary dims the only pair '
            'turns at theta^0 = 1 whatever the base; take linear, or turn more dims'
        )


@register
class linear(Scaling):
    """Position interpolation: all pairs turn `factor` times slower.

    The same as positions divided by `factor`; factors and attention are untouched.

    Fields:
      factor: s, new length / trained length, >= 1.
    """

    paper = 'Chen et al. 2023, arXiv:2306.15595; kaiokendev 2023 (SuperHOT)'

    factor: float

    def check(self):
        require_factor(self)

    def frequencies(self, theta, dim, length_B):
        return inv_freq(theta, dim) / self.factor, 1.0


@register
class ntk(Scaling):
    """NTK-aware: a larger base, with which the slowest pair is `factor` times slower, as by bloc97.

    Fields:
      factor: s, new length / trained length, >= 1.
    """

    paper = 'bloc97 2023 (r/LocalLLaMA, NTK-aware scaled RoPE); Peng et al. 2023, arXiv:2309.00071'

    factor: float

    def check(self):
        require_factor(self)

    def check_fit(self, dim):
        check_base_fits(self, dim)

    def frequencies(self, theta, dim, length_B):
        return inv_freq(ntk_base(theta, dim, self.factor), dim), 1.0


@register
class ntk_su(Scaling):
    """NTK-aware as by Su: base times `factor`, and all pairs / factor^(2/d).

    Pair k turns factor^(2(k+1)/d) times slower, so that no pair keeps its speed. vLLM's 'ntk'
    (without mixed_b) is this one.

    Fields:
      factor: s, new length / trained length, >= 1.
    """

    paper = 'Su 2023 (kexue.fm/archives/9706; vLLM)'

    factor: float

    def check(self):
        require_factor(self)

    def frequencies(self, theta, dim, length_B):
        factor = jnp.float32(self.factor)
        return inv_freq(theta * factor, dim) / jnp.power(factor, 2 / dim), 1.0


@register
class dynamic_ntk(Scaling):
    """`ntk` whose factor grows with the text: unscaled up to the trained length, as transformers.

        s = factor l / L - (factor - 1),    l = max(length, L)

    With factor 1, s is l / L. Keys turned at one length are wrong at the next: a cache must hold
    them unturned, as posjax's does. What deeper layers made of earlier tokens stays as it was made,
    at the lengths of its time, unless `length` is given to the model from the start.

    Fields:
      factor: how fast s grows, >= 1.
      original_length: L, tokens in training, > 1.
    """

    paper = (
        'emozilla 2023 (r/LocalLLaMA, dynamically scaled RoPE); Peng et al. 2023, arXiv:2309.00071'
    )
    sees_length = True

    factor: float
    original_length: float

    def check(self):
        require_factor(self)
        require_original_length(self)

    def check_fit(self, dim):
        check_base_fits(self, dim)

    def frequencies(self, theta, dim, length_B):
        ratio_B = jnp.maximum(length_B.astype(jnp.float32) / self.original_length, 1.0)
        base_B = ntk_base(theta, dim, self.factor * ratio_B - (self.factor - 1))
        return jax.vmap(inv_freq, (0, None))(base_B, dim), 1.0
