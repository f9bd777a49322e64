"""Different schemes in different layers, or in different heads.

    every(4, rope|chunks(size=8192), none)      layers 1, 2, 3 | 4 of four
    heads(window(size=8), none, count=2)        heads 1, 2 | the rest

The schemes inside may be chains and mixtures again. They act where layers and heads differ: on
queries and keys, scores, visibility and values. Embeddings and position numbers are the same for
all, so schemes that change these are chained outside: `every(2, rope, none)|shift(by=3)`.

A mixture defines the whole score (its schemes may), so a chain holds one: to mix by layers and by
heads, put one inside the other.
"""

import dataclasses
import zlib

import jax
import jax.numpy as jnp

from posjax.scheme import Chain, Dims, Params, Scheme, as_chain, hooks, scheme
from posjax.schemes.none import none
from posjax.schemes.rope import rope


def _check_inside(owner: Scheme, inside: Scheme) -> None:
    """Raises ValueError where a scheme acts outside layers and heads."""
    whole = as_chain(inside)
    whole.check()
    for part in whole.parts:
        for hook, what in (('positions', 'position numbers'), ('embed', 'embeddings')):
            if hook in hooks(type(part)):
                raise ValueError(
                    f'scheme {owner.name()}: {part.text} changes {what}, which all layers and '
                    f'heads share; chain it outside, as {owner.name()}(...)|{part.text}'
                )


def _init(key, inside: dict[str, tuple[Scheme, Dims]]) -> Params:
    """Parameters by field name; schemes without any leave no trace."""
    made = {
        name: as_chain(part).init(jax.random.fold_in(key, zlib.crc32(name.encode())), dims)
        for name, (part, dims) in inside.items()
    }
    return {name: params for name, params in made.items() if params}


@scheme
class every(Scheme):
    """Another scheme in every n-th layer.

        layer l, from 0, has `other` where (l+1) mod n = 0, and `scheme` elsewhere

    as in Llama 4 and SmolLM3, whose every fourth layer has no position (n=4 with rope and none).

    Fields:
      n: layers from one `other` to the next, 2 to the number of layers.
      scheme: of most layers.
      other: of layers n, 2n, ..., counted from 1.

    Past the training length: as its schemes; layers without rotations carry what is far.
    """

    paper = 'Yang et al. 2025, arXiv:2501.18795; Meta 2025 (Llama 4, iRoPE)'
    beyond = 'as its schemes'

    n: int = 4
    scheme: Scheme = rope()
    other: Scheme = none()

    @property
    def relative(self) -> bool:
        return self.scheme.relative and self.other.relative

    @property
    def sees_length(self) -> bool:
        return self.scheme.sees_length or self.other.sees_length

    def check(self):
        self.require('n', self.n >= 2, 'at least 2 (with 1, no layer has `scheme`)')
        _check_inside(self, self.scheme)
        _check_inside(self, self.other)

    def check_fit(self, dims, numbers):
        if self.n > dims.layers:
            raise ValueError(
                f'scheme {self.text}: n={self.n} leaves no layer of {dims.layers} to '
                f'{self.other.text}; take n from 2 to the number of layers'
            )
        self.scheme.check_fit(dims, numbers)
        self.other.check_fit(dims, numbers)

    def init(self, key, dims):
        return _init(key, {'scheme': (self.scheme, dims), 'other': (self.other, dims)})

    def _of(self, layer: int, params: Params) -> tuple[Chain, Params]:
        """The scheme of a layer, and its parameters."""
        name = 'other' if (layer + 1) % self.n == 0 else 'scheme'
        return as_chain(getattr(self, name)), params.get(name, {})

    def scores(self, params, q_BQHK, k_BSHK, ctx):
        inside, own = self._of(ctx.layer, params)
        return inside.scores(own, q_BQHK, k_BSHK, ctx)

    def mask(self, ctx):
        inside, _ = self._of(ctx.layer, {})
        return inside.mask(ctx)

    def gather(self, params, weights_BHQS, ctx):
        inside, own = self._of(ctx.layer, params)
        return inside.gather(own, weights_BHQS, ctx)


