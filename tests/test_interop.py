"""Configs of transformers: its own numbers, and there and back.

goldens/make_transformers.py wrote goldens/transformers_rope.json, where transformers runs.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from posjax import from_hf, parse, to_hf
from posjax.schemes import every, p_rope, partial_rope
from posjax.schemes.partial_rope import proportional

GOLDENS = json.loads((Path(__file__).parent / 'goldens' / 'transformers_rope.json').read_text())
LLAMA = {'model_type': 'llama', 'hidden_size': 64, 'num_attention_heads': 4,
         'max_position_embeddings': 4096}  # fmt: skip


def numbers(scheme, head_dim, length):
    """Frequencies that the scheme turns by, and its attention factor."""
    dim = scheme.rotary_dim if isinstance(scheme, partial_rope) else head_dim
    freq, factor = scheme.scaling.frequencies(scheme.theta, dim, jnp.full((1,), length))
    if isinstance(scheme, p_rope):
        freq = proportional(freq, scheme.rotary_dim)
    return np.asarray(freq).reshape(-1), float(factor)


@pytest.mark.parametrize('name', GOLDENS['cases'])
def test_numbers_are_those_of_transformers(name):
    case = GOLDENS['cases'][name]
    scheme = from_hf(case['config'])
    if isinstance(scheme, every):
        scheme = scheme.other if case['layer_type'] == 'full_attention' else scheme.scheme
    expected = np.float32(case['inv_freq'])
    got, factor = numbers(scheme, 2 * len(expected), case['length'] or 1)
    # One or two roundings of float32; of yarn, also those of the ends of its ramp, in float32 here.
    np.testing.assert_allclose(got, expected, rtol=3e-6 if 'yarn' in scheme.text else 3e-7)
    np.testing.assert_allclose(factor, case['attention_factor'], rtol=2e-7)


def test_published_configurations_are_read_as_published():
    read = {name: from_hf(case['config']).text for name, case in GOLDENS['cases'].items()}
    gpt_oss, deepseek = (GOLDENS['cases'][n]['config'] for n in ('gpt_oss_120b', 'deepseek_v3'))
    assert 4096 * 32 == gpt_oss['max_position_embeddings'] == 131_072
    assert 4096 * 40 == deepseek['max_position_embeddings'] == 163_840
    assert read['llama_2_7b'] == "rope(pairing='half')"
    assert read['gpt_oss_120b'] == (
        "rope(theta=150000.0, pairing='half', scaling=yarn(factor=32.0, original_length=4096.0, "
        'truncate=False))'
    )
    # Its code turns neighbours, whatever its config says.
    assert read['deepseek_v3'] == (
        'rope(scaling=yarn(factor=40.0, original_length=4096.0, mscale_all_dim=1.0))'
    )
    assert read['gpt_neox_20b'] == "partial_rope(rotary_dim=24, pairing='half')"
    assert read['gemma_4_e2b_full_attention'] == (
        "every(n=5, scheme=rope(pairing='half'), other=p_rope(rotary_dim=128, theta=1000000.0, "
        "pairing='half'))"
    )


@pytest.mark.parametrize(
    ('config', 'text'),
    [
        ({}, "rope(pairing='half')"),
        ({'rope_theta': 5e5}, "rope(theta=500000.0, pairing='half')"),
        ({'rope_interleave': True}, 'rope'),
        ({'rope_scaling': None}, "rope(pairing='half')"),
        # The dict wins over what stands beside it, as in transformers.
        ({'rope_theta': 1e4, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e6}},
         "rope(theta=1000000.0, pairing='half')"),
        ({'no_rope_layers': [1, 1, 0, 1, 1, 0, 1]}, "every(n=3, scheme=rope(pairing='half'))"),
        ({'no_rope_layers': [1, 1, 1]}, "rope(pairing='half')"),
        ({'no_rope_layers': [0, 0]}, 'none'),
        ({'no_rope_layer_interval': 4, 'num_hidden_layers': 8},
         "every(scheme=rope(pairing='half'))"),
        ({'layer_types': ['a', 'b'] * 2, 'rope_parameters': {'a': None, 'b': {'rope_theta': 5.0}}},
         "every(n=2, scheme=none, other=rope(theta=5.0, pairing='half'))"),
        # One dict for all layer types.
        ({'layer_types': ['a', 'b'], 'rope_parameters': {'type': 'linear', 'factor': 2}},
         "rope(pairing='half', scaling=linear(factor=2.0))"),
        ({'rope_scaling': {'rope_type': 'proportional', 'partial_rotary_factor': 0.7, 'factor': 2}},
         "p_rope(rotary_dim=10, pairing='half', scaling=linear(factor=2.0))"),
        # mscale without mscale_all_dim is not looked at, and attention_factor replaces both.
        ({'rope_scaling': {'type': 'yarn', 'factor': None, 'mscale': 0.7,
                           'original_max_position_embeddings': 1024}},
         "rope(pairing='half', scaling=yarn(factor=4.0, original_length=1024.0))"),
    ],
)  # fmt: skip
def test_what_is_read(config, text):
    assert from_hf(LLAMA | config).text == text


class _Config:
    def __init__(self, **fields):
        self.fields = fields

    def to_dict(self):
        return self.fields


def test_config_objects_and_a_pairing_of_one_s_own():
    assert from_hf(_Config(**LLAMA)) == from_hf(LLAMA) == parse("rope(pairing='half')")
    assert from_hf(LLAMA, pairing='interleaved') == parse('rope')


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ({'rope_scaling': {'type': 'linear', 'fcator': 2}},
         "rope_type='linear' has a key 'fcator' that is not understood; did you mean 'factor'"),
        ({'rope_scaling': {'type': 'linear', 'factor': 2, 'truncate': True}}, "a key 'truncate'"),
        ({'rope_scaling': {'type': 'default', 'mrope_section': [1, 2]}}, "a key 'mrope_section'"),
        ({'rope_scaling': {'type': 'yarm', 'factor': 2}}, "'yarm' is not understood; did"),
        ({'rope_local_base_freq': 1e4}, 'key rope_local_base_freq=10000.0 is not understood'),
        ({'rope_scaling': {'type': 'linear'}}, 'config: factor is missing'),
        ({'rope_scaling': {'type': 'llama3', 'factor': 8, 'low_freq_factor': 1}},
         'high_freq_factor is missing'),
        ({'rope_scaling': {'type': 'linear', 'factor': 0.5}}, 'factor=0.5 should be at least 1'),
        ({'hidden_size': None}, 'config: hidden_size is missing'),
        ({'no_rope_layers': [1, 0, 0, 1]}, 'not periodic: .* of the first 2, and layer 3 has none'),
        ({'layer_types': ['a', 'b'], 'rope_parameters': {'a': {}}}, "do not agree on 'b'"),
        ({'layer_types': ['a'], 'rope_parameters': {'a': {}, 'c': {}}}, "do not agree on 'c'"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_one_line(config, message):
    with pytest.raises(ValueError, match=message) as error:
        from_hf(LLAMA | config)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    'text',
    [
        'rope', "rope(theta=500000.0, pairing='half')", 'rope(scaling=linear(2.5))',
        'rope(scaling=dynamic_ntk(2, 2048))', 'rope(scaling=llama3(8, 8192))',
        'rope(scaling=yarn(4, 4096, 16, 2, False))',
        'rope(scaling=yarn(4, 4096, mscale=0.7, mscale_all_dim=0.5))',
        'rope(scaling=yarn(4, 4096, mscale=0, attn_factor=1.3))',
        'rope(scaling=longrope((1, 2), (3, 4), 4096, 32))',
        'rope(scaling=longrope((1, 2), (3, 4), 4096, attn_factor=1.3))',
        "partial_rope(rotary_dim=6, pairing='half', scaling=yarn(4, 4096))",
        'p_rope(rotary_dim=6, scaling=linear(2))', 'every(3, rope(scaling=linear(2)), none)',
        'every(3, rope, p_rope(rotary_dim=4, theta=5))',
    ],
)  # fmt: skip
def test_there_and_back(text):
    scheme = parse(text)
    config = LLAMA | {'head_dim': 16} | to_hf(scheme, head_dim=16, layers=7)
    assert from_hf(json.loads(json.dumps(config))) == scheme


def test_llama3_is_how_ntk_by_parts_is_written():
    written = to_hf(parse('rope(scaling=by_parts(8, 8192, 1, 4))'))
    assert from_hf(LLAMA | written) == parse('rope(scaling=llama3(8, 8192))')


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('alibi', 'transformers has no form of alibi'),
        ('rope|logn(8)', r'no form of rope\|logn'),
        ('rope(scaling=ntk_su(2))', 'transformers has no form of scaling ntk_su'),
        ('partial_rope(4)', r'partial_rope\(rotary_dim=4\) needs head_dim='),
        ('every', 'every needs layers='),
        ('p_rope(4, scaling=ntk(2))', 'no form of scaling ntk'),
        ('p_rope(4, scaling=dynamic_ntk(2, 8))', 'scales p_rope by linear alone'),
    ],
)
def test_what_transformers_cannot_say_is_one_line(text, message):
    with pytest.raises(ValueError, match=message):
        to_hf(parse(text))
