"""Interventions: what they make of a scheme, that nothing learned changes, and what they refuse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import interventions
from posjax.interventions import Intervention
from posjax.scheme import as_chain, parse
from tests.cases import MODEL, apply, random_params, tokens

# What each makes of `rope`, trained at 32 tokens and asked at 128.
MADE = {
    'none': 'rope',
    'logn': 'rope|logn(train_length=32.0)',
    'logn_position': 'rope|logn_position(train_length=32.0)',
    'shift(by=2)': 'rope|shift(by=2)',
    'interpolate': 'rope|interpolate(factor=4.0)',
    'crop': 'rope|window(size=32)',
    'crop(window=5)': 'rope|window(size=5)',
    'linear': 'rope(scaling=linear(factor=4.0))',
    'linear(factor=2)': 'rope(scaling=linear(factor=2.0))',
    'ntk': 'rope(scaling=ntk(factor=4.0))',
    'ntk_su': 'rope(scaling=ntk_su(factor=4.0))',
    'dynamic_ntk': 'rope(scaling=dynamic_ntk(factor=1.0, original_length=32.0))',
    "dynamic_ntk(factor='auto')": 'rope(scaling=dynamic_ntk(factor=4.0, original_length=32.0))',
    'by_parts': 'rope(scaling=by_parts(factor=4.0, original_length=32.0, beta=5.092958178940651))',
    'by_parts(beta=3)': 'rope(scaling=by_parts(factor=4.0, original_length=32.0, beta=3.0))',
    'by_parts_v1': 'rope(scaling=by_parts_v1(factor=4.0, original_length=32.0))',
    'llama3': 'rope(scaling=llama3(factor=4.0, original_length=32.0))',
    'yarn': 'rope(scaling=yarn(factor=4.0, original_length=32.0))',
    'yarn(truncate=False, mscale=0)':
        'rope(scaling=yarn(factor=4.0, original_length=32.0, truncate=False, mscale=0.0))',
    'yarn_paper':
        'rope(scaling=yarn_paper(factor=4.0, original_length=32.0, beta=5.092958178940651))',
    'longrope((1, 1), (2, 3))':
        'rope(scaling=longrope(short_factors=(1.0, 1.0), long_factors=(2.0, 3.0), '
        'original_length=32.0, factor=4.0))',
    'rerope': 'rerope(window=16.0)',
    'rerope(window=8, leak=0.1)': 'rerope(window=8.0, leak=0.1)',
    'self_extend': 'self_extend(group=5, window=8)',
    'self_extend(group=2, window=3)': 'self_extend(group=2, window=3)',
    'lm_infinite': 'lm_infinite(window=32)',
    'lm_infinite(window=4, number=1)': 'lm_infinite(window=4, number=1)',
    'drop': 'none',
    'drop(temperature=0.5)': 'sharpen(factor=1.6931471805599454)',
    'drop(temperature=0.5, factor=1)': 'none',
    "yarn(factor='auto')|logn":
        'rope(scaling=yarn(factor=4.0, original_length=32.0))|logn(train_length=32.0)',
    'rerope|logn_position|none': 'rerope(window=16.0)|logn_position(train_length=32.0)',
    'yarn|rerope': 'rerope(window=16.0, scheme=rope(scaling=yarn(factor=4.0, '
        'original_length=32.0)))',
    'rerope|yarn': 'rerope(window=16.0, scheme=rope(scaling=yarn(factor=4.0, '
        'original_length=32.0)))',
}  # fmt: skip


def changed(words, text, train_length=32, length=128):
    return interventions.parse(words)(parse(text), train_length, length)


@pytest.mark.parametrize('words', MADE)
def test_what_it_makes_of_rope(words):
    scheme = changed(words, 'rope')
    assert scheme.text == MADE[words]
    assert parse(scheme.text) == scheme
    change = interventions.parse(words)
    assert interventions.parse(change.text) == change


def test_every_intervention_is_tried():
    tried = {part.partition('(')[0] for words in MADE for part in words.split('|')}
    assert Intervention.registry.keys() == tried | {'deterministic'}
    for cls in Intervention.registry.values():
        assert all(f'{f.name}:' in cls.__doc__ for f in dataclasses.fields(cls)), cls


@pytest.mark.parametrize(
    'words', ['yarn', 'rerope', 'self_extend', 'lm_infinite', 'drop', 'interpolate', 'crop']
)
def test_parameters_stay_as_they_were_trained(words):
    """In a mixture inside a chain, beside parts that learn: the same tree, and its first values."""
    text = "learned(max_length=200)|every(2, rope(theta=5.0, pairing='half')|fox, ssmax)"
    before, after = parse(text), changed(words, text)
    a, b = (as_chain(s).init(jax.random.key(0), MODEL.dims) for s in (before, after))
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)
    if words not in ('drop', 'interpolate', 'crop'):
        assert after.text.count("theta=5.0, pairing='half'") == 1


def test_every_rotation_inside_is_changed_and_nothing_else():
    text = 'heads(every(2, rope, none), p_rope(rotary_dim=4)|alibi)|partial_rope(rotary_dim=2)|xpos'
    inside = changed('linear(factor=2)', text.removesuffix('|xpos')).text
    assert inside.count('scaling=linear(factor=2.0)') == 3 and 'alibi' in inside
    # Two owners of a whole score do not go together.
    with pytest.raises(ValueError, match='both define the whole score'):
        changed('rerope', 'rope|xpos')


@pytest.mark.parametrize(
    ('words', 'text', 'message'),
    [
        ('yarn', 'alibi', r'intervention yarn: scheme alibi has no rotary part \(rope, partial'),
        ('none|drop', 'xpos|alibi', r'intervention drop: scheme xpos\|alibi has no rotary part'),
        ('deterministic', 'rope', 'nothing in scheme rope is random; leave the intervention out'),
        ('yarn|ntk', 'rope', 'is scaled already, and scalings do not add up; ask for one'),
        ('yarn_paper(beta=32)', 'rope', 'beta=32.0 turns are more than any .* take beta=5.09'),
        ('self_extend(window=32)', 'rope', 'window=32 leaves nothing of 32 trained positions'),
        ('linear(factor=0.5)', 'rope', "linear: factor=0.5 .* at least 1 .* or 'auto'"),
        ("linear(factor='x')", 'rope', "linear: factor='x' should be a number, or 'auto'"),
        ('crop(window=1.5)', 'rope', 'crop: window=1.5 should be an integer'),
        ('crop(window=0)', 'rope', 'intervention crop: window=0 should be at least 1'),
        ('drop(temperature=-1)', 'rope', 'drop: temperature=-1.0 should be at least 0'),
        ('rerope(window=0)', 'rope', 'scheme rerope: window=0.0 should be at least 1'),
        ('yarm', 'rope', "unknown intervention 'yarm'; did you mean 'yarn'"),
        ('linear|yarm', 'rope', "unknown intervention 'yarm'"),
    ],
)
def test_refused_in_one_line(words, text, message):
    with pytest.raises(ValueError, match=message) as error:
        changed(words, text)
    assert '\n' not in str(error.value)


def test_shorter_texts_than_in_training_are_not_stretched():
    assert changed('linear', 'rope', 32, 16).text == 'rope(scaling=linear(factor=1.0))'
    assert changed('self_extend', 'rope', 32, 16).text == 'self_extend(group=1, window=8)'


@pytest.mark.parametrize(('train_length', 'length'), [(32, 33), (32, 128), (10, 1000)])
def test_groups_bring_every_distance_back_to_those_of_training(train_length, length):
    scheme = changed('self_extend', 'rope', train_length, length)

    def longest(group):
        return (length - 1) // group + scheme.window - scheme.window // group

    assert longest(scheme.group) <= train_length
    assert scheme.group == 1 or longest(scheme.group - 1) >= train_length - 1


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('rope|random_offset(max_offset=50)', 'rope|random_offset(max_offset=0)'),
        ('sinusoidal|randomised(max_position=64)',
         "sinusoidal|randomised(max_position=64, draw='even')"),
        ('learned(max_length=64)|abacus(digits=5, max_offset=9)',
         'learned(max_length=64)|abacus(digits=5, max_offset=0)'),
    ],
)  # fmt: skip
def test_deterministic_positions_are_those_without_a_key(text, expected):
    scheme, still = parse(text), changed('deterministic', text)
    assert still.text == expected
    for own, other in zip(as_chain(scheme).parts, as_chain(still).parts, strict=True):
        pos, toks = jnp.arange(9)[None], tokens(batch=1)
        args = (pos, toks, jnp.full((1,), 9))
        np.testing.assert_array_equal(
            other.positions(*args, jax.random.key(1)), own.positions(*args, None)
        )


def test_what_is_dropped_is_not_there():
    toks, params = tokens(), random_params(parse('rope'))
    dropped = apply(MODEL, params, toks, changed('drop', 'rope')).logits_BTC
    np.testing.assert_array_equal(dropped, apply(MODEL, params, toks, parse('none')).logits_BTC)


def test_the_cropped_see_only_the_last_tokens():
    """One layer: a token of a cropped text answers as the last of the tokens it may see."""
    model = dataclasses.replace(MODEL, layers=1)
    toks, params = tokens(length=9), random_params(parse('rope'), model)
    cropped = apply(model, params, toks, changed('crop', 'rope', 4, 9)).logits_BTC
    alone = apply(model, params, toks[:, -4:], parse('rope')).logits_BTC
    np.testing.assert_allclose(cropped[:, -1], alone[:, -1], atol=1e-5 * np.abs(alone).max())
