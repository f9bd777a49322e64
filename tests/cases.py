"""A tiny model with random parameters, and contexts, for tests of schemes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from posjax import model as model_lib
from posjax.model import Model
from posjax.scheme import Context, parse

# Small and awkward: two heads, a length that no block size divides.
MODEL = Model(tokens=11, classes=5, layers=2, heads=2, width=16, mlp=2)
LENGTH = 9


# One program per structure and shape, shared by all laws.
apply = jax.jit(model_lib.apply, static_argnames=('model', 'weights'))


@functools.lru_cache
def fresh_net(model, seed):
    return jax.jit(model_lib.init_net, static_argnums=0)(model, jax.random.key(seed))


@functools.lru_cache
def random_params_of(text, model, seed):
    net = fresh_net(model, seed)
    params = model_lib.with_scheme(model, net, parse(text), jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + 0.5 * rng.normal(size=x.shape).astype(x.dtype), params)


def random_params(scheme, model=MODEL, seed=0):
    """Parameters off their initial values: many schemes start where they do nothing."""
    return random_params_of(scheme.text, model, seed)


def tokens(batch=3, length=LENGTH, seed=1):
    return jax.random.randint(jax.random.key(seed), (batch, length), 0, MODEL.tokens)


def context(
    q_pos, k_pos=None, length=None, head_dim=8, heads=2, causal=True, valid=None
) -> Context:
    """A context for one sequence with the given position numbers."""
    q_pos = jnp.asarray(q_pos)
    k_pos = q_pos if k_pos is None else jnp.asarray(k_pos)
    return Context(
        q_pos[None],
        k_pos[None],
        jnp.arange(q_pos.size),
        jnp.arange(k_pos.size),
        None if valid is None else jnp.asarray(valid)[None],
        causal,
        jnp.full((1,), k_pos.size if length is None else length),
        layer=0,
        heads=heads,
        scale=head_dim**-0.5,
    )
