"""The transformer. The only file that imports Flax.

A causal (or bidirectional) pre-norm stack without a final norm, with an untied output layer. It
knows no scheme: the scheme and its parameters arrive at call time, so one set of weights can be
asked under many schemes. `params = {'net': ..., 'scheme': ...}`.

Shape suffixes: B batch, T tokens, S keys, D width, H heads, K head dim, C classes, L layers.
"""

import dataclasses
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from posjax import fused
from posjax.attention import attend
from posjax.norm import standardised
from posjax.product import product
from posjax.scheme import Chain, Context, Dims, Params, Scheme, as_chain
from posjax.spec import structured


@structured
class Model:
    """Sizes and numerics of a transformer; all of it structure.

    Fields:
      tokens, classes: how many different tokens go in, how many answers come out.
      layers, heads, width: width = heads x head dim.
      mlp: hidden width of the MLP, as a multiple of `width`.
      causal: a token sees only itself and earlier ones.
      dtype: of what is multiplied: operands of linear layers and of attention, keys and values in
        the cache. Sums, parameters and all between products (residuals, norms, softmax, gradients
        of parameters, logits) stay in float32.
      precision: of float32 products on hardware that would round them (TPU, GPU tensor cores).
      block: queries attended to at a time, which bounds memory; 0 does all at once.
      attention: 'plain', by a scheme's hooks in JAX; or 'fused', by one kernel of the GPU's where
        that is exact for the scheme (see fused.py), and plain elsewhere.
    """

    tokens: int
    classes: int
    layers: int = 2
    heads: int = 1
    width: int = 64
    mlp: int = 4
    causal: bool = True
    dtype: Literal['float32', 'bfloat16'] = 'float32'
    precision: Literal['default', 'high', 'highest'] = 'highest'
    block: int = 0
    attention: Literal['plain', 'fused'] = 'plain'

    @property
    def dims(self) -> Dims:
        return Dims(self.width, self.heads, self.width // self.heads, self.layers, self.causal)


class Cache(NamedTuple):
    """Keys and values of earlier tokens, for decoding.

    Keys are kept as projected, before `scheme.qk`, and tokens rather than their positions: a scheme
    whose rotations or positions depend on the current length then decodes exactly as it prefills.
    """

    k_LBSHK: jax.Array
    v_LBSHK: jax.Array
    tokens_BS: jax.Array
    valid_BS: jax.Array
    count: jax.Array


class Output(NamedTuple):
    """Logits (B, T, C) in float32; attention weights (L, B, H, T, S) and cache, if asked for."""

    logits_BTC: jax.Array
    weights_LBHTS: jax.Array | None
    cache: Cache | None


def init(model: Model, scheme: Scheme, key: jax.Array) -> Params:
    """Fresh parameters: linear layers U(+-1/sqrt(fan_in)), embeddings N(0, 1), as in PyTorch."""
    return with_scheme(model, init_net(model, key), scheme, key)


def init_net(model: Model, key: jax.Array) -> Params:
    """The network's part of `init`, which knows no scheme."""
    net_key, _ = jax.random.split(key)
    # Only shapes matter here, and NoPE's hooks ask for no parameters.
    model = dataclasses.replace(model, attention='plain')
    inputs = _inputs(model, jnp.zeros((1, 2), jnp.int32))
    return _Net(model).init(net_key, *inputs, Chain(), {})['params']


def with_scheme(model: Model, net: Params, scheme: Scheme, key: jax.Array) -> Params:
    """What `init` gives, from its network's part."""
    _, scheme_key = jax.random.split(key)
    return {'net': net, 'scheme': as_chain(scheme).init(scheme_key, model.dims)}


def apply(
    model: Model,
    params: Params,
    tokens_BT: jax.Array,
    scheme: Scheme,
    *,
    key: jax.Array | None = None,
    valid_BT: jax.Array | None = None,
    unpadded_B: jax.Array | None = None,
    length: jax.Array | int | None = None,
    cache: Cache | None = None,
    weights: bool = False,
) -> Output:
    """Runs the transformer.

    Args:
      params: from `init`; 'scheme' must hold what `scheme` asks for.
      key: for schemes with random positions; None makes everything deterministic.
      valid_BT: False at padding (left or right). Positions count real tokens only.
      unpadded_B: instead, how many tokens of each sequence come before padding on its right, which
        causal attention then needs no mask for.
      length: what schemes take for the length of the sequence, a number or (B,); by default the
        number of real tokens so far.
      cache: from `empty_cache` or an earlier call; these tokens then follow those.
      weights: also return attention weights (not by blocks).

    Raises:
      ValueError: `unpadded_B` beside `valid_BT` or a cache.
    """
    whole = as_chain(scheme)
    if weights:
        model = dataclasses.replace(model, attention='plain')
    if unpadded_B is not None and (valid_BT is not None or cache is not None):
        raise ValueError('unpadded_B goes with neither valid_BT nor a cache; give valid_BT instead')
    inputs = _inputs(model, tokens_BT, whole, key, valid_BT, unpadded_B, length, cache)
    with jax.default_matmul_precision(model.precision):
        logits, kept, k_LBSHK, v_LBSHK = _Net(model).apply(
            {'params': params['net']}, *inputs, whole, params['scheme'], weights
        )
    if cache is not None:
        cache = inputs[-1]._replace(k_LBSHK=k_LBSHK, v_LBSHK=v_LBSHK)
        cache = cache._replace(count=cache.count + tokens_BT.shape[1])
    return Output(logits, kept, cache)


def is_fused(model: Model, scheme: Scheme) -> bool:
    """Whether a model's attention under a scheme is one kernel on this machine."""
    wanted = model.attention == 'fused' and fused.available()
    return wanted and fused.obstacle(scheme, model.dims, model.dtype) is None


def empty_cache(model: Model, batch: int, max_length: int) -> Cache:
    """Room for `max_length` tokens of `batch` sequences."""
    shape = (model.layers, batch, max_length, model.heads, model.dims.head_dim)
    return Cache(
        jnp.zeros(shape, model.dtype),
        jnp.zeros(shape, model.dtype),
        jnp.zeros((batch, max_length), jnp.int32),
        jnp.zeros((batch, max_length), bool),
        jnp.int32(0),
    )


def _inputs(model, tokens_BT, scheme=None, key=None, valid_BT=None, unpadded_B=None, length=None,
            cache=None):  # fmt: skip
    """Tokens, the first layer's context, and the cache with these tokens in it."""
    batch, queries = tokens_BT.shape
    keys_BS, valid_BS, start = tokens_BT, valid_BT, 0
    if cache is not None:
        start = cache.count
        new_BT = jnp.ones((batch, queries), bool) if valid_BT is None else valid_BT
        cache = cache._replace(
            tokens_BS=jax.lax.dynamic_update_slice(cache.tokens_BS, tokens_BT, (0, start)),
            valid_BS=jax.lax.dynamic_update_slice(cache.valid_BS, new_BT, (0, start)),
        )
        keys_BS, valid_BS = cache.tokens_BS, cache.valid_BS

    k_index_S = jnp.arange(keys_BS.shape[1])
    if unpadded_B is not None:
        # Padding has the last token's position, as below: no scheme is asked beyond the sequence.
        k_pos_BS = jnp.clip(k_index_S[None], 0, jnp.maximum(unpadded_B[:, None] - 1, 0))
        length_B = unpadded_B
        valid_BS = None if model.causal else k_index_S[None] < unpadded_B[:, None]
    elif valid_BS is None:
        k_pos_BS, length_B = k_index_S[None], jnp.full((1,), queries)
    else:
        k_pos_BS = jnp.maximum(jnp.cumsum(valid_BS, axis=1) - 1, 0)
        length_B = valid_BS.sum(axis=1)
    if length is not None:
        length_B = jnp.broadcast_to(jnp.asarray(length), (batch,))
    if scheme is not None:
        k_pos_BS = scheme.positions(k_pos_BS, keys_BS, length_B, key)

    q_pos_BQ = jax.lax.dynamic_slice_in_dim(k_pos_BS, start, queries, axis=1)
    q_index_Q = start + jnp.arange(queries)
    ctx = Context(
        q_pos_BQ,
        k_pos_BS,
        q_index_Q,
        k_index_S,
        valid_BS,
        model.causal,
        length_B,
        layer=0,
        heads=model.heads,
        scale=model.dims.head_dim**-0.5,
        dtype=model.dtype,
    )
    return tokens_BT, ctx, cache


class _Net(nn.Module):
    model: Model

    @nn.compact
    def __call__(self, tokens_BT, ctx, cache, scheme, scheme_params, weights=False):
        m = self.model
        embed = nn.Embed(m.tokens, m.width, embedding_init=nn.initializers.normal(1.0),
                         name='embed')  # fmt: skip
        x_BTD = scheme.embed(scheme_params, embed(tokens_BT), ctx)
        kept, keys, values = [], [], []
        for layer in range(m.layers):
            ctx = ctx._replace(layer=layer)
            past = None if cache is None else (cache.k_LBSHK[layer], cache.v_LBSHK[layer],
                                               cache.count)  # fmt: skip
            x_BTD, w_BHTS, k_BSHK, v_BSHK = _Block(m, name=f'block_{layer}')(
                x_BTD, ctx, past, scheme, scheme_params
            )
            kept.append(w_BHTS)
            keys.append(k_BSHK)
            values.append(v_BSHK)
        logits_BTC = _Linear(m, m.classes, name='out')(x_BTD)
        return (
            logits_BTC,
            jnp.stack(kept) if weights and kept[0] is not None else None,
            *((None, None) if cache is None else (jnp.stack(keys), jnp.stack(values))),
        )


class _Block(nn.Module):
    model: Model

    @nn.compact
    def __call__(self, x_BTD, ctx, past, scheme, scheme_params):
        m = self.model
        heads = (*x_BTD.shape[:-1], 3, m.heads, m.dims.head_dim)
        qkv = _Linear(m, 3 * m.width, name='qkv')(_Norm(name='norm_1')(x_BTD)).reshape(heads)
        # By a split: its gradient is one array of three parts, not the sum of three padded arrays.
        q_BTHK, k_BSHK, v_BSHK = (part[..., 0, :, :] for part in jnp.split(qkv, 3, axis=-3))
        q_BTHK, k_BSHK, v_BSHK = (
            _rounded(q_BTHK, m.dtype), _rounded(k_BSHK, m.dtype), v_BSHK.astype(m.dtype)
        )  # fmt: skip
        if past is not None:
            k_old, v_old, count = past
            k_new = k_BSHK.astype(m.dtype)
            k_BSHK = jax.lax.dynamic_update_slice(k_old, k_new, (0, count, 0, 0))
            v_BSHK = jax.lax.dynamic_update_slice(v_old, v_BSHK, (0, count, 0, 0))
        k_float_BSHK = k_BSHK.astype(jnp.float32)
        parts = scheme, scheme_params, q_BTHK, k_float_BSHK, v_BSHK, ctx
        if past is None and ctx.valid_BS is None and is_fused(m, scheme):
            mixed_BTHK, w_BHTS = fused.attend(*parts, implementation='cudnn'), None
        else:
            mixed_BTHK, w_BHTS = attend(*parts, m.block)
        x_BTD = x_BTD + _Linear(m, m.width, name='proj')(mixed_BTHK.reshape(x_BTD.shape))
        hidden = _gelu(_Linear(m, m.mlp * m.width, name='mlp_in')(_Norm(name='norm_2')(x_BTD)))
        x_BTD = x_BTD + _Linear(m, m.width, name='mlp_out')(hidden)
        return x_BTD, w_BHTS, k_BSHK, v_BSHK


class _Linear(nn.Module):
    """x W + b in float32, with W and b from U(+-1/sqrt(fan_in)).

    Batch and time are folded into one axis first: XLA on CPUs transposes three-dimensional operands
    of weight gradients by copying them, which doubled the time of a training step.
    """

    model: Model
    features: int

    @nn.compact
    def __call__(self, x):
        fan_in = x.shape[-1]

        def uniform(key, shape):
            return jax.random.uniform(key, shape, minval=-(fan_in**-0.5), maxval=fan_in**-0.5)

        kernel = self.param('kernel', uniform, (fan_in, self.features))
        bias = self.param('bias', uniform, (self.features,))
        y = product(x.reshape(-1, fan_in), kernel, self.model.dtype, self.model.precision)
        return (y + bias[None]).reshape(*x.shape[:-1], self.features)


def _rounded(x, dtype):
    """Float32 with no more digits than `dtype` has: keys are then those that a cache of `dtype`
    holds, and what schemes do to them is in float32, the gradient as well. Casts there and back
    would do the same, were XLA not free to leave them out."""
    kind = jnp.finfo(dtype)
    return jax.lax.reduce_precision(x, exponent_bits=kind.nexp, mantissa_bits=kind.nmant)


class _Norm(nn.Module):
    @nn.compact
    def __call__(self, x):
        scale = self.param('scale', nn.initializers.ones, x.shape[-1:])
        bias = self.param('bias', nn.initializers.zeros, x.shape[-1:])
        return standardised(x) * scale[None, None] + bias[None, None]


def _gelu(x):
    """x Phi(x), by erf as in PyTorch. Flax goes by erfc, which keeps more digits far below zero,
    where they are lost in the sum that follows, and makes a step on CPUs a twelfth slower."""
    return 0.5 * x * (1 + jax.lax.erf(x * 0.5**0.5))
