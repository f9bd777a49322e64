"""Schemes by head, against attention written out head by head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import Dims, Scheme, parse
from posjax.schemes.mixtures import heads
from posjax.spec import structured
from tests.cases import MODEL, context
from tests.schemes.test_every import carried, doubled, softmax64
from tests.schemes.test_rope import matrix

EXAMPLES = ['heads(rope, none)', 'heads(first=alibi|window(size=3), second=rope|ssmax)']


@structured
class tripled(Scheme):
    """Queries and keys three times over, and so their scores, for tests of head sizes."""

    def qk(self, params, q_BQHK, k_BSHK, ctx):
        return jnp.concatenate([q_BQHK] * 3, axis=-1), jnp.concatenate([k_BSHK] * 3, axis=-1)


def draw(heads=3, tokens=7, size=4, seed=0):
    q, k, v = np.random.default_rng(seed).normal(size=(3, tokens, heads, size))
    return (q, k, v), [jnp.float32(x)[None] for x in (q, k, v)]


@pytest.mark.parametrize('count', [1, 2, 4])
def test_golden(count):
    (q, k, v), arrays = draw(heads=5)
    scheme = parse(f'heads(rope(theta=30.0)|window(size=3), alibi, {count})')
    got, weights = attend(scheme, {}, *arrays, context(np.arange(7), head_dim=4, heads=5))
    places = np.arange(7)
    back = places[:, None] - places[None, :]
    # The paper's slopes for the 4, 3 or 1 heads that are left.
    slopes = {1: [2**-2, 2**-4, 2**-6, 2**-8], 2: [2**-4, 2**-8, 2**-2], 4: [2**-8]}[count]
    for h in range(5):
        if h < count:
            qr = np.stack([matrix(i, 4, 30.0) @ q[i, h] for i in places])
            kr = np.stack([matrix(i, 4, 30.0) @ k[i, h] for i in places])
            p = softmax64(qr @ kr.T / 2, (back >= 0) & (back < 3))
        else:
            p = softmax64(q[:, h] @ k[:, h].T / 2 - slopes[h - count] * np.abs(back), back >= 0)
        assert p.dtype == np.float64
        np.testing.assert_allclose(weights[0, h], p, atol=2e-6)
        np.testing.assert_allclose(got[0, :, h], p @ v[:, h], atol=3e-6)


def test_hidden_keys_weigh_exactly_nothing_and_gradients_are_finite():
    _, (q, k, v) = draw(heads=2)
    ctx = context(np.arange(7), head_dim=4, heads=2)
    scheme = parse('heads(window(size=1), none)')
    _, weights = attend(scheme, {}, q, k, v, ctx)
    np.testing.assert_array_equal(weights[0, 0], np.eye(7))
    assert (np.tril(weights[0, 1]) > 0).sum() == 28
    grads = jax.grad(lambda q, k: (attend(scheme, {}, q, k, v, ctx)[0] ** 2).sum(), (0, 1))(q, k)
    assert all(np.isfinite(g).all() for g in grads)
    np.testing.assert_array_equal(grads[0][:, :, 0], 0)  # one key seen: nothing to choose


def test_heads_of_different_sizes_stand_side_by_side():
    (q, k, _), (q32, k32, v32) = draw(heads=3)
    scheme, ctx = heads(tripled(), parse('none'), 2), context(np.arange(7), head_dim=4, heads=3)
    _, weights = attend(scheme, {}, q32, k32, v32, ctx)
    for h, times in enumerate((3, 3, 1)):
        p = softmax64(times * (q[:, h] @ k[:, h].T) / 2, np.tril(np.ones((7, 7), bool)))
        np.testing.assert_allclose(weights[0, h], p, atol=5e-6)


@pytest.mark.parametrize('order', [0, 1])
def test_whole_scores_and_values_of_their_heads_alone(order):
    inside = (doubled(), carried()) if order == 0 else (carried(), doubled())
    scheme, (_, (q, k, v)) = heads(*inside), draw(heads=3, size=8)
    params = scheme.init(jax.random.key(0), Dims(24, 3, 8, 2))
    ctx = context(np.arange(7), heads=3)
    got, weights = attend(scheme, params, q, k, v, ctx)
    places = {'first': slice(0, 1), 'second': slice(1, 3)}
    for alone, (name, mine) in zip(inside, places.items(), strict=True):
        own = params[name]['carried'] if isinstance(alone, carried) else {}
        expected, w = attend(alone, own, q[:, :, mine], k[:, :, mine], v[:, :, mine], ctx)
        np.testing.assert_allclose(got[:, :, mine], expected, atol=1e-6)
        np.testing.assert_allclose(weights[:, mine], w, atol=1e-6)


def test_each_scheme_is_made_for_its_own_heads():
    params = parse('heads(ssmax, rope|ssmax(with_bias=True), 3)').init(
        jax.random.key(0), Dims(40, 5, 8, 2)
    )
    assert params['first']['ssmax']['scale'].shape == (2, 3)
    assert params['second']['ssmax']['bias'].shape == (2, 2)


def test_mixtures_inside_mixtures():
    scheme = parse('every(2, heads(window(size=1), none), heads(none, window(size=1)))')
    _, (q, k, v) = draw(heads=2)
    for layer in range(2):
        ctx = context(np.arange(7), head_dim=4, heads=2)._replace(layer=layer)
        _, weights = attend(scheme, {}, q, k, v, ctx)
        np.testing.assert_array_equal(weights[0, layer], np.eye(7))
        assert (np.tril(weights[0, 1 - layer]) > 0).sum() == 28


@pytest.mark.parametrize(
    ('text', 'canonical'),
    [
        ('heads(rope, none, 1)', 'heads'),
        ('heads(alibi|rope, none)', 'heads(first=alibi|rope)'),
        ('heads(count=3, second=every(2))', 'heads(second=every(n=2), count=3)'),
    ],
)
def test_canonical_text(text, canonical):
    assert parse(text).text == canonical
    assert parse(canonical) == parse(text)


def test_what_it_declares_is_what_its_schemes_declare():
    assert parse('heads(rope, alibi)').relative
    assert not parse('heads(rope|ssmax, none)').relative
    assert not parse('heads(rope, ssmax)').relative
    assert parse('heads(logn_plain, rope)').sees_length
    assert parse('heads(rope, logn_plain)').sees_length
    assert not parse('heads(rope, alibi)').sees_length


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('heads(count=0)', 'count=0 should be at least 1'),
        ('heads(rope, learned)', r'learned changes embeddings.*as heads\(...\)\|learned'),
        ('heads(rope|randomised, none)', 'randomised changes position numbers'),
    ],
)
def test_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        parse(text)
    assert '\n' not in str(error.value)


def test_inner_schemes_are_fitted_to_their_own_heads():
    parse('heads(alibi(slopes=(0.5,)), none)').check_fit(MODEL.dims, range(8))
    with pytest.raises(ValueError, match='2 slopes for 1 heads'):
        parse('heads(alibi(slopes=(0.5, 0.1)), none)').check_fit(MODEL.dims, range(8))
    with pytest.raises(ValueError, match='count=2 leaves no head of 2 to none; take count from 1'):
        parse('heads(count=2)').check_fit(MODEL.dims, range(8))
