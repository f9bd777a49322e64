"""Exact attention over a scheme's hooks: whole, or by blocks of queries in bounded memory.

By blocks, keys are taken in tiles too, where a scheme scores each pair by itself (Scheme.in_tiles):
a softmax that runs along them (Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021,
arXiv:2112.05682).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from posjax.scheme import Context, Params, Scheme, dot_scores, operands

# Large and finite: a row of -inf alone would make NaN in the softmax and in its gradient.
_HIDDEN = -1e30
# Keys at a time, by blocks, as a multiple of the queries: longer tiles are fewer, and less of them
# is skipped.
_TILE = 8
# How many parts queries are taken in where all keys are needed at once and later ones can be
# skipped: more parts skip more (four, three eighths of the work; at most half), and compile longer.
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
        block's scores over eight blocks of keys, or over all keys where the scheme needs them all
        (see `Scheme.in_tiles`) or a gradient is taken.

    Returns:
      The mixture (B, Q, H, K), and the weights (B, H, Q, S) or None by blocks; both in float32. A
      query that may see no key gets zeros.
    """
    queries = q_BQHK.shape[1]
    if not block or queries <= block:
        return _attend(scheme, params, q_BQHK, k_BSHK, v_BSHK, ctx)
    by_blocks = _by_tiles_or_rows if scheme.in_tiles else _by_rows
    return by_blocks(scheme, params, q_BQHK, k_BSHK, v_BSHK, ctx, block), None


def keys_at_once(scheme: Scheme, block: int, keys: int) -> int:
    """How many of the keys `attend` scores at a time, where no gradient is taken."""
    return min(keys, _TILE * block) if block and scheme.in_tiles else keys


