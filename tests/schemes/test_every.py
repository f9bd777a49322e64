"""Schemes by layer, against models that write their layers out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import Dims, Scheme, parse
from posjax.schemes.mixtures import every
from posjax.schemes.rope import rope
from posjax.spec import structured
from tests.cases import MODEL, context
from tests.schemes.test_rope import matrix

EXAMPLES = [
    'every(n=2, scheme=rope, other=alibi)',
    'every(2, rope|chunks(size=4), llama4_temperature(attn_scale=1.0, floor_scale=2))',
]


@structured
class doubled(Scheme):
    """Twice the score, for tests of schemes that define it whole."""

    def scores(self, params, q_BQHK, k_BSHK, ctx):
        return 2 * super().scores(params, q_BQHK, k_BSHK, ctx)


@structured
class carried(Scheme):
    """A learned vector as the value of every head, for tests of values."""

    def init(self, key, dims):
        return {'vector': jax.random.normal(key, (dims.heads, dims.head_dim))}

    def gather(self, params, weights_BHQS, ctx):
        return weights_BHQS.sum(axis=-1).swapaxes(1, 2)[..., None] * params['vector'][None, None]


def softmax64(scores, seen):
    p = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    return p / p.sum(-1, keepdims=True)


def test_golden_llama4():
    """Three layers with rotations in chunks, one without position and with a temperature."""
    scheme = parse('every(4, rope(theta=5e5)|chunks(size=3),'
                   ' llama4_temperature(attn_scale=0.5, floor_scale=2))')  # fmt: skip
    no_rope_layers = [1, 1, 1, 0] * 2  # as its config writes it: 1 where there is rope
    q, k, v = np.random.default_rng(0).normal(size=(3, 7, 4))
    places = np.arange(7)
    causal = places[:, None] >= places[None, :]
    for layer, rotates in enumerate(no_rope_layers):
        if rotates:
            qr = np.stack([matrix(i, 4, 5e5) @ q[i] for i in places])
            kr = np.stack([matrix(i, 4, 5e5) @ k[i] for i in places])
            p = softmax64(qr @ kr.T / 2, causal & (places[:, None] // 3 == places[None, :] // 3))
        else:
            factor = 1 + 0.5 * np.log(np.floor((places + 1) / 2) + 1)
            p = softmax64(factor[:, None] * (q @ k.T) / 2, causal)
        expected = p @ v
        assert expected.dtype == np.float64
        arrays = [jnp.float32(x)[None, :, None] for x in (q, k, v)]
        ctx = context(places, head_dim=4)._replace(layer=layer)
        got, _ = attend(scheme, {}, *arrays, ctx)
        np.testing.assert_allclose(got[0, :, 0], expected, atol=3e-6)


def test_smollm3_has_no_position_in_every_fourth_layer():
    q = jnp.ones((1, 3, 1, 4))
    ctx = context([0, 1, 2], head_dim=4)
    nope = parse('none').scores({}, q, q, ctx)
    plain = [
        bool((parse('every').scores({}, q, q, ctx._replace(layer=layer)) == nope).all())
        for layer in range(36)
    ]
    assert plain == [(layer + 1) % 4 == 0 for layer in range(36)]


@pytest.mark.parametrize(
    ('text', 'canonical'),
    [
        ('every', 'every'),
        ('every(4, rope, none)', 'every'),
        ('every(2, alibi)', 'every(n=2, scheme=alibi)'),
        ('every(other=rope(theta=5))', 'every(other=rope(theta=5.0))'),
        ('every(3, rope|alibi, window(2)|ssmax)',
         'every(n=3, scheme=rope|alibi, other=window(size=2)|ssmax)'),
        ('every(2, every(3)|alibi, none|none)', 'every(n=2, scheme=every(n=3)|alibi)'),
        ('every(2)|shift(by=1)', 'every(n=2)|shift(by=1)'),
    ],
)  # fmt: skip
def test_canonical_text(text, canonical):
    assert parse(text).text == canonical
    assert parse(canonical) == parse(text)


def test_parameters_are_kept_apart_by_field_and_part():
    dims = Dims(16, 2, 8, 4)
    params = parse('every(2, ssmax, rope|ssmax(with_bias=True))').init(jax.random.key(0), dims)
    assert {name: set(inside) for name, inside in params.items()} == {
        'scheme': {'ssmax'}, 'other': {'ssmax'},
    }  # fmt: skip
    assert set(params['other']['ssmax']) == {'scale', 'bias'}
    assert parse('every(2, rope, alibi)').init(jax.random.key(0), dims) == {}
    # The values follow the field, not what the other field holds.
    alone = every(2, parse('none'), carried()).init(jax.random.key(0), dims)
    both = every(2, carried(), carried()).init(jax.random.key(0), dims)
    jax.tree.map(np.testing.assert_array_equal, alone['other'], both['other'])
    one, other = (both[name]['carried']['vector'] for name in ('scheme', 'other'))
    assert np.abs(one - other).max() > 0.1


def test_whole_scores_and_values_of_the_layer_alone():
    scheme = every(2, doubled(), carried())
    params = scheme.init(jax.random.key(0), MODEL.dims)
    assert set(params) == {'other'}
    q, k, v = jnp.float32(np.random.default_rng(0).normal(size=(3, 2, 5, 2, 8)))
    for layer, alone in enumerate((doubled(), carried())):
        ctx = context(np.arange(5))._replace(layer=layer)
        got, weights = attend(scheme, params, q, k, v, ctx)
        own = params['other']['carried'] if layer else {}
        expected, expected_weights = attend(alone, own, q, k, v, ctx)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(weights, expected_weights)
        assert np.abs(got - attend(parse('none'), {}, q, k, v, ctx)[0]).max() > 0.1


def test_biases_of_the_chain_are_added_to_the_layer_s_score():
    inside, outside = parse('every(2, alibi, none)|alibi'), parse('alibi|alibi')
    q, k = jnp.float32(np.random.default_rng(0).normal(size=(2, 1, 5, 2, 8)))
    for layer, same in enumerate((outside, parse('alibi'))):
        ctx = context(np.arange(5))._replace(layer=layer)
        np.testing.assert_allclose(
            inside.scores({}, q, k, ctx), same.scores({}, q, k, ctx), atol=1e-6
        )


def test_what_it_declares_is_what_its_schemes_declare():
    assert parse('every(2, rope, alibi)').relative
    assert not parse('every(2, rope, ssmax)').relative
    assert not parse('every(2, rope|ssmax, none)').relative
    assert parse('every(2, rope, logn_plain)').sees_length
    assert parse('every(2, rope|logn_plain, none)').sees_length
    assert not parse('every(2, rope, none)').sees_length


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('every(1)', 'n=1 should be at least 2'),
        ('every(2, rope|shift(by=1), none)',
         r'shift\(by=1\) changes position numbers.*chain it outside, as every\(...\)\|shift'),
        ('every(2, none, learned)', 'learned changes embeddings'),
        ('every(2, none, every(2, sinusoidal, none))', 'sinusoidal changes embeddings'),
        ('every(2)|every(3)', 'both define the whole score'),
        ('every(2, 3)', 'expected name'),
    ],
)  # fmt: skip
def test_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        parse(text)
    assert '\n' not in str(error.value)


def test_inner_schemes_are_checked_and_fitted():
    with pytest.raises(ValueError, match='theta=-1.0 should be positive'):
        every(2, rope(-1.0)).check()
    with pytest.raises(ValueError, match='head_dim=5'):
        parse('every(2, alibi, rope)').check_fit(Dims(5, 1, 5, 2), range(8))
    with pytest.raises(ValueError, match='n=4 leaves no layer of 2 to none; take n from 2'):
        parse('every').check_fit(MODEL.dims, range(8))
    parse('every(2)').check_fit(MODEL.dims, range(8))
