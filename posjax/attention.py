"""Exact attention over a scheme's hooks: whole, or by blocks of queries in bounded memory."""

import jax
import jax.numpy as jnp

from posjax.scheme import Context, Params, Scheme

# Large and finite: a row of -inf alone would make NaN in the softmax and in its gradient.
_HIDDEN = -1e30
# How many parts queries are taken in, by blocks, where later keys can be skipped: more of them skip
# more (four, three eighths of the work; at most half), and compile longer.
_PARTS = 4


def attend(
    scheme: Scheme,
    params: Params,
    q_BQHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHK: jax.Array,
    ctx: Context,
    block: int = 0,
) -> tuple[jax.Array, jax.Array | None]:
    """softmax(scores) v, with everything positional done by the scheme's hooks.

    Args:
      q_BQHK, k_BSHK, v_BSHK: what the projections give, before any rotation; queries and keys are
        best in float32, and multiplied as `ctx.dtype` says.
      ctx: positions of these queries and keys, which of them are tokens, and causality.
      block: queries at a time; 0 does all at once and also returns the weights. Memory is that of a
        block's scores over all keys.

    Returns:
      The mixture (B, Q, H, K), and the weights (B, H, Q, S) or None by blocks; both in float32. A
      query that may see no key gets zeros.
    """
    queries, keys = q_BQHK.shape[1], k_BSHK.shape[1]
    if not block or queries <= block:
        return _attend(scheme, params, q_BQHK, k_BSHK, v_BSHK, ctx)

    # Where queries and keys are the same tokens, keys after the last query of a part are for none
    # of it. Each part is a loop of its own, with as many keys as it needs.
    skips = ctx.causal and queries == keys
    shares = block * (_PARTS if skips else 1)
    size = -(-queries // shares) * block
    mixed = []
    for start in range(0, queries, size):
        mine = slice(start, start + size)
        seen = slice(start + size if skips else keys)
        part = ctx._replace(
            q_pos_BQ=ctx.q_pos_BQ[:, mine],
            q_index_Q=ctx.q_index_Q[mine],
            k_pos_BS=ctx.k_pos_BS[:, seen],
            k_index_S=ctx.k_index_S[seen],
            valid_BS=None if ctx.valid_BS is None else ctx.valid_BS[:, seen],
        )
        rows = q_BQHK[:, mine], k_BSHK[:, seen], v_BSHK[:, seen]
        mixed.append(_by_blocks(scheme, params, *rows, part, block))
    return jnp.concatenate(mixed, axis=1), None


def _by_blocks(scheme, params, q_BQHK, k_BSHK, v_BSHK, ctx, block):
    queries = q_BQHK.shape[1]
    blocks = -(-queries // block)

    def split(x, axis):  # (..., Q, ...) -> (blocks, ..., block, ...); the last one is filled up
        widths = [(0, blocks * block - queries if d == axis else 0) for d in range(x.ndim)]
        x = jnp.pad(x, widths, mode='edge')
        shape = (*x.shape[:axis], blocks, block, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    # Recomputing a block's weights in the backward pass keeps training in bounded memory as well.
    @jax.checkpoint
    def one(part):
        q, q_pos, q_index = part
        part_ctx = ctx._replace(q_pos_BQ=q_pos, q_index_Q=q_index)
        return _attend(scheme, params, q, k_BSHK, v_BSHK, part_ctx)[0]

    out = jax.lax.map(one, (split(q_BQHK, 1), split(ctx.q_pos_BQ, 1), split(ctx.q_index_Q, 0)))
    out_BQHK = jnp.moveaxis(out, 0, 1).reshape(out.shape[1], blocks * block, *out.shape[3:])
    return out_BQHK[:, :queries]


def _attend(scheme, params, q_BQHK, k_BSHK, v_BSHK, ctx):
    s_BHQS = scheme.scores(params, q_BQHK, k_BSHK, ctx)
    seen, can_be_empty = [], False
    if ctx.causal:
        # By place, not by position number: numbers may be random, coupled, or restart.
        seen.append((ctx.k_index_S[None, :] <= ctx.q_index_Q[:, None])[None, None])
    if ctx.valid_BS is not None:
        seen.append(ctx.valid_BS[:, None, None, :])
        can_be_empty = True
    pattern = scheme.mask(ctx)
    if pattern is not None:
        seen.append(pattern)
        can_be_empty = True
    for visible in seen:
        s_BHQS = jnp.where(visible, s_BHQS, _HIDDEN)
    weights_BHQS = _softmax(s_BHQS)
    if can_be_empty:
        for visible in seen:
            weights_BHQS = jnp.where(visible, weights_BHQS, 0)
    out_BQHK = jnp.einsum('BHQS,BSHK->BQHK', weights_BHQS.astype(v_BSHK.dtype), v_BSHK,
                          preferred_element_type=jnp.float32)  # fmt: skip
    more_BQHK = scheme.gather(params, weights_BHQS, ctx)
    if more_BQHK is not None:
        out_BQHK = out_BQHK + more_BQHK
    return out_BQHK, weights_BHQS


@jax.custom_vjp
def _softmax(s_BHQS):
    """Over keys. The gradient is written out: the library's makes a training step on CPUs a
    twentieth slower."""
    return jax.nn.softmax(s_BHQS, axis=-1)


def _softmax_forward(s_BHQS):
    weights_BHQS = _softmax(s_BHQS)
    return weights_BHQS, weights_BHQS


def _softmax_backward(weights_BHQS, d_BHQS):
    moved_BHQS = weights_BHQS * d_BHQS
    return (moved_BHQS - weights_BHQS * moved_BHQS.sum(axis=-1, keepdims=True),)


_softmax.defvjp(_softmax_forward, _softmax_backward)