@scheme
class heads(Scheme):
    """One scheme in the first heads, and another in the rest.

        head h, from 0, has `first` where h < count, and `second` elsewhere

    in every layer. Each scheme acts as in a model of as many heads as it is given: the slopes of
    alibi are the paper's for that number. Jelassi et al.'s Hard-ALiBi gives some heads a window and
    the others nothing, as `heads(window(size=8), none)` does for one window.

    Fields:
      first: of heads 0, ..., count - 1.
      second: of the other heads.
      count: how many heads have `first`, 1 to the number of heads less one.

    Past the training length: each head as its scheme.
    """

    paper = 'Jelassi et al. 2024 (Hard-ALiBi), arXiv:2402.01032'
    beyond = 'as its schemes'

    first: Scheme = rope()
    second: Scheme = none()
    count: int = 1

    @property
    def relative(self) -> bool:
        return self.first.relative and self.second.relative

    @property
    def sees_length(self) -> bool:
        return self.first.sees_length or self.second.sees_length

    def check(self):
        self.require('count', self.count >= 1, 'at least 1 (with 0, all heads have `second`)')
        _check_inside(self, self.first)
        _check_inside(self, self.second)

    def check_fit(self, dims, numbers):
        if self.count >= dims.heads:
            raise ValueError(
                f'scheme {self.text}: count={self.count} leaves no head of {dims.heads} to '
                f'{self.second.text}; take count from 1 to the number of heads less one'
            )
        for inside, own_dims in self._sized(dims).values():
            inside.check_fit(own_dims, numbers)

    def at(self, dims, length):
        made = {name: s.at(own_dims, length) for name, (s, own_dims) in self._sized(dims).items()}
        return dataclasses.replace(self, **made)

    def init(self, key, dims):
        return _init(key, self._sized(dims))

    def _sized(self, dims: Dims) -> dict[str, tuple[Scheme, Dims]]:
        """Each scheme with the sizes of a model of its heads alone."""
        counts = {'first': self.count, 'second': dims.heads - self.count}
        return {
            name: (getattr(self, name), dims._replace(heads=count, width=count * dims.head_dim))
            for name, count in counts.items()
        }

    def _each(self, params: Params, axis: int, *arrays):
        """For each scheme: it, its parameters, and its heads of the arrays."""
        split = zip(*(jnp.split(x, [self.count], axis=axis) for x in arrays), strict=True)
        for name, own in zip(('first', 'second'), split, strict=True):
            yield as_chain(getattr(self, name)), params.get(name, {}), *own

    def scores(self, params, q_BQHK, k_BSHK, ctx):
        scored = [
            inside.scores(own, q, k, ctx._replace(heads=q.shape[2]))
            for inside, own, q, k in self._each(params, 2, q_BQHK, k_BSHK)
        ]
        return jnp.concatenate(scored, axis=1)

    def mask(self, ctx):
        counts = (self.count, ctx.heads - self.count)
        seen = [
            as_chain(inside).mask(ctx._replace(heads=count))
            for inside, count in zip((self.first, self.second), counts, strict=True)
        ]
        if all(part is None for part in seen):
            return None
        shape = (ctx.q_index_Q.size, ctx.k_index_S.size)
        seen = [jnp.ones((1, 1, *shape), bool) if part is None else part for part in seen]
        batch = max(part.shape[0] for part in seen)
        return jnp.concatenate(
            [
                jnp.broadcast_to(part, (batch, n, *shape))
                for part, n in zip(seen, counts, strict=True)
            ],
            axis=1,
        )

    def gather(self, params, weights_BHQS, ctx):
        gathered = [
            (inside.gather(own, weights, ctx._replace(heads=weights.shape[1])), weights.shape[1])
            for inside, own, weights in self._each(params, 1, weights_BHQS)
        ]
        like = next((values for values, _ in gathered if values is not None), None)
        if like is None:
            return None
        batch, queries, _, size = like.shape
        filled = [
            jnp.zeros((batch, queries, count, size), like.dtype) if values is None else values
            for values, count in gathered
        ]
        return jnp.concatenate(filled, axis=2)
