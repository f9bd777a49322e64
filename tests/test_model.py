"""The network itself, without positions."""

import dataclasses
from math import erf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import model as model_lib
from posjax.model import Model
from posjax.scheme import parse
from tests.cases import MODEL, random_params, tokens

NOPE = parse('none')


def reference64(params, toks, m):
    """The same network in float64 numpy, written from its description: pre-norm, no final norm."""
    net = jax.tree.map(lambda x: np.asarray(x, np.float64), params['net'])

    def linear(p, x):
        return x @ p['kernel'] + p['bias']

    def norm(p, x):
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p['scale'] + p['bias']
        )

    def gelu(x):
        return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))

    x = net['embed']['embedding'][np.asarray(toks)]
    size = m.width // m.heads
    for layer in range(m.layers):
        block = net[f'block_{layer}']
        q, k, v = np.split(linear(block['qkv'], norm(block['norm_1'], x)), 3, axis=-1)
        mixed = np.empty_like(x)
        for h in range(m.heads):
            part = slice(h * size, (h + 1) * size)
            s = q[..., part] @ k[..., part].swapaxes(1, 2) / np.sqrt(size)
            s = np.where(np.tril(np.ones(s.shape[1:], bool)), s, -np.inf)
            p = np.exp(s - s.max(-1, keepdims=True))
            mixed[..., part] = p / p.sum(-1, keepdims=True) @ v[..., part]
        x = x + linear(block['proj'], mixed)
        x = x + linear(block['mlp_out'], gelu(linear(block['mlp_in'], norm(block['norm_2'], x))))
    return linear(net['out'], x)


def test_against_float64():
    params = random_params(NOPE)
    expected = reference64(params, tokens(), MODEL)
    got = model_lib.apply(MODEL, params, tokens(), NOPE).logits_BTC
    assert expected.dtype == np.float64 and got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_initial_values_are_those_of_pytorch_layers():
    model = Model(tokens=500, classes=300, layers=1, heads=1, width=128)
    net = model_lib.init(model, NOPE, jax.random.key(0))['net']
    embedding = np.asarray(net['embed']['embedding'])
    assert abs(embedding.mean()) < 0.02 and abs(embedding.std() - 1) < 0.02
    linears = {'qkv': 128, 'proj': 128, 'mlp_in': 128, 'mlp_out': 512}
    for layer, fan_in in [(net['block_0'][n], f) for n, f in linears.items()] + [(net['out'], 128)]:
        for leaf in (layer['kernel'], layer['bias']):
            bound = fan_in**-0.5
            assert 0.9 * bound < np.abs(leaf).max() <= bound
            # A uniform distribution has a standard deviation of bound / sqrt(3).
            assert np.std(leaf) == pytest.approx(bound / np.sqrt(3), rel=0.15)
    assert (net['block_0']['norm_1']['scale'] == 1).all()
    assert (net['block_0']['norm_1']['bias'] == 0).all()


def test_the_founding_network_has_its_size():
    model = Model(tokens=16, classes=16)
    params = model_lib.init(model, NOPE, jax.random.key(0))
    layer = (64 * 192 + 192) + (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64) + 4 * 64
    assert sum(x.size for x in jax.tree.leaves(params)) == 2 * layer + 16 * 64 + 64 * 16 + 16


def test_attention_weights_are_returned_per_layer_and_head():
    out = model_lib.apply(MODEL, random_params(NOPE), tokens(), NOPE, weights=True)
    w = np.asarray(out.weights_LBHTS)
    assert w.shape == (2, 3, 2, 9, 9)
    np.testing.assert_allclose(w.sum(-1), 1, atol=1e-5)
    assert (np.triu(w, 1) == 0).all()


def test_bidirectional_nope_is_a_function_of_a_bag():
    model = dataclasses.replace(MODEL, causal=False)
    params, toks = random_params(NOPE), tokens()
    plain = model_lib.apply(model, params, toks, NOPE).logits_BTC
    back = model_lib.apply(model, params, toks[:, ::-1], NOPE).logits_BTC
    # Sums over keys run in another order, and logits reach 40.
    np.testing.assert_allclose(back[:, ::-1], plain, atol=2e-4)


@pytest.mark.parametrize('text', ['none', 'rope', 'sinusoidal'])
def test_bfloat16_keeps_parameters_and_logits_in_float32(text):
    scheme, model = parse(text), dataclasses.replace(MODEL, dtype='bfloat16')
    params = model_lib.init(model, scheme, jax.random.key(0))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype('float32')}
    assert model_lib.apply(model, params, tokens(), scheme).logits_BTC.dtype == jnp.float32
