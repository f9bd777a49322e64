"""Fused attention: which schemes it serves, that it is then exact, and what the kernel is given.

The kernel is CUDA's; here JAX's own implementation of the same call stands in for it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import fused, outcome, plan, sweep
from posjax import model as model_lib
from posjax.attention import attend
from posjax.config import ConfigError, default
from posjax.scheme import Dims, Scheme, as_chain, chain, parse
from posjax.taxonomy import example
from tests.cases import MODEL, context, random_params, tokens
from tests.test_training import make

DIMS = Dims(width=32, heads=2, head_dim=16, layers=2)
FUSED = sorted(
    name
    for name, cls in Scheme.registry.items()
    if fused.obstacle(example(cls), DIMS, 'bfloat16') is None
)


def drawn(length, dtype='float32', head_dim=16):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(1, length, 2, head_dim)), dtype) for _ in range(3)]


def stand_in(*args):
    # JAX's own implementation mixes dtypes, which these tests otherwise refuse.
    with jax.numpy_dtype_promotion('standard'):
        return fused.attend(*args, implementation='xla')


def both(scheme, qkv, ctx, params=None):
    """The mixture, fused and plain."""
    scheme = as_chain(scheme)
    if params is None:
        params = scheme.init(jax.random.key(0), DIMS)
    return stand_in(scheme, params, *qkv, ctx), attend(scheme, params, *qkv, ctx)[0]


def test_which_schemes_it_serves():
    assert {'none', 'learned', 'sinusoidal', 'rope', 'logn', 'alibi'} <= set(FUSED)
    assert not {'t5', 'fire', 'cope_contextual', 'window', 'shaw', 'xpos'} & set(FUSED)


@pytest.mark.parametrize('name', FUSED)
def test_what_it_serves_it_serves_exactly(name):
    got, expected = both(example(Scheme.registry[name]), drawn(70), context(range(70), head_dim=16))
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize(
    'text',
    ['alibi(slopes=(0.3, 0.0))|rope', 'alibi|alibi', 'alibi|logn(train_length=20)',
     'learned(max_length=80)|random_offset(max_offset=8)|rope'],
)  # fmt: skip
def test_chains_as_well(text):
    scheme = parse(text)
    assert fused.obstacle(scheme, DIMS, 'bfloat16') is None
    got, expected = both(scheme, drawn(70), context(range(70), head_dim=16))
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_gradients_of_slopes_pass_through_the_columns():
    qkv, ctx = drawn(70), context(range(70), head_dim=16)

    def loss(slopes, place):
        scheme = Scheme.registry['alibi'](slopes=tuple(slopes))
        return (both(scheme, qkv, ctx)[place] ** 2).sum()

    got, expected = (jax.grad(loss)(jnp.array([0.3, 0.05]), place) for place in (0, 1))
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    assert np.abs(expected).min() > 1e-3


def test_in_bfloat16_far_positions_cost_no_digits():
    """Slopes that are no power of two, at 4,000 tokens: a column of positions in bfloat16, and not
    split, would be off by up to eight."""
    scheme, ctx = parse('alibi(slopes=(0.3, 0.007))'), context(range(4000), head_dim=16)
    exact = both(scheme, drawn(4000), ctx)[1]
    error = [float(jnp.abs(x - exact).max()) for x in both(scheme, drawn(4000, 'bfloat16'), ctx)]
    assert error[0] < 1.3 * error[1] < 0.05, error


def test_pieces_add_up_and_are_exact_in_bfloat16():
    x = jnp.float32([0.0, 1 / 3, -65_535, 2**24 - 1, 1e-20])
    pieces = jax.jit(fused._pieces)(x)
    np.testing.assert_array_equal(sum(np.float64(p) for p in pieces), np.float64(x))
    for piece in pieces:
        np.testing.assert_array_equal(piece.astype(jnp.bfloat16).astype(jnp.float32), piece)


@pytest.mark.parametrize(
    ('text', 'dims', 'dtype', 'why'),
    [
        ('rope|t5', DIMS, 'bfloat16', 'the bias of t5 is no product of columns'),
        ('rope|window(size=4)', DIMS, 'bfloat16', 'window has a hook of its own for mask'),
        ('alibi', DIMS._replace(causal=False), 'bfloat16', 'under causal attention alone'),
        ('alibi|random_offset(max_offset=8)', DIMS, 'bfloat16', 'of rising positions alone'),
        ('rope', DIMS, 'float32', 'model.dtype is float32'),
        ('rope', DIMS._replace(head_dim=512), 'bfloat16', '512 dims a head are more than 128'),
        ('pope', DIMS._replace(head_dim=72), 'bfloat16', '144 dims a head are more than 128'),
        ('alibi|alibi', DIMS._replace(head_dim=120), 'bfloat16', '132 dims a head are more than'),
    ],
)
def test_what_stands_in_the_way(text, dims, dtype, why):
    assert why in fused.obstacle(parse(text), dims, dtype)


@pytest.fixture
def given(monkeypatch):
    """As if the kernel were here: what it is given, each time."""
    calls, real = [], jax.nn.dot_product_attention

    def kernel(q, k, v, *, scale, is_causal, implementation):
        calls.append((q, k, v, is_causal, implementation))
        with jax.numpy_dtype_promotion('standard'):
            return real(q, k, v, scale=scale, is_causal=is_causal, implementation='xla')

    monkeypatch.setattr(jax.nn, 'dot_product_attention', kernel)
    monkeypatch.setattr(fused, 'available', lambda: True)
    return calls


def logits(scheme, attention, **kwargs):
    model = dataclasses.replace(MODEL, dtype='bfloat16', attention=attention)
    return model_lib.apply(model, random_params(scheme), tokens(), scheme, **kwargs).logits_BTC


@pytest.mark.parametrize('text', ['none', 'rope', 'alibi', 'pope'])
def test_the_model_hands_it_what_it_can_take(text, given):
    scheme = parse(text)
    got = logits(scheme, 'fused')
    assert len(given) == MODEL.layers
    for *rows, causal, implementation in given:
        assert {x.dtype for x in rows} == {jnp.dtype('bfloat16')}
        assert len({x.shape for x in rows}) == 1 and rows[0].shape[-1] % 8 == 0
        assert causal and implementation == 'cudnn'
    np.testing.assert_allclose(got, logits(scheme, 'plain'), atol=0.05)
    assert len(given) == MODEL.layers, 'plain attention took the kernel'


def test_padding_on_the_right_needs_no_mask(given):
    scheme, length_B = parse('rope'), jnp.array([9, 4, 7])
    got = logits(scheme, 'fused', unpadded_B=length_B)
    assert len(given) == MODEL.layers
    expected = logits(scheme, 'plain', valid_BT=jnp.arange(9)[None] < length_B[:, None])
    for row, length in enumerate(length_B):
        np.testing.assert_allclose(got[row, :length], expected[row, :length], atol=0.05)


def test_masks_caches_weights_and_other_schemes_are_attended_to_in_plain_jax(given):
    scheme, model = parse('rope'), dataclasses.replace(MODEL, dtype='bfloat16', attention='fused')
    logits(scheme, 'fused', valid_BT=jnp.ones(tokens().shape, bool))
    logits(scheme, 'fused', cache=model_lib.empty_cache(model, 3, 20))
    out = model_lib.apply(model, random_params(scheme), tokens(), scheme, weights=True)
    assert out.weights_LBHTS is not None
    logits(parse('t5'), 'fused')
    assert not given


def asking(*texts, attention='fused'):
    runs = [make(text) for text in texts]
    model = dataclasses.replace(runs[0].model, attention=attention, dtype='bfloat16')
    return sweep.group([dataclasses.replace(run, model=model) for run in runs])


def test_the_choice_is_told(given):
    lines = outcome.attention(asking('none', 'rope', 't5', 'rope(theta=5.0)'))
    assert lines == [
        'attention is fused for none, rope, rope(theta=5.0)',
        'attention is plain for t5: the bias of t5 is no product of columns',
    ]
    assert outcome.attention(asking('rope', attention='plain')) == []


def test_where_there_is_no_such_gpu_it_is_plain():
    assert outcome.attention(asking('rope')) == ['attention is plain: fused needs a GPU with CUDA']
    np.testing.assert_array_equal(logits(parse('rope'), 'fused'), logits(parse('rope'), 'plain'))


@pytest.mark.parametrize(
    ('attention', 'data', 'message'),
    [('flash', 1, "config.model.attention='flash'; known: fused, plain"),
     ('fused', 2, 'one kernel on one device; set config.mesh.data=2 to 1')],
)  # fmt: skip
def test_what_cannot_be_is_refused(attention, data, message):
    config = default()
    config.model.attention, config.mesh.data = attention, data
    with pytest.raises(ConfigError, match=message):
        plan.runs(config)


def test_columns_of_a_chain_are_those_of_its_parts():
    ctx = context(range(5))
    one, other = parse('alibi(slopes=(0.5, 1.0))'), parse('alibi(slopes=(2.0, 0.25))')
    q_BQHC, k_BSHC = as_chain(chain(one, other)).columns({}, ctx)
    s_BHQS = jnp.einsum('bqhc,bshc->bhqs', jnp.broadcast_to(q_BQHC, (1, 5, 2, 2)),
                        jnp.broadcast_to(k_BSHC, (1, 5, 2, 2)))  # fmt: skip
    np.testing.assert_array_equal(s_BHQS[0, :, 0], np.outer([2.5, 1.25], np.arange(5)))