def _by_tiles_or_rows(*given):
    """By tiles; and by rows where a gradient is taken, since that of a softmax which runs along the
    keys takes twice as long."""
    leaves, tree = jax.tree.flatten(given)
    # Plain numbers stay what they are: some schemes are exact for those.
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]

    def of_arrays(way):
        def call(*arrays):
            rest = iter(arrays)
            filled = [next(rest) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
            return way(*jax.tree.unflatten(tree, filled))

        return call

    attended = jax.custom_vjp(of_arrays(_by_tiles))
    attended.defvjp(functools.partial(jax.vjp, of_arrays(_by_rows)), lambda back, d: back(d))
    return attended(*arrays)


class _Tile(NamedTuple):
    """Some keys, turned and as projected, their values, and what a context says of them; `there_S`
    is False at what only fills up the last tile, None where nothing does. What is multiplied lies
    in memory as it is multiplied, so that no tile is transposed again for each block of queries."""

    turned_BHKS: jax.Array
    k_BSHK: jax.Array
    v_BHSK: jax.Array
    k_pos_BS: jax.Array
    k_index_S: jax.Array
    valid_BS: jax.Array | None
    there_S: jax.Array | None


class _Sums(NamedTuple):
    """A softmax on its way along the keys: the largest score yet, and, all as multiples of its
    exponential, the sum of weights and that of weighted values."""

    most_BHQ1: jax.Array
    total_BHQ1: jax.Array
    mixed_BHQK: jax.Array


def _by_tiles(scheme, params, q_BQHK, k_BSHK, v_BSHK, ctx, block):
    """Blocks of queries, and for each the keys in tiles, but those that causality hides."""
    turned_BQHK, turned_BSHK = operands(*scheme.qk(params, q_BQHK, k_BSHK, ctx), ctx)
    tiles = _tiles(turned_BSHK, k_BSHK, v_BSHK, ctx, _TILE * block)
    batch, queries, heads, _ = q_BQHK.shape

    # Blocks are read from the queries, and written to the result, where they lie: neither is there
    # twice. The last one begins early enough to be whole.
    def one(index, out_BQHK):
        start = jnp.minimum(index * block, queries - block)
        mine = functools.partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=block)
        q_pos_BQ, q_index_Q = mine(ctx.q_pos_BQ, axis=1), mine(ctx.q_index_Q, axis=0)
        rows = mine(turned_BQHK, axis=1), mine(q_BQHK, axis=1)

        def along(sums, tile):
            part = ctx._replace(q_pos_BQ=q_pos_BQ, q_index_Q=q_index_Q, k_pos_BS=tile.k_pos_BS,
                                k_index_S=tile.k_index_S, valid_BS=tile.valid_BS)  # fmt: skip
            add = functools.partial(_add, scheme, params, *rows, tile, part)
            if not ctx.causal:
                return add(sums), None
            later = tile.k_index_S[0] > q_index_Q[-1]
            return jax.lax.cond(later, lambda sums: sums, add, sums), None

        nothing_BHQ1 = jnp.zeros((batch, heads, block, 1), jnp.float32)
        mixed_BHQK = jnp.zeros((batch, heads, block, v_BSHK.shape[-1]), jnp.float32)
        nothing = _Sums(nothing_BHQ1 + _HIDDEN, nothing_BHQ1, mixed_BHQK)
        sums, _ = jax.lax.scan(along, nothing, tiles)
        # Without a key, nothing is divided by next to nothing.
        total_BHQ1 = jnp.maximum(sums.total_BHQ1, jnp.finfo(jnp.float32).tiny)
        mixed_BQHK = jnp.swapaxes(sums.mixed_BHQK / total_BHQ1, 1, 2)
        return jax.lax.dynamic_update_slice_in_dim(out_BQHK, mixed_BQHK, start, axis=1)

    out_BQHK = jnp.zeros((batch, queries, heads, v_BSHK.shape[-1]), jnp.float32)
    return jax.lax.fori_loop(0, -(-queries // block), one, out_BQHK)


def _tiles(turned_BSHK, k_BSHK, v_BSHK, ctx, size) -> _Tile:
    """All keys, as tiles along a new first axis."""
    keys = k_BSHK.shape[1]
    there_S = None if keys % size == 0 else jnp.arange(-(-keys // size) * size) < keys
    return _Tile(
        jnp.moveaxis(_split(turned_BSHK, 1, size), 2, -1),
        _split(k_BSHK, 1, size),
        jnp.swapaxes(_split(v_BSHK, 1, size), 2, 3),
        _split(ctx.k_pos_BS, 1, size),
        _split(ctx.k_index_S, 0, size),
        None if ctx.valid_BS is None else _split(ctx.valid_BS, 1, size),
        None if there_S is None else _split(there_S, 0, size),
    )


def _add(scheme, params, turned_BQHK, q_BQHK, tile: _Tile, ctx, sums: _Sums) -> _Sums:
    """The sums with a tile in them."""
    s_BHQS = dot_scores(turned_BQHK, jnp.moveaxis(tile.turned_BHKS, -1, 1), ctx)
    b_BHQS = scheme.bias(params, q_BQHK, tile.k_BSHK, ctx)
    s_BHQS = s_BHQS if b_BHQS is None else s_BHQS + b_BHQS
    seen, can_be_empty = _visible(scheme, ctx)
    if tile.there_S is not None:
        seen.append(tile.there_S[None, None, None])
    s_BHQS = _hidden(s_BHQS, seen, _HIDDEN)
    most_BHQ1 = jnp.maximum(sums.most_BHQ1, s_BHQS.max(axis=-1, keepdims=True))
    weights_BHQS = jnp.exp(s_BHQS - most_BHQ1)
    if can_be_empty:
        weights_BHQS = _hidden(weights_BHQS, seen, 0)
    mixed_BHQK = jnp.einsum('BHQS,BHSK->BHQK', weights_BHQS.astype(tile.v_BHSK.dtype), tile.v_BHSK,
                            preferred_element_type=jnp.float32)  # fmt: skip
    more_BQHK = scheme.gather(params, weights_BHQS, ctx)
    if more_BQHK is not None:
        mixed_BHQK = mixed_BHQK + jnp.swapaxes(more_BQHK, 1, 2)
    shrunk_BHQ1 = jnp.exp(sums.most_BHQ1 - most_BHQ1)
    return _Sums(
        most_BHQ1,
        sums.total_BHQ1 * shrunk_BHQ1 + weights_BHQS.sum(axis=-1, keepdims=True),
        sums.mixed_BHQK * shrunk_BHQ1 + mixed_BHQK,
    )


def _by_rows(scheme, params, q_BQHK, k_BSHK, v_BSHK, ctx, block):
    """Blocks of queries, each over all keys that any query of its part may see."""
    # Where queries and keys are the same tokens, keys after the last query of a part are for none
    # of it. Each part is a loop of its own, with as many keys as it needs.
    queries, keys = q_BQHK.shape[1], k_BSHK.shape[1]
    skips = ctx.causal and queries == keys
    shares = block * (_PARTS if skips else 1)
    size = -(-queries // shares) * block
    mixed = []
    for start in range(0, queries, size):
        mine = slice(start, start + size)
        seen = slice(start + size if skips else keys)
        k_seen, v_seen = k_BSHK[:, seen], v_BSHK[:, seen]
        part = ctx._replace(
            q_pos_BQ=ctx.q_pos_BQ[:, mine],
            q_index_Q=ctx.q_index_Q[mine],
            k_pos_BS=ctx.k_pos_BS[:, seen],
            k_index_S=ctx.k_index_S[seen],
            valid_BS=None if ctx.valid_BS is None else ctx.valid_BS[:, seen],
        )

        def one(q_BQHK, q_pos_BQ, q_index_Q, part=part, k_seen=k_seen, v_seen=v_seen):
            part = part._replace(q_pos_BQ=q_pos_BQ, q_index_Q=q_index_Q)
            return _attend(scheme, params, q_BQHK, k_seen, v_seen, part)[0]

        mixed.append(_for_blocks(one, q_BQHK[:, mine], part, block))
    return jnp.concatenate(mixed, axis=1)


def _for_blocks(one, q_BQHK, ctx, block):
    """`one(q_BQHK, q_pos_BQ, q_index_Q)` of each block of queries: (B, Q, H, K)."""
    queries = ctx.q_index_Q.size
    # Recomputing a block's weights in the backward pass keeps training in bounded memory as well.
    remade = jax.checkpoint(lambda part: one(*part))
    parts = (
        _split(q_BQHK, 1, block),
        _split(ctx.q_pos_BQ, 1, block),
        _split(ctx.q_index_Q, 0, block),
    )
    out = jnp.moveaxis(jax.lax.map(remade, parts), 0, 1)
    return out.reshape(out.shape[0], -1, *out.shape[3:])[:, :queries]


def _split(x, axis, size):
    """(..., T, ...) -> (T/size, ..., size, ...); the last one is filled up with its last row."""
    count = -(-x.shape[axis] // size)
    widths = [(0, count * size - n if d == axis else 0) for d, n in enumerate(x.shape)]
    x = jnp.pad(x, widths, mode='edge')
    return jnp.moveaxis(x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis, 0)


def _attend(scheme, params, q_BQHK, k_BSHK, v_BSHK, ctx):
    seen, can_be_empty = _visible(scheme, ctx)
    s_BHQS = _hidden(scheme.scores(params, q_BQHK, k_BSHK, ctx), seen, _HIDDEN)
    weights_BHQS = _softmax(s_BHQS)
    if can_be_empty:
        weights_BHQS = _hidden(weights_BHQS, seen, 0)
    out_BQHK = jnp.einsum('BHQS,BSHK->BQHK', weights_BHQS.astype(v_BSHK.dtype), v_BSHK,
                          preferred_element_type=jnp.float32)  # fmt: skip
    more_BQHK = scheme.gather(params, weights_BHQS, ctx)
    if more_BQHK is not None:
        out_BQHK = out_BQHK + more_BQHK
    return out_BQHK, weights_BHQS


def _visible(scheme, ctx) -> tuple[list[jax.Array], bool]:
    """Masks that a key has to pass all of, and whether a query may be left with none."""
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
    return seen, can_be_empty


def _hidden(x_BHQS, seen, value):
    for visible in seen:
        x_BHQS = jnp.where(visible, x_BHQS, value)
    return x_BHQS


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
