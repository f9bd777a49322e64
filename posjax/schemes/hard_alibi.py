"""Hard ALiBi: windows that grow with the head."""

import jax.numpy as jnp

from posjax.scheme import Scheme, distance, scheme


def paper_windows(heads: int, masked: int | None = None) -> tuple[int, ...]:
    """1, 2, ... tokens for the first `masked` heads, then 0 (no window) for the others.

    The paper's experiments window half of their 16 heads, which is the default here.
    """
    masked = heads // 2 if masked is None else masked
    return tuple(range(1, masked + 1)) + (0,) * (heads - masked)


@scheme
class hard_alibi(Scheme):
    """Some heads see a short window, a different one each, the others everything (hard ALiBi).

        head h sees key j from query i  <=>  |i - j| < w_h,  or w_h = 0

    A window counts the token itself: w = 1 sees nothing else. Heads without one are NoPE. The paper
    has w_h = h = 1 ... m for m of the heads, as in its authors' code (`paper_windows`).

    Fields:
      windows: w_h in tokens, one per head, >= 0; 0 is no window; () takes `paper_windows` for the
        model's number of heads.

    Past the training length windows stay as they are; the other heads see more tokens.
    """

    paper = 'Jelassi et al. 2024, arXiv:2402.01032'
    relative = True
    pairwise = True
    beyond = 'windows stay; the other heads as NoPE'

    windows: tuple[int, ...] = ()

    def check(self):
        if min(self.windows, default=0) < 0:
            raise ValueError(
                f'scheme hard_alibi: windows={self.windows!r} should all be at least 0 (tokens; 0 '
                'is no window)'
            )

    def check_fit(self, dims, numbers):
        if len(self.windows) not in (0, dims.heads):
            raise ValueError(
                f'scheme {self.text} has {len(self.windows)} windows for {dims.heads} heads; give '
                f'{dims.heads}, such as windows={paper_windows(dims.heads)}'
            )

    def mask(self, ctx):
        windows = self.windows or paper_windows(ctx.heads)
        window_1H11 = jnp.asarray(windows, jnp.float32)[None, :, None, None]
        return (jnp.abs(distance(ctx)) < window_1H11) | (window_1H11 == 0)
