"""Where position can enter attention. Read this first.

    x      = embed(E[token])                     embedding-level: learned, sinusoidal
    q, k   = qk(Wq x, Wk x)                      rotations and scalings: the RoPE family, log-n
    s_ij   = q_i . k_j / sqrt(K) + bias_ij       score-level: ALiBi and its relatives
    p_ij   ~ mask_ij exp(s_ij)                   pattern: windows, sinks, chunks
    o_i    = sum_j p_ij v_j + gather(p_i)        value-level: Shaw's relative values
    with every token carrying a position number  positions: shifted, randomised, interpolated

A scheme is a frozen dataclass (see spec.py) that overrides the hooks it needs. Hooks are pure
functions of explicit position *numbers*, never of shapes, so offsets, left padding, cached decoding
and blockwise attention all run the same code.

Shape suffixes: B batch, T tokens, Q queries, S keys, D width, H heads, K head dim.
"""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from posjax import text
from posjax.spec import Spec, is_variadic, register, structured

Params = dict[str, Any]


class Dims(NamedTuple):
    """What a scheme may know of the model when it makes or checks its parameters."""

    width: int
    heads: int
    head_dim: int
    layers: int
    causal: bool = True


class Context(NamedTuple):
    """What a hook is told about the tokens at hand; the arrays may be blocks of a longer sequence.

    Attributes:
      q_pos_BQ, k_pos_BS: position numbers of queries and keys (integers unless a scheme maps them
        to fractions). They say where a token *claims* to be.
      q_index_Q, k_index_S: place in the sequence, from 0, rising. They say which token came first,
        whatever the numbers claim; causality goes by them.
      valid_BS: which keys are tokens and not padding; None where all are.
      causal: whether a query sees keys only up to its own place.
      length_B: number of tokens in the whole sequence (B or 1 of them), also under cached decoding
        and in blocks. Data, never a shape.
      layer: which layer is asking, from 0 (a Python int).
      heads: how many heads it has.
      scale: what multiplies q.k, 1/sqrt(head_dim).
      dtype: that q and k are rounded to for their product; None leaves them as they are.
    """

    q_pos_BQ: jax.Array
    k_pos_BS: jax.Array
    q_index_Q: jax.Array
    k_index_S: jax.Array
    valid_BS: jax.Array | None
    causal: bool
    length_B: jax.Array
    layer: int
    heads: int
    scale: float
    dtype: str | None = None


class Scheme(Spec):
    """The interface. Every hook is the identity, which is NoPE.

    Class attributes a scheme declares:
      paper: author, year, arXiv id.
      relative: True when logits do not change as all positions shift together.
      sees_length: True when a hook reads `ctx.length_B`, so that logits on a prefix depend on it.
      pairwise: True when bias, mask and gather say of a query and a key what depends on no other
        key; not where tokens are counted, or gates summed up. By blocks, attention then goes along
        the keys in tiles, and elsewhere has all keys at hand in every call.
      beyond: what happens past the training length, in a few words.
    """

    kind = 'scheme'
    registry: ClassVar[dict[str, type['Scheme']]] = {}
    paper: ClassVar[str] = ''
    relative: ClassVar[bool] = False
    sees_length: ClassVar[bool] = False
    pairwise: ClassVar[bool] = False
    beyond: ClassVar[str] = ''

    @property
    def in_tiles(self) -> bool:
        """Whether attention may go along the keys in tiles: scores are a product, of queries and
        keys that were turned once for all, plus at most what is `pairwise`."""
        own = hooks(type(self))
        return 'scores' not in own and (self.pairwise or not {'bias', 'mask', 'gather'} & {*own})

    def check_fit(self, dims: Dims, numbers: range) -> None:
        """Raises ValueError where this scheme cannot serve such a model, or these position
        numbers: `range(length)`, unless another scheme of a chain gives others."""

    def reach(self, numbers: range) -> range:
        """Which numbers `positions` may give where it is given these."""
        return numbers

    def at(self, dims: Dims, length: int) -> 'Scheme':
        """The same scheme for texts of one length, with what is constant there worked out.

        Schemes that then differ in numbers alone are one program, however they were written:
        rotations under any scaling of their frequencies are.
        """
        return within(self, lambda inside: inside.at(dims, length))

    def deterministic(self) -> 'Scheme':
        """The same scheme as it is without a key: nothing random, also in calls with one."""
        return within(self, lambda inside: inside.deterministic())

    def init(self, key: jax.Array, dims: Dims) -> Params:
        """Learned parameters, a dict of arrays; {} where nothing is learned."""
        return {}

    def positions(self, pos_BT, tokens_BT, length_B, key):
        """Position numbers instead of 0, 1, 2, ...; one of them must not depend on later tokens.

        `length_B` is as in Context; `key` is None when nothing may be random. Under cached decoding
        the tokens are all those so far, with anything in the places that are still to come.
        """
        return pos_BT

    def embed(self, params: Params, x_BTD, ctx: Context):
        """The input of the first layer; the tokens are the queries of `ctx`."""
        return x_BTD

    def qk(self, params: Params, q_BQHK, k_BSHK, ctx: Context):
        """Queries and keys before they are rounded for their product; both may change their last
        dimension together."""
        return q_BQHK, k_BSHK

    def bias(self, params: Params, q_BQHK, k_BSHK, ctx: Context):
        """What is added to the scaled scores: float32 (B|1, H|1, Q, S), or None.

        Queries and keys are as projected: no scheme's `qk` has touched them.
        """
        return None

    def columns(self, params: Params, ctx: Context):
        """The same bias as a product, for a fused kernel, which takes no other; None if it is none.

        Columns in float32 of queries (B|1, Q, H|1, C) and keys (B|1, S, H|1, C), whose product is
        the bias up to a number for each query, which the softmax forgets. Asked for under causal
        attention by positions that rise, of a scheme that has a bias alone.
        """
        return None

    def mask(self, ctx: Context):
        """Which keys may be seen, boolean (B|1, H|1, Q, S), or None; causality is the model's."""
        return None

    def gather(self, params: Params, weights_BHQS, ctx: Context):
        """What is added to the mixture of values: (B, Q, H, K), or None; linear in the weights."""
        return None

    def scores(self, params: Params, q_BQHK, k_BSHK, ctx: Context):
        """Scores (B, H, Q, S) in float32: qk's q.k / sqrt(K), plus bias; to override if no sum."""
        s_BHQS = dot_scores(*self.qk(params, q_BQHK, k_BSHK, ctx), ctx)
        b_BHQS = self.bias(params, q_BQHK, k_BSHK, ctx)
        return s_BHQS if b_BHQS is None else s_BHQS + b_BHQS

    def __or__(self, other: 'Scheme') -> 'Scheme':
        return chain(self, other)


