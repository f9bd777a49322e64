"""Writes attention_from_transformers.json: what transformers' own models attend to.

    pip install torch transformers
    python tests/goldens/attention_from_transformers.py

Tiny models with random weights, built offline from their configs, one layer each. Stored are
queries and keys as projected, before anything positional, and the attention weights that the
library makes of them; test_goldens.py asks our schemes for the same. Beside them: T5's buckets,
slopes of ALiBi for numbers of heads that are no power of two, and Marian's sinusoids.
"""

import json
from pathlib import Path

import torch
import transformers as tf
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

TOKENS, SIZE, HEADS, WIDTH = 13, 8, 3, 24
COMMON = dict(vocab_size=19, attn_implementation='eager')
LLAMA = COMMON | dict(hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS,
                      num_key_value_heads=HEADS, intermediate_size=8)  # fmt: skip

# The scheme as posjax writes it, the model, and the module whose queries and keys are taken.
MODELS = {
    "rope(pairing='half')": tf.LlamaConfig(**LLAMA),
    "rope(theta=500000.0, pairing='half')": tf.LlamaConfig(
        **LLAMA, rope_parameters={'rope_type': 'default', 'rope_theta': 5e5}
    ),
    'rope': tf.GPTJConfig(**COMMON, n_embd=WIDTH, n_layer=1, n_head=HEADS, rotary_dim=SIZE,
                          n_inner=8),
    'partial_rope(rotary_dim=4)': tf.GPTJConfig(**COMMON, n_embd=WIDTH, n_layer=1, n_head=HEADS,
                                                rotary_dim=4, n_inner=8),
    "partial_rope(rotary_dim=2, pairing='half')": tf.GPTNeoXConfig(
        **COMMON, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS,
        intermediate_size=8, rotary_pct=0.25),
    'alibi': tf.BloomConfig(**COMMON, hidden_size=WIDTH, n_layer=1, n_head=HEADS),
    "rope(pairing='half')|window(size=4)": tf.MistralConfig(**LLAMA, sliding_window=4),
}  # fmt: skip


def parts_of(model):
    """The attention module, and names of its projections (one name where they are fused)."""
    for module in model.modules():
        for names in (('q_proj', 'k_proj'), ('query_key_value',)):
            if all(hasattr(module, name) for name in names):
                return module, names
    raise SystemExit(f'{type(model).__name__}: no projections of a known name')


def attend(config):
    torch.manual_seed(0)
    model = tf.AutoModel.from_config(config).eval()
    module, names = parts_of(model)
    seen = {}
    for name in names:
        projection = getattr(module, name)
        torch.nn.init.normal_(projection.weight, std=0.4)
        projection.register_forward_hook(
            lambda _, __, out, name=name: seen.setdefault(name, out.detach())
        )
    tokens = torch.randint(0, config.vocab_size, (1, TOKENS))
    with torch.no_grad():
        weights = model(tokens, output_attentions=True).attentions[0]
    if len(names) == 1:  # by heads, each with its query, key and value
        fused = seen[names[0]].reshape(TOKENS, HEADS, 3, SIZE)
        q, k = fused[:, :, 0], fused[:, :, 1]
    else:
        q, k = (seen[name].reshape(TOKENS, HEADS, SIZE) for name in names)
    return q, k, weights[0]


def t5(decoder):
    """T5 adds its bias to unscaled products: queries are stored times sqrt(K) to make up for it."""
    torch.manual_seed(0)
    config = tf.T5Config(**COMMON, d_model=WIDTH, d_kv=SIZE, num_heads=HEADS, d_ff=8,
                         relative_attention_num_buckets=8, relative_attention_max_distance=16,
                         is_decoder=decoder)  # fmt: skip
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(1, TOKENS, WIDTH)
    mask = torch.triu(torch.full((TOKENS, TOKENS), -1e9), 1)[None, None] if decoder else None
    with torch.no_grad():
        weights = module(x, mask=mask, output_attentions=True,
                         cache_position=torch.arange(TOKENS))[-1]  # fmt: skip
        q, k = (p(x)[0].reshape(TOKENS, HEADS, SIZE) for p in (module.q, module.k))
    return q * SIZE**0.5, k, weights[0], module.relative_attention_bias.weight.detach()


def slopes(heads):
    """BLOOM's and MPT's, from the biases of two neighbouring keys."""
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    mpt = build_mpt_alibi_tensor(heads, 2)[:, 0]
    return {'heads': heads, 'bloom': listed(bloom), 'mpt': listed(mpt[:, 1] - mpt[:, 0])}


def buckets(bidirectional, num_buckets, max_distance):
    memory_minus_query = torch.arange(-600, 601)
    found = T5Attention._relative_position_bucket(
        memory_minus_query, bidirectional, num_buckets, max_distance
    )
    return {'bidirectional': bidirectional, 'num_buckets': num_buckets,
            'max_distance': max_distance, 'buckets': found.tolist()}  # fmt: skip


def sinusoids():
    return listed(MarianSinusoidalPositionalEmbedding(40, 10).create_weight())


def listed(array):
    return [float(f'{x:.8g}') for x in array.double().flatten().tolist()]


def main():
    cases = []
    for scheme, config in MODELS.items():
        q, k, weights = attend(config)
        cases.append({'scheme': scheme, 'model': config.model_type, 'causal': True,
                      'q': listed(q), 'k': listed(k), 'weights': listed(weights)})  # fmt: skip
    for decoder in (False, True):
        q, k, weights, table = t5(decoder)
        scheme = f't5(num_buckets=8, max_distance=16, bidirectional={not decoder})'
        cases.append({'scheme': scheme, 'model': 't5', 'causal': decoder, 'q': listed(q),
                      'k': listed(k), 'weights': listed(weights),
                      'table': listed(table)})  # fmt: skip
    whole = {'transformers': tf.__version__, 'tokens': TOKENS, 'heads': HEADS, 'head_dim': SIZE,
             'cases': cases, 'slopes': [slopes(n) for n in (1, 2, 3, 6, 8, 12, 14, 25, 40)],
             'buckets': [buckets(both, *sizes) for both in (False, True)
                         for sizes in ((32, 128), (16, 64), (8, 20))],
             'sinusoids': sinusoids()}  # fmt: skip
    Path(__file__).with_suffix('.json').write_text(json.dumps(whole) + '\n')
    for case in cases:
        print(case['model'], case['scheme'])


if __name__ == '__main__':
    main()
