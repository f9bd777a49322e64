"""Writes transformers_rope.json: frequencies and attention factors as transformers computes them.

    pip install torch transformers
    python tests/goldens/make_transformers.py

Nothing is downloaded: every configuration is written out below, as published, or named `made_up`.
Models' own code makes the numbers (their rotary embedding where the type is 'default', the table of
rope types elsewhere). Values are float32, written with the digits that give them back exactly.
"""

import json
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# What is needed of each config.json; Llama 2 and 3, Qwen2.5 and Phi-3 as in their repositories.
LLAMA_3_1 = {
    'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8192,
}  # fmt: skip
PHI_3 = {
    'model_type': 'phi3', 'hidden_size': 3072, 'num_attention_heads': 32, 'num_hidden_layers': 2,
    'max_position_embeddings': 131072, 'original_max_position_embeddings': 4096,
    'rope_theta': 10000.0, 'pad_token_id': 0,
    # The lists are made up: published ones come from a search, and have this shape.
    'rope_scaling': {
        'type': 'longrope',
        'short_factor': [1.0 + 0.05 * k for k in range(48)],
        'long_factor': [1.0 + 1.25 * k for k in range(48)],
    },
}  # fmt: skip
CASES = {
    'llama_2_7b': [{
        'model_type': 'llama', 'hidden_size': 4096, 'num_attention_heads': 32,
        'max_position_embeddings': 4096, 'rope_theta': 10000.0,
    }, None],
    'llama_3_1_8b': [{
        'model_type': 'llama', 'hidden_size': 4096, 'num_attention_heads': 32,
        'max_position_embeddings': 131072, 'rope_theta': 500000.0, 'rope_scaling': LLAMA_3_1,
    }, None],
    'llama_3_2_1b': [{
        'model_type': 'llama', 'hidden_size': 2048, 'num_attention_heads': 32, 'head_dim': 64,
        'max_position_embeddings': 131072, 'rope_theta': 500000.0,
        'rope_scaling': LLAMA_3_1 | {'factor': 32.0},
    }, None],
    'gpt_oss_120b': [{
        'model_type': 'gpt_oss', 'hidden_size': 2880, 'num_attention_heads': 64, 'head_dim': 64,
        'max_position_embeddings': 131072, 'rope_theta': 150000.0,
        'rope_scaling': {
            'rope_type': 'yarn', 'factor': 32.0, 'beta_fast': 32.0, 'beta_slow': 1.0,
            'truncate': False, 'original_max_position_embeddings': 4096,
        },
    }, None],
    'deepseek_v3': [{
        'model_type': 'deepseek_v3', 'hidden_size': 7168, 'num_attention_heads': 128,
        'qk_rope_head_dim': 64, 'max_position_embeddings': 163840, 'rope_theta': 10000.0,
        'rope_scaling': {
            'type': 'yarn', 'factor': 40, 'beta_fast': 32, 'beta_slow': 1, 'mscale': 1.0,
            'mscale_all_dim': 1.0, 'original_max_position_embeddings': 4096,
        },
    }, None],
    'deepseek_v2_lite': [{
        'model_type': 'deepseek_v3', 'hidden_size': 2048, 'num_attention_heads': 16,
        'qk_rope_head_dim': 64, 'max_position_embeddings': 163840, 'rope_theta': 10000.0,
        'rope_scaling': {
            'type': 'yarn', 'factor': 40, 'beta_fast': 32, 'beta_slow': 1, 'mscale': 0.707,
            'mscale_all_dim': 0.5, 'original_max_position_embeddings': 4096,
        },
    }, None],
    'qwen_2_5_yarn': [{
        'model_type': 'qwen2', 'hidden_size': 3584, 'num_attention_heads': 28,
        'max_position_embeddings': 32768, 'rope_theta': 1000000.0,
        'rope_scaling': {
            'type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 32768,
        },
    }, None],
    'made_up_yarn_attention_factor': [{
        'model_type': 'llama', 'hidden_size': 256, 'num_attention_heads': 4,
        'max_position_embeddings': 4096, 'rope_theta': 10000.0,
        'rope_scaling': {
            'rope_type': 'yarn', 'factor': 8.0, 'attention_factor': 1.25, 'mscale': 2.0,
            'original_max_position_embeddings': 512, 'beta_fast': 16, 'beta_slow': 2,
        },
    }, None],
    'made_up_yarn_long_original': [{  # the slowest pair turns more than once: a ramp past the end
        'model_type': 'llama', 'hidden_size': 64, 'num_attention_heads': 1,
        'max_position_embeddings': 1048576, 'rope_theta': 10000.0,
        'rope_scaling': {
            'rope_type': 'yarn', 'factor': 8.0, 'original_max_position_embeddings': 131072,
        },
    }, None],
    'phi_3_mini_128k_made_up_lists': [PHI_3, None],
    'phi_3_mini_128k_made_up_lists_at_4096': [PHI_3, 4096],
    'phi_3_mini_128k_made_up_lists_at_4097': [PHI_3, 4097],
    **{
        f'made_up_dynamic_at_{length}': [{
            'model_type': 'llama', 'hidden_size': 256, 'num_attention_heads': 4,
            'max_position_embeddings': 2048, 'rope_theta': 10000.0,
            'rope_scaling': {'type': 'dynamic', 'factor': 2.0},
        }, length]
        for length in (1, 2048, 2049, 5000, 16384)
    },
    'made_up_linear': [{
        'model_type': 'llama', 'hidden_size': 4096, 'num_attention_heads': 32,
        'max_position_embeddings': 16384, 'rope_theta': 10000.0,
        'rope_scaling': {'type': 'linear', 'factor': 4.0},
    }, None],
    'gpt_neox_20b': [{
        'model_type': 'gpt_neox', 'hidden_size': 6144, 'num_attention_heads': 64,
        'max_position_embeddings': 2048, 'rotary_pct': 0.25, 'rotary_emb_base': 10000,
    }, None],
    'made_up_partial_yarn': [{
        'model_type': 'stablelm', 'hidden_size': 512, 'num_attention_heads': 4,
        'max_position_embeddings': 32768, 'partial_rotary_factor': 0.75,
        'rope_parameters': {
            'rope_type': 'yarn', 'rope_theta': 50000.0, 'factor': 4.0,
            'partial_rotary_factor': 0.75, 'original_max_position_embeddings': 8192,
        },
    }, None],
    **{
        f'gemma_4_e2b_{kind}': [{
            'model_type': 'gemma4_text', 'hidden_size': 1536, 'num_attention_heads': 8,
            'head_dim': 256, 'global_head_dim': 512, 'num_hidden_layers': 10,
            'max_position_embeddings': 131072,
            'layer_types': (['sliding_attention'] * 4 + ['full_attention']) * 2,
            'rope_parameters': {
                'sliding_attention': {'rope_type': 'default', 'rope_theta': 10000.0},
                'full_attention': {
                    'rope_type': 'proportional', 'partial_rotary_factor': 0.25,
                    'rope_theta': 1000000.0,
                },
            },
        }, None, kind]
        for kind in ('sliding_attention', 'full_attention')
    },
}  # fmt: skip


