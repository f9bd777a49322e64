"""What a scheme does to attention, found by asking its hooks: no model, no training, any scheme.

A score is taken apart into what content does not change, what the query or the key changes alone,
and what each coordinate of the query makes of each coordinate of the key:

    s(q, k) = bias + query term(q) + key term(k) + sum_ab q_a k_b A_ab

coverage.py asks which of these numbers training has met, kernel.py draws them.

Shape suffixes: T tokens, D width, Q queries, S keys, H heads, K head dim, P probes.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.scheme import Chain, Context, Dims, Params, Scheme, as_chain, hooks

# Below this, as a share of what it is the difference of, a float32 difference is rounding.
_ROUNDING = 1e-5


class View(NamedTuple):
    """Which queries of how long a sequence, in which layer."""

    length: int
    queries: tuple[int, ...]
    layer: int = 0


class Anatomy(NamedTuple):
    """The terms of the score in a view, and the embedding; float32 numpy arrays.

    Attributes:
      visible_HQS: which keys a query may see.
      bias_HQS: the score of zero query and zero key.
      query_KHQS, key_KHQS: what a unit vector as query, or as key, adds to that alone.
      pairs: (query coordinate, key coordinate) of each probe.
      pair_PHQS: A_ab of each of these pairs.
      embed_TD: what is added to a zero embedding.
    """

    visible_HQS: np.ndarray
    bias_HQS: np.ndarray
    query_KHQS: np.ndarray
    key_KHQS: np.ndarray
    pairs: tuple[tuple[int, int], ...]
    pair_PHQS: np.ndarray
    embed_TD: np.ndarray


def parameters(scheme: Scheme, dims: Dims, seed: int = 0) -> Params:
    """Parameters a little off their initial values: many schemes start where they do nothing."""
    key = jax.random.key(seed)
    made = as_chain(scheme).init(key, dims)
    leaves, tree = jax.tree.flatten(made)
    noisy = [
        leaf + 0.1 * jax.random.normal(jax.random.fold_in(key, number), leaf.shape)
        for number, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, noisy)


def is_random(scheme: Scheme) -> bool:
    """Whether position numbers may depend on a key."""
    return any('positions' in hooks(type(part)) and _moves(part) for part in as_chain(scheme).parts)


def _moves(part):
    pos, tokens = jnp.arange(4)[None], jnp.zeros((1, 4), jnp.int32)
    fixed = part.positions(pos, tokens, jnp.full((1,), 4), None)
    drawn = (part.positions(pos, tokens, jnp.full((1,), 4), jax.random.key(n)) for n in range(8))
    return any(bool((moved != fixed).any()) for moved in drawn)


def context(whole: Chain, dims: Dims, view: View, key=None) -> Context:
    """What the hooks are told in a view; all tokens are token 0, and `key` draws positions."""
    length_B, queries = jnp.full((1,), view.length), jnp.asarray(view.queries)
    tokens_BS = jnp.zeros((1, view.length), jnp.int32)
    k_pos_BS = whole.positions(jnp.arange(view.length)[None], tokens_BS, length_B, key)
    return Context(k_pos_BS[:, queries], k_pos_BS, queries, jnp.arange(view.length), None,
                   dims.causal, length_B, view.layer, dims.heads, dims.head_dim**-0.5)  # fmt: skip


def alike_layers(scheme: Scheme, dims: Dims, params: Params) -> list[tuple[int, ...]]:
    """Layers, grouped by what the scheme does in them: those of one group do the same."""
    groups: dict[str, list[int]] = {}
    for layer in range(dims.layers):
        view = View(3, (2,), layer)
        # Equal programs, word for word: a layer's own table or part is another one.
        program = jax.make_jaxpr(functools.partial(responses, dims=dims, view=view))
        groups.setdefault(str(program(as_chain(scheme), params, None)), []).append(layer)
    return [tuple(layers) for layers in groups.values()]


def interacting(scheme: Scheme, dims: Dims, params: Params, length: int) -> list[tuple[int, ...]]:
    """Coordinates that meet in the score, grouped: the pairs of a rotary scheme, single otherwise.

    A coordinate of the query and one of the key are in one group when their product enters a score
    at some distance, in some head and layer.
    """
    size = dims.head_dim
    met = np.eye(size, dtype=bool)
    every = tuple((a, b) for a in range(size) for b in range(size))
    length = min(length, 16)
    for layers in alike_layers(scheme, dims, params):
        view = View(length, (length - 1,), layers[0])
        found = anatomy(scheme, dims, params, view, every).pair_PHQS
        met |= (np.abs(found).max(axis=(1, 2, 3)) > 0).reshape(size, size)
    groups: list[set[int]] = []
    for a, b in np.argwhere(met):
        joined = [g for g in groups if {a, b} & g]
        groups = [g for g in groups if g not in joined] + [set().union({int(a), int(b)}, *joined)]
    return sorted(tuple(sorted(group)) for group in groups)


def anatomy(scheme: Scheme, dims: Dims, params: Params, view: View, pairs, key=None) -> Anatomy:
    """Takes the scores of a view apart; `pairs` are the (a, b) to ask for."""
    size = dims.head_dim
    # Zero with zero, each coordinate with zero, zero with each, and the pairs: one batch.
    ones = [(-1, -1), *((a, -1) for a in range(size)), *((-1, b) for b in range(size)), *pairs]
    units = jnp.eye(size + 1, size)  # the last row, which -1 finds, is zero
    q_PK, k_PK = (units[jnp.asarray([pair[side] for pair in ones])] for side in (0, 1))
    visible, scores, embed = _ask(as_chain(scheme), params, q_PK, k_PK, key, dims, view)
    bias, query, key, both = np.split(np.asarray(scores), [1, 1 + size, 1 + 2 * size])
    a, b = np.asarray(list(pairs), int).reshape(-1, 2).T
    scale = np.maximum(np.abs(np.asarray(scores)).max(axis=0), 1e-30)
    query, key = (_without_rounding(x - bias, scale) for x in (query, key))
    pair = _without_rounding(both - bias - query[a] - key[b], scale)
    return Anatomy(np.asarray(visible), bias[0], query, key, tuple(pairs), pair, np.asarray(embed))


def _without_rounding(difference, scale):
    return np.where(np.abs(difference) > _ROUNDING * scale, difference, 0)


@functools.partial(jax.jit, static_argnames=('dims', 'view'))
def _ask(whole, params, q_PK, k_PK, key, dims, view):
    ctx = context(whole, dims, view, key)
    queries, keys, probes = len(view.queries), view.length, q_PK.shape[0]
    q_PQHK, k_PSHK = (
        jnp.broadcast_to(x[:, None, None, :], (probes, n, dims.heads, dims.head_dim))
        for x, n in ((q_PK, queries), (k_PK, keys))
    )
    scores_PHQS = jnp.broadcast_to(
        whole.scores(params, q_PQHK, k_PSHK, ctx), (probes, dims.heads, queries, keys)
    )
    return _visible(whole, dims, ctx), scores_PHQS, _embedding(whole, params, dims, ctx)


def reads(scheme: Scheme, dims: Dims, params: Params, view: View, keys=(None,)) -> Params:
    """Which entries of the parameters anything in a view depends on, under any of the keys: a tree
    of booleans."""
    read = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), params)
    for key in keys:
        slopes = _sensitivity(as_chain(scheme), params, key, dims, view)
        read = jax.tree.map(lambda old, slope: old | (np.asarray(slope) != 0), read, slopes)
    return read


@functools.partial(jax.jit, static_argnames=('dims', 'view'))
def _sensitivity(whole, params, key, dims, view):
    def weighed(params):
        # Random weights: a sum in which nothing that is read can cancel.
        parts = responses(whole, params, key, dims, view)
        weights = jax.random.split(jax.random.key(1), len(parts))
        return sum(
            (part * jax.random.normal(weight, part.shape)).sum()
            for weight, part in zip(weights, parts, strict=True)
        )

    return jax.grad(weighed)(params)


@functools.partial(jax.jit, static_argnames=('dims', 'view', 'apart'))
def responses(whole: Chain, params: Params, key, dims: Dims, view: View, apart: bool = False):
    """All that a scheme does to random content in a view.

    Returns:
      What it adds to a zero embedding (T, D), the visible scores (P, H, Q, S), and what it gathers
      from all visible keys together (1, Q, H, K), or `apart` from each key alone (S, Q, H, K).
    """
    ctx = context(whole, dims, view, key)
    q_key, k_key = jax.random.split(jax.random.key(0))
    sizes = (dims.heads, dims.head_dim)
    q_PQHK = jax.random.normal(q_key, (3, len(view.queries), *sizes))
    k_PSHK = jax.random.normal(k_key, (3, view.length, *sizes))
    visible_HQS = _visible(whole, dims, ctx)
    scores_PHQS = jnp.where(visible_HQS[None], whole.scores(params, q_PQHK, k_PSHK, ctx), 0)
    weights = jnp.eye(view.length) if apart else jnp.ones((1, view.length))
    gathered = whole.gather(params, jnp.where(visible_HQS[None], weights[:, None, None], 0), ctx)
    if gathered is None:
        gathered = jnp.zeros((len(weights), 1, 1, 1))
    return _embedding(whole, params, dims, ctx), scores_PHQS, gathered


def _visible(whole, dims, ctx):
    seen = jnp.ones((1, 1, len(ctx.q_index_Q), len(ctx.k_index_S)), bool)
    if dims.causal:
        seen = seen & (ctx.k_index_S[None, :] <= ctx.q_index_Q[:, None])[None, None]
    pattern = whole.mask(ctx)
    seen = seen if pattern is None else seen & pattern
    return jnp.broadcast_to(seen[0], (dims.heads, *seen.shape[2:]))


def _embedding(whole, params, dims, ctx):
    ctx = ctx._replace(q_pos_BQ=ctx.k_pos_BS, q_index_Q=ctx.k_index_S)
    return whole.embed(params, jnp.zeros((1, len(ctx.k_index_S), dims.width)), ctx)[0]
