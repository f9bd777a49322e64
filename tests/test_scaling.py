"""Scalings of frequencies against loops in float64, and against each other.

Numbers of published models are in test_interop.py, as transformers computes them.
"""

import dataclasses
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import model as model_lib
from posjax.scaling import Scaling, given, longrope
from posjax.scaling.by_parts import rescaled_beta
from posjax.scheme import Dims, parse
from posjax.schemes.rope import rotate
from tests.cases import MODEL, apply, random_params, tokens

LISTS = 'longrope((1, 1.5, 2, 3), (2, 4, 6, 9.5), original_length=16, factor=4)'


def scaling(text):
    return parse(f'rope(scaling={text})').scaling


def frequencies(text, theta=1e4, dim=64, length=1):
    """(F,) and the attention factor, at one length."""
    freq, factor = scaling(text).frequencies(theta, dim, jnp.full((1,), length))
    return np.asarray(freq).reshape(-1), float(factor)


def close(a, b):
    """Equal up to float32 rounding, measured against the largest value at hand."""
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


# The formulas, one pair at a time.


def base64(theta, dim):
    return [theta ** (-2 * k / dim) for k in range(dim // 2)]


def linear64(theta, dim, s):
    return [f / s for f in base64(theta, dim)]


def ntk64(theta, dim, s):
    return [(theta * s ** (dim / (dim - 2))) ** (-2 * k / dim) for k in range(dim // 2)]


def ntk_su64(theta, dim, s):
    """As Su writes it: digits of a number in a base, each slowed a little more than the last."""
    return [f / s ** (2 * (k + 1) / dim) for k, f in enumerate(base64(theta, dim))]


def by_parts64(theta, dim, s, length, alpha, beta):
    out = []
    for f in base64(theta, dim):
        wavelength = 2 * math.pi / f
        turns = length / wavelength
        gamma = 0.0 if turns < alpha else 1.0 if turns > beta else (turns - alpha) / (beta - alpha)
        out.append((1 - gamma) * f / s + gamma * f)
    return out


def ramp64(theta, dim, length, fast, slow, truncate=True):
    """How much of each pair is interpolated, in the released code."""

    def find(turns):
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = find(fast), find(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    return [min(1, max(0, (k - low) / (high - low))) for k in range(dim // 2)]


def yarn64(theta, dim, s, length, fast=32, slow=1, truncate=True):
    ramp = ramp64(theta, dim, length, fast, slow, truncate)
    return [f / s * r + f * (1 - r) for f, r in zip(base64(theta, dim), ramp, strict=True)]


def by_parts_v1_64(theta, dim, s, length):
    middle = ramp64(theta, dim, length, 1.25, 0.75)
    ends = ramp64(theta, dim, length, 16, 2)
    return [
        (f_linear * m + f_ntk * (1 - m)) * e + f * (1 - e)
        for f, f_linear, f_ntk, m, e in zip(
            base64(theta, dim), linear64(theta, dim, s), ntk64(theta, dim, s), middle, ends,
            strict=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(('theta', 'dim'), [(1e4, 64), (5e5, 22), (30.0, 6)])
@pytest.mark.parametrize('s', [1.0, 4.0, 31.7])
def test_golden(theta, dim, s):
    m = 0.1 * math.log(s) + 1
    expected = {
        f'linear({s})': (linear64(theta, dim, s), 1),
        f'ntk({s})': (ntk64(theta, dim, s), 1),
        f'ntk_su({s})': (ntk_su64(theta, dim, s), 1),
        f'by_parts({s}, 4096)': (by_parts64(theta, dim, s, 4096, 1, 32), 1),
        f'by_parts({s}, 50, 0.5, 7)': (by_parts64(theta, dim, s, 50, 0.5, 7), 1),
        f'by_parts_v1({s}, 2048)': (by_parts_v1_64(theta, dim, s, 2048), 1),
        f'llama3({s}, 8192)': (by_parts64(theta, dim, s, 8192, 1, 4), 1),
        f'yarn_paper({s}, 4096)': (by_parts64(theta, dim, s, 4096, 1, 32), m),
        f'yarn({s}, 4096)': (yarn64(theta, dim, s, 4096), m),
        f'yarn({s}, 32)': (yarn64(theta, dim, s, 32), m),
        f'yarn({s}, 5)': (yarn64(theta, dim, s, 5), m),
        f'yarn({s}, 4096, 16, 2, False)': (yarn64(theta, dim, s, 4096, 16, 2, False), m),
        f'yarn({s}, 4096, mscale=0.707, mscale_all_dim=0.5)': (
            yarn64(theta, dim, s, 4096), (0.0707 * math.log(s) + 1) / (0.05 * math.log(s) + 1)
        ),
        f'yarn({s}, 4096, mscale=0, attn_factor=1.25)': (yarn64(theta, dim, s, 4096), 1.25),
    }  # fmt: skip
    for text, (freq64, factor64) in expected.items():
        freq, factor = frequencies(text, theta, dim)
        assert freq.dtype == np.float32
        # Ends of the ramp over dims, and turns, are float32 too: a few roundings of a difference.
        np.testing.assert_allclose(freq, freq64, rtol=5e-6, err_msg=text)
        assert factor == pytest.approx(factor64, rel=1e-6), text
    assert {text.partition('(')[0] for text in expected} == {
        name for name in Scaling.registry if name not in ('unscaled', 'given')
        and not Scaling.registry[name].sees_length
    }  # fmt: skip


@pytest.mark.parametrize('length', [1, 16, 17, 64])
def test_golden_by_length(length):
    for factor in (1.0, 3.0):
        s = factor * max(length, 16) / 16 - (factor - 1)
        got, attention = frequencies(f'dynamic_ntk({factor}, 16)', length=length)
        np.testing.assert_allclose(got, ntk64(1e4, 64, s), rtol=1e-6)
        assert attention == 1
    got, attention = frequencies(LISTS, dim=8, length=length)
    slower = (2, 4, 6, 9.5) if length > 16 else (1, 1.5, 2, 3)
    np.testing.assert_allclose(got, np.array(base64(1e4, 8)) / slower, rtol=1e-6)
    assert attention == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))


def test_every_sequence_of_a_batch_has_its_own_length():
    freq_BF, _ = scaling('dynamic_ntk(2, 16)').frequencies(1e4, 8, jnp.asarray([8, 64]))
    x, pos = jnp.ones((2, 5, 3, 8)), jnp.arange(5)[None]
    both = rotate(x, pos, freq_BF)
    for row in range(2):
        np.testing.assert_array_equal(both[row], rotate(x[:1], pos, freq_BF[row])[0])
    assert np.abs(both[0] - both[1]).max() > 0.01


@pytest.mark.parametrize('jit', [False, True])
def test_a_factor_of_one_changes_no_bit(jit):
    def of(s):
        return s.scaling.frequencies(s.theta, 64, jnp.full((1,), 4096))

    of = jax.jit(of) if jit else of
    plain, _ = of(parse('rope'))
    for text in ('linear(1)', 'ntk(1)', 'ntk_su(1)', 'dynamic_ntk(1, 4096)', 'by_parts(1, 4096)',
                 'by_parts_v1(1, 4096)', 'llama3(1, 8192)', 'yarn(1, 4096)', 'yarn_paper(1, 4096)',
                 'yarn(1, 4096, mscale=0.707, mscale_all_dim=0.5)'):  # fmt: skip
        freq, factor = of(parse(f'rope(scaling={text})'))
        np.testing.assert_array_equal(np.asarray(freq).reshape(-1), plain, err_msg=text)
        assert factor == 1, text


def test_llama3_is_ntk_by_parts():
    for s, length in ((8, 8192), (32, 8192), (4, 40)):
        np.testing.assert_array_equal(
            frequencies(f'llama3({s}, {length}, 1, 4)', 5e5)[0],
            frequencies(f'by_parts({s}, {length}, 1, 4)', 5e5)[0],
        )


def test_dynamic_ntk_is_ntk_by_the_ratio_of_lengths():
    np.testing.assert_allclose(
        frequencies('dynamic_ntk(1, 32)', length=128)[0], frequencies('ntk(4)')[0], rtol=1e-6
    )


def test_the_ends_of_ntk():
    """The exponent is d/(d-2) with d the dims that turn: alpha 4 on 64 dims is base 41829.37."""
    plain, (slowed, _) = frequencies('unscaled')[0], frequencies('ntk(4)')
    assert slowed[0] == 1
    assert slowed[-1] * 4 == pytest.approx(plain[-1], rel=1e-6)
    assert slowed[1] ** (-64 / 2) == pytest.approx(41829.37, rel=1e-5)
    su = frequencies('ntk_su(4)')[0]
    assert su[-1] * 4 == pytest.approx(plain[-1], rel=1e-6)
    assert su[0] == pytest.approx(4 ** (-2 / 64), rel=1e-6)


def test_interpolation_divides_positions_of_all_pairs():
    angles = 10 * frequencies('linear(4)', dim=8)[0]
    np.testing.assert_allclose(angles, [2.5, 0.25, 0.025, 0.0025], rtol=1e-6)


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones():
    plain = frequencies('unscaled')[0]
    kept = frequencies('yarn(8, 2048)')[0] / plain
    assert kept[0] == 1 and kept[31] == pytest.approx(1 / 8)
    assert (np.diff(kept) <= 1e-7).all()
    # The ramp's end is clamped to d - 1 = 63, not to the last pair 31: it is at 35.
    long = frequencies('yarn(8, 131072)')[0] / plain
    assert long[31] > 1 / 8 + 0.01


def test_the_factor_of_attention_enters_scores_squared_and_once():
    one = jnp.ones((1, 1, 1, 8))
    for text, m in (('yarn(128, 4096)', 1.4852030), ('yarn_paper(128, 4096)', 1.4852030),
                    ('yarn(128, 4096, mscale=0, attn_factor=1.0)', 1.0),
                    ('yarn(40, 4096, mscale=1, mscale_all_dim=1)', 1.0),
                    ('yarn(1, 4096)', 1.0)):  # fmt: skip
        freq, factor = scaling(text).frequencies(1e4, 8, jnp.ones(1, int))
        q, k = (rotate(one, jnp.asarray([[p]]), freq, factor=factor) for p in (7, 7))
        assert float((q * k).sum()) == pytest.approx(8 * m**2, rel=1e-5), text


def test_the_two_yarns_differ_and_most_where_texts_are_short():
    """As published: up to 0.37 of a pair at d = 128 and 4,096 tokens."""

    def gap(dim, length, beta):
        paper = frequencies(f'yarn_paper(1e6, {length}, beta={beta})', dim=dim)[0]
        code = frequencies(f'yarn(1e6, {length}, beta_fast={beta})', dim=dim)[0]
        return np.abs((paper - code) / frequencies('unscaled', dim=dim)[0]).max()

    assert gap(128, 4096, 32) == pytest.approx(0.37, abs=0.01)
    assert gap(64, 2048, 32) == pytest.approx(0.40, abs=0.01)
    assert gap(16, 32, 5) > 0.3


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('linear(0.5)', 'scaling linear: factor=0.5 should be at least 1'),
        ('yarn(0.9, 32)', 'scaling yarn: factor=0.9 should be at least 1'),
        ('longrope((1,), (1,), 8, factor=0.5)', 'factor=0.5 should be at least 1'),
        ('dynamic_ntk(2, 0)', 'original_length=0.0 should be above 1'),
        ('by_parts(4, 32)', r'beta=32.0 turns are more than .* take beta=5.09, which keeps the'),
        ('yarn_paper(4, 201)', r'original_length=201 positions \(201 / 2 pi = 31.99\)'),
        ('llama3(4, 20)', r'high_freq_factor=4.0 turns .* take high_freq_factor=3.18'),
        ('by_parts(4, 4096, 32, 1)', r'alpha=32.0 should be below beta=1.0'),
        ('llama3(4, 4096, 4, 4)', r'low_freq_factor=4.0 should be below high_freq_factor=4.0'),
        (
            'yarn(4, 4096, beta_fast=1, beta_slow=32)',
            'beta_slow=32.0 should be below beta_fast=1.0',
        ),
        ('yarn(4, 4096, beta_slow=0)', 'beta_slow=0.0 should be positive'),
        ('longrope((1, 0), (1, 1), 8)', r'short_factors=\(1.0, 0.0\) should be all positive'),
        ('linear', 'scaling linear needs factor'),
        ('lineer(2)', "unknown scaling 'lineer'; did you mean 'linear'"),
    ],
)
def test_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        scaling(text)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (
            'rope(scaling=ntk(4))',
            'scaling ntk changes the base, and of 2 rotary dims the only pair',
        ),
        ('rope(scaling=dynamic_ntk(4, 8))', 'of 2 rotary dims'),
        ('rope(scaling=by_parts_v1(4, 8))', 'of 2 rotary dims'),
        ('rope(scaling=given(inv_freq=(1, 2)))', 'has 2 frequencies where 2 dims turn; give 1'),
        ('rope(scaling=longrope((1,), (1, 2), 8))', 'long_factors has 2 numbers where 2 dims turn'),
        ('rerope(4.0, scheme=rope(scaling=ntk(4)))', 'of 2 rotary dims'),
    ],
)
def test_what_does_not_fit_a_head_is_refused_before_anything_runs(text, message):
    scheme, dims = parse(text), Dims(2, 1, 2, 1)
    with pytest.raises(ValueError, match=message):
        scheme.check_fit(dims, range(8))
    with pytest.raises(ValueError, match=message):
        scheme.at(dims, 8)
    part = parse('partial_rope(rotary_dim=2, scaling=ntk(4))')
    with pytest.raises(ValueError, match='of 2 rotary dims'):
        part.check_fit(Dims(8, 1, 8, 1), range(8))


def test_the_rescaled_beta_is_the_turns_of_the_fastest_pair():
    assert rescaled_beta(4096) == rescaled_beta(202) == 32
    assert rescaled_beta(32) == pytest.approx(5.0930, abs=1e-4)
    # With it the fastest pair is kept, and the next is not.
    slowed = frequencies(f'by_parts(4, 32, beta={rescaled_beta(32)!r})', dim=16)[0]
    kept = slowed / frequencies('unscaled', dim=16)[0]
    assert kept[0] == pytest.approx(1, rel=1e-6) and kept[1] < 0.9


def test_no_dead_numbers():
    """Each number of each scaling changes a frequency or the factor of attention."""
    texts = ['linear(2)', 'ntk(2)', 'ntk_su(2)', 'dynamic_ntk(2, 16)', 'by_parts(2, 300)',
             'by_parts_v1(2, 300)', 'llama3(2, 300)', 'yarn(2, 300, 9, 1, False, 1, 0.5)',
             'yarn_paper(2, 300)', LISTS, 'given((1, 0.5, 0.2, 0.1))']  # fmt: skip
    tried = {scaling(text).name() for text in texts} | {'unscaled'}
    assert tried == Scaling.registry.keys()
    for text in texts:
        one = scaling(text)
        dim = 8 if text in texts[-2:] else 32
        for field in dataclasses.fields(one):
            value = getattr(one, field.name)
            other = tuple(2.5 * v for v in value) if isinstance(value, tuple) else 2.5 * value + 0.1
            if field.type is bool:
                other = not value
            changed = dataclasses.replace(one, **{field.name: other})
            assert any(
                np.abs(a - b).max() > 1e-6
                for length in (10, 40)
                for a, b in zip(
                    one.frequencies(1e4, dim, jnp.full((1,), length)),
                    changed.frequencies(1e4, dim, jnp.full((1,), length)),
                    strict=True,
                )
            ), (text, field.name)
        assert f'{"":4}Fields:' in type(one).__doc__ and one.paper
        assert all(f'{f.name}:' in type(one).__doc__ for f in dataclasses.fields(one))


def test_numbers_are_data():
    one, other = scaling('yarn(4, 32, 9)'), scaling('yarn(8, 64, 12)')
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.structure(one) != jax.tree.structure(scaling('yarn(4, 32, truncate=False)'))
    for cls in Scaling.registry.values():
        for field in dataclasses.fields(cls):
            assert field.type in (float, bool) or typing.get_origin(field.type) is tuple


@pytest.mark.parametrize('text', ['rope(scaling=dynamic_ntk(1, 16))', f'rope(scaling={LISTS})'])
@pytest.mark.parametrize(('layers', 'length'), [(1, None), (2, 18)])
def test_decoding_equals_prefilling_as_the_text_outgrows_training(text, layers, length):
    """Keys are cached unturned, and turned for the length so far, or for one that is given.

    What deeper layers read of earlier tokens was made at the length of its time, in every cache;
    with a length that is given it is one length.
    """
    scheme, toks, model = parse(text), tokens(length=18), dataclasses.replace(MODEL, layers=layers)
    params = random_params(parse('rope'), model)
    cache = model_lib.empty_cache(model, len(toks), 20)
    out = apply(model, params, toks[:, :16], scheme, cache=cache, length=length)
    for t in (16, 17):
        out = apply(model, params, toks[:, t : t + 1], scheme, cache=out.cache, length=length)
        alone = apply(model, params, toks[:, : t + 1], scheme, length=length).logits_BTC[:, -1:]
        close(out.logits_BTC, alone)
    plain = apply(model, params, toks, parse('rope'), length=length).logits_BTC[:, -1:]
    assert np.abs(alone - plain).max() > 1e-3


def test_methods_factors_and_lengths_are_one_program():
    """At a length every rotation is numbers alone: a vmap over them is each by itself."""
    texts = ['rope', 'rope(scaling=linear(4))', 'rope(scaling=ntk(2))', 'rope(scaling=ntk(4))',
             'rope(scaling=dynamic_ntk(1, 6))', 'rope(scaling=yarn(4, 6))',
             'rope(scaling=longrope((1, 2, 3, 4), (2, 4, 6, 9), 6))']  # fmt: skip
    schemes = [parse(text) for text in texts]
    fixed = [scheme.at(MODEL.dims, 9) for scheme in schemes]
    assert len({jax.tree.structure(scheme) for scheme in fixed}) == 1
    params, toks = random_params(parse('rope')), tokens()
    stack = jax.tree.map(lambda *numbers: jnp.float32(numbers), *fixed)
    together = jax.jit(jax.vmap(lambda s: model_lib.apply(MODEL, params, toks, s).logits_BTC))(
        stack
    )
    programs = None
    for row, alone in zip(together, fixed, strict=True):
        close(row, apply(MODEL, params, toks, alone).logits_BTC)
        programs = programs or apply._cache_size()
        assert apply._cache_size() == programs
    for scheme, alone in zip(schemes[-2:], fixed[-2:], strict=True):
        close(*(apply(MODEL, params, toks, s).logits_BTC for s in (scheme, alone)))


def test_chains_and_mixtures_pass_a_length_on():
    dims = Dims(32, 4, 8, 4)
    mixed = parse(f'every(2, rope(scaling=ntk(2))|alibi, heads(p_rope(4, scaling={LISTS}), none))')
    fixed = (mixed | parse('logn(6)')).at(dims, 64)
    assert not fixed.parts[0].sees_length and fixed.parts[1] == parse('logn(6)')
    inside = fixed.parts[0]
    assert isinstance(inside.scheme.parts[0].scaling, given)
    assert isinstance(inside.other.first.scaling, given)
    assert parse(fixed.text) == fixed
    long = longrope((1.0,) * 4, (2.0,) * 4, 16.0)
    assert long.at(1e4, 8, 17).inv_freq[0] == 0.5 and long.at(1e4, 8, 16).inv_freq[0] == 1