# Whose code computes the type 'default', by model_type.
DEFAULT = {
    'llama': LlamaRotaryEmbedding,
    'gpt_neox': GPTNeoXRotaryEmbedding,
    'gemma4_text': Gemma4TextRotaryEmbedding,
}


def numbers(written: dict, length: int | None, kind: str | None = None) -> dict:
    """inv_freq and attention_factor of a configuration, at a length, for a layer type."""
    config = AutoConfig.for_model(**json.loads(json.dumps(written)))
    parameters = config.rope_parameters if kind is None else config.rope_parameters[kind]
    layer = {} if kind is None else {'layer_type': kind}
    config = config if kind is None else config.per_layer_config[kind]
    if parameters['rope_type'] == 'default':
        function = DEFAULT[written['model_type']].compute_default_rope_parameters
        inv_freq, factor = function(config, device='cpu', **layer)
    else:
        function = ROPE_INIT_FUNCTIONS[parameters['rope_type']]
        inv_freq, factor = function(config, device='cpu', seq_len=length, **layer)
    assert inv_freq.dtype == torch.float32
    return {'inv_freq': inv_freq.tolist(), 'attention_factor': float(factor)}


if __name__ == '__main__':
    cases = {}
    for name, (written, length, *kind) in CASES.items():
        cases[name] = {'config': written, 'length': length, 'layer_type': (kind or [None])[0]}
        cases[name] |= numbers(written, length, *kind)
    found = {'transformers': transformers.__version__, 'torch': torch.__version__, 'cases': cases}
    path = Path(__file__).with_name('transformers_rope.json')
    path.write_text(json.dumps(found, indent=1) + '\n')
    print(f'{len(cases)} cases in {path}')