HOOKS = ('positions', 'embed', 'qk', 'bias', 'scores', 'mask', 'gather')


def hooks(cls: type[Scheme]) -> tuple[str, ...]:
    """Names of the hooks a class overrides."""
    return tuple(h for h in HOOKS if getattr(cls, h) is not getattr(Scheme, h))


def scheme(cls: type[Scheme]) -> type[Scheme]:
    """Decorator that registers a scheme under its class name: a frozen dataclass and a pytree."""
    return register(cls)


def within(scheme: Scheme, change: Callable[[Scheme], Scheme]) -> Scheme:
    """The scheme with each one that it holds changed: parts of a chain, schemes of a mixture."""
    changed = {}
    for field in dataclasses.fields(scheme):
        value = getattr(scheme, field.name)
        if isinstance(value, Scheme):
            changed[field.name] = change(value)
        elif is_variadic(field.type):
            changed[field.name] = tuple(map(change, value))
    return dataclasses.replace(scheme, **changed) if changed else scheme


def parse(words: str) -> Scheme:
    """`rope(theta=5e5)|logn(train_length=32)` as a Scheme; ValueError in one line otherwise."""
    return text.parse(words, Scheme, combine=chain)


def dot_scores(q_BQHK, k_BSHK, ctx: Context):
    """q.k times ctx.scale, (B, H, Q, S), accumulated and returned in float32."""
    q_BQHK, k_BSHK = operands(q_BQHK, k_BSHK, ctx)
    s_BHQS = jnp.einsum('BQHK,BSHK->BHQS', q_BQHK, k_BSHK, preferred_element_type=jnp.float32)
    return s_BHQS * ctx.scale


def operands(q_BQHK, k_BSHK, ctx: Context):
    """Queries and keys as they are multiplied."""
    return (q_BQHK, k_BSHK) if ctx.dtype is None else (
        q_BQHK.astype(ctx.dtype), k_BSHK.astype(ctx.dtype)
    )  # fmt: skip


def distance(ctx: Context) -> jax.Array:
    """Query position minus key position, (B, 1, Q, S), in float32: positive looks back."""
    q_pos, k_pos = ctx.q_pos_BQ[:, None, :, None], ctx.k_pos_BS[:, None, None, :]
    # Subtract before the cast: integers are exact at any size, float32 only below 2^24.
    return (q_pos - k_pos).astype(jnp.float32)


