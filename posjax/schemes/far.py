"""Rotations whose far distances are brought back to those of training: no training, no weights.

    s_ij = R(i) q_i . R(j) k_j          where i - j < w
           R(i') q_i . R(j') k_j        elsewhere,          times 1/sqrt(K)

    i' = w, j' = 0: every far token is w away                              rerope, lm_infinite
    i' = floor(i/G) + w - floor(w/G), j' = floor(j/G): in steps of G       self_extend

No rotation of q and k alone gives such scores, so each is computed twice. The rotations R are those
of a scheme that these hold, so that they act on the parameters of the rope, partial_rope or p_rope
that was trained. For causal models: keys ahead keep their distance.
"""

import jax.numpy as jnp

from posjax.scheme import Context, Scheme, distance, dot_scores, scheme
from posjax.schemes.patterns import lambda_mask
from posjax.schemes.rope import is_rotary, rope


def far_scores(inside: Scheme, q_BQHK, k_BSHK, ctx: Context, window, far_q_BQ, far_k_BS):
    """Scores (B, H, Q, S) under `inside`, at other positions from a distance of `window` on."""
    far_ctx = ctx._replace(q_pos_BQ=far_q_BQ, k_pos_BS=far_k_BS)
    near_BHQS, far_BHQS = (
        dot_scores(*inside.qk({}, q_BQHK, k_BSHK, c), ctx) for c in (ctx, far_ctx)
    )
    return jnp.where(distance(ctx) < window, near_BHQS, far_BHQS)


def _check(holder: Scheme, *least_one: str) -> None:
    for name in least_one:
        holder.require(name, getattr(holder, name) >= 1, 'at least 1')
    if not is_rotary(holder.scheme):
        raise ValueError(
            f'scheme {holder.name()} changes the distances of a rotation, and scheme='
            f'{holder.scheme.text} is none; take rope, partial_rope or p_rope, and chain the rest '
            f'outside, as {holder.name()}(...)|...'
        )
    holder.scheme.check()


@scheme
class rerope(Scheme):
    """RoPE whose distances end at a window (ReRoPE), or go on slowly beyond it (leaky ReRoPE).

        distance d  ->  d where d < window,    window + leak (d - window) elsewhere

    Its author puts log-n on top: `rerope(window=32.0)|logn_position(train_length=64.0)`.

    Fields:
      window: w, the first distance that changes, in positions, >= 1; at most the training length.
      leak: distance per position beyond the window, 0 to 1: 0 is ReRoPE, 1 plain RoPE. The author
        writes 1/k.
      scheme: the rotation, one of rope, partial_rope and p_rope.

    Past the training length distances are those of training, and cannot be told apart beyond the
    window.
    """

    paper = 'Su 2023 (ReRoPE and leaky ReRoPE, kexue.fm/archives/9708)'
    relative = True
    beyond = 'distances seen in training'

    window: float
    leak: float = 0.0
    scheme: Scheme = rope()

    @property
    def sees_length(self) -> bool:
        return self.scheme.sees_length

    def check(self):
        _check(self, 'window')
        self.require('leak', 0 <= self.leak <= 1, 'from 0 to 1')

    def check_fit(self, dims, numbers):
        self.scheme.check_fit(dims, numbers)

    def scores(self, params, q_BQHK, k_BSHK, ctx):
        q_pos, k_pos = ctx.q_pos_BQ.astype(jnp.float32), ctx.k_pos_BS.astype(jnp.float32)
        far_q_BQ = self.window + self.leak * (q_pos - self.window)
        return far_scores(self.scheme, q_BQHK, k_BSHK, ctx, self.window, far_q_BQ,
                          self.leak * k_pos)  # fmt: skip


@scheme
class self_extend(Scheme):
    """RoPE that tells far tokens apart in groups of neighbours only (Self-Extend).

        distance i - j  ->  i - j                                     where i - j < window
                            floor(i/G) - floor(j/G) + w - floor(w/G)  elsewhere,  G = group

    Positions are grouped and not distances, so logits change a little when all positions move.

    Fields:
      group: G, positions in a group, >= 1; 1 is plain RoPE. The paper takes 4 to 16.
      window: w, the first distance in groups, in positions, >= 1; the paper takes 512 to 1536.
      scheme: the rotation, one of rope, partial_rope and p_rope.

    Past the training length distances are those of training up to G (L - window) + window tokens.
    """

    paper = 'Jin et al. 2024, arXiv:2401.01325 (datamllab/LongLM)'
    beyond = 'distances seen in training, in groups'

    group: int
    window: int
    scheme: Scheme = rope()

    @property
    def sees_length(self) -> bool:
        return self.scheme.sees_length

    def check(self):
        _check(self, 'group', 'window')

    def check_fit(self, dims, numbers):
        self.scheme.check_fit(dims, numbers)

    def scores(self, params, q_BQHK, k_BSHK, ctx):
        far_q_BQ = ctx.q_pos_BQ // self.group + (self.window - self.window // self.group)
        return far_scores(self.scheme, q_BQHK, k_BSHK, ctx, self.window, far_q_BQ,
                          ctx.k_pos_BS // self.group)  # fmt: skip


@scheme
class lm_infinite(Scheme):
    """RoPE over a window and the first tokens, which stay a window away (LM-Infinite).

        query i sees key j  where  i - j < window  or  j < number        (a mask shaped as Lambda)
        distance d  ->  min(d, window)

    Windows and first tokens are counted in tokens (as `sinks`), distances in positions. The paper's
    optional attention to the best few tokens between is not part of this.

    Fields:
      window: tokens seen to the left, and the ceiling of distances, >= 1; the paper takes the
        training length.
      number: how many of the first tokens are seen from everywhere, >= 1; the paper takes 10 to
        100.
      scheme: the rotation, one of rope, partial_rope and p_rope.

    Past the training length a layer sees as many tokens as in training, at distances of training.
    """

    paper = 'Han et al. 2023, arXiv:2308.16137'
    relative = True
    beyond = 'defined; sees the first and last tokens only'

    window: int
    number: int = 10
    scheme: Scheme = rope()

    @property
    def sees_length(self) -> bool:
        return self.scheme.sees_length

    def check(self):
        _check(self, 'window', 'number')

    def check_fit(self, dims, numbers):
        self.scheme.check_fit(dims, numbers)

    def mask(self, ctx):
        return lambda_mask(ctx, self.window, self.number)

    def scores(self, params, q_BQHK, k_BSHK, ctx):
        far_q_BQ = jnp.full_like(ctx.q_pos_BQ, self.window)
        return far_scores(self.scheme, q_BQHK, k_BSHK, ctx, self.window, far_q_BQ,
                          jnp.zeros_like(ctx.k_pos_BS))  # fmt: skip