@structured
class Chain(Scheme):
    """Schemes applied in order: their maps compose, biases add, masks intersect.

    Parameters are keyed by part name, so that a part without parameters never changes the tree.
    The model holds every scheme as a Chain, so one part is keyed as it is among several.
    """

    parts: tuple[Scheme, ...] = ()

    @property
    def text(self) -> str:
        return '|'.join(part.text for part in self.parts) or 'none'

    @property
    def relative(self) -> bool:
        return all(part.relative for part in self.parts)

    @property
    def sees_length(self) -> bool:
        return any(part.sees_length for part in self.parts)

    @property
    def in_tiles(self) -> bool:
        return all(part.in_tiles for part in self.parts)

    def _keyed(self):
        """(key, part): the part's name, numbered from the second of that name on."""
        seen: dict[str, int] = {}
        for part in self.parts:
            seen[part.name()] = seen.get(part.name(), 0) + 1
            number = seen[part.name()]
            yield part.name() if number == 1 else f'{part.name()}_{number}', part

    def check(self):
        for part in self.parts:
            part.check()
        owners = [part.text for part in self.parts if 'scores' in hooks(type(part))]
        if len(owners) > 1:
            raise ValueError(f'scheme {self.text}: {" and ".join(owners)} both define the whole '
                             'score; keep one')  # fmt: skip

    def check_fit(self, dims, numbers):
        # Every part is asked about the numbers it will read: parts that give them come first.
        numbering = [part for part in self.parts if 'positions' in hooks(type(part))]
        for part in (*numbering, *(part for part in self.parts if part not in numbering)):
            part.check_fit(dims, numbers)
            numbers = part.reach(numbers)

    def reach(self, numbers):
        for part in self.parts:
            numbers = part.reach(numbers)
        return numbers

    def init(self, key, dims):
        # The key follows the name, not the place: adding a part leaves the others' values alone.
        made = {
            name: part.init(jax.random.fold_in(key, zlib.crc32(name.encode())), dims)
            for name, part in self._keyed()
        }
        return {name: params for name, params in made.items() if params}

    def positions(self, pos_BT, tokens_BT, length_B, key):
        for number, part in enumerate(self.parts):
            part_key = None if key is None else jax.random.fold_in(key, number)
            pos_BT = part.positions(pos_BT, tokens_BT, length_B, part_key)
        return pos_BT

    def embed(self, params, x_BTD, ctx):
        for name, part in self._keyed():
            x_BTD = part.embed(params.get(name, {}), x_BTD, ctx)
        return x_BTD

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        for name, part in self._keyed():
            q_BQHK, k_BSHK = part.qk(params.get(name, {}), q_BQHK, k_BSHK, ctx)
        return q_BQHK, k_BSHK

    def bias(self, params, q_BQHK, k_BSHK, ctx):
        biases = [part.bias(params.get(name, {}), q_BQHK, k_BSHK, ctx)
                  for name, part in self._keyed()]  # fmt: skip
        return _reduce(jnp.add, biases)

    def columns(self, params, ctx):
        columns = [part.columns(params.get(name, {}), ctx) for name, part in self._keyed()]
        return _reduce(_beside, columns)

    def mask(self, ctx):
        return _reduce(jnp.logical_and, [part.mask(ctx) for part in self.parts])

    def gather(self, params, weights_BHQS, ctx):
        gathered = [part.gather(params.get(name, {}), weights_BHQS, ctx)
                    for name, part in self._keyed()]  # fmt: skip
        return _reduce(jnp.add, gathered)

    def scores(self, params, q_BQHK, k_BSHK, ctx):
        owners = {n: p for n, p in self._keyed() if 'scores' in hooks(type(p))}
        if not owners:
            return super().scores(params, q_BQHK, k_BSHK, ctx)
        ((name, owner),) = owners.items()
        others = {n: p for n, p in self._keyed() if n != name}
        # The owner multiplies what the others' qk made of queries and keys; biases see neither.
        turned = q_BQHK, k_BSHK
        for n, part in others.items():
            turned = part.qk(params.get(n, {}), *turned, ctx)
        biases = [p.bias(params.get(n, {}), q_BQHK, k_BSHK, ctx) for n, p in others.items()]
        return _reduce(jnp.add, [owner.scores(params.get(name, {}), *turned, ctx), *biases])


def chain(*schemes: Scheme) -> Scheme:
    """`a|b|...` as one scheme; nested chains are flattened, and parts that do nothing drop out.

    Raises:
      ValueError: two parts that each define the whole score.
    """
    parts = [part for s in schemes for part in as_chain(s).parts]
    parts = [part for part in parts if hooks(type(part))]
    if len(parts) == 1:
        return parts[0]
    if not parts and schemes:
        return Scheme.registry['none']()
    joined = Chain(tuple(parts))
    joined.check()
    return joined


def as_chain(scheme: Scheme) -> Chain:
    """The scheme as the model holds it."""
    return scheme if isinstance(scheme, Chain) else Chain((scheme,))


def _beside(some, others):
    """Columns of two biases, for a product that is the sum of theirs."""

    def joined(a, b):
        shape = jnp.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        return jnp.concatenate(
            [jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (a, b)], axis=-1
        )

    return tuple(map(joined, some, others))


def _reduce(combine, values):
    """`combine` over the values that are there, or None."""
    total = None
    for value in values:
        if value is not None:
            total = value if total is None else combine(total, value)
    return total
