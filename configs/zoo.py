"""Every scheme on the two founding tasks: four heads, trained at 32 tokens, tested to 256.

    python train.py --config configs/zoo.py

176 runs as 88 programs, most of whose time is compiling: keep them with --compiled FOLDER if you
mean to come back. Only `abacus` is missing: it numbers digits, and there are none here. Schemes
that need a partner have one. docs/zoo.md has the table.
"""

from posjax import config

SCHEMES = (
    # Embeddings.
    'none',
    'sinusoidal',
    "sinusoidal(layout='tensor2tensor')",
    'learned(max_length=256)',
    'learned(max_length=512)|random_offset(max_offset=256)',
    # Rotations.
    'rope',
    'partial_rope(rotary_dim=4)',
    'p_rope(rotary_dim=4)',
    'rope_learned',
    'xpos',
    'pope',
    'fope(train_length=32)',
    # Scores.
    'alibi',
    'alibi_learned',
    'hard_alibi(windows=(2, 4, 8, 0))',
    't5',
    'shaw(max_distance=16)',
    'transformer_xl',
    'kerple_log',
    'kerple_power',
    'fire',
    'sandwich',
    'cope_contextual(max_pos=32)',
    'fox',
    # Position numbers.
    'rope|randomised(max_position=256)',
    'learned(max_length=256)|randomised(max_position=256)',
    'rope|random_offset(max_offset=256)',
    # Scales of the softmax.
    'rope|logn(train_length=32.0)',
    'rope|logn_position(train_length=32.0)',
    'logn_plain',
    'rope|ssmax(train_length=32)',
    'rope|llama4_temperature(floor_scale=32)',
    # Patterns and mixtures.
    'rope|window(size=16)',
    'rope|sinks(size=15, number=1)',
    'every(2, rope|chunks(size=32), none)',
    'every(2, rope, none)',
    'heads(rope, none, count=2)',
    'rope|alibi',
    # Far distances brought back, from the first step on; and constants.
    'rerope(window=16.0)',
    'self_extend(group=4, window=16)',
    'lm_infinite(window=28, number=4)',
    'rope|interpolate(factor=2.0)',
    'rope|sharpen(factor=1.5)',
    'learned(max_length=512)|shift(by=128)',
)


def get_config():
    c = config.default()
    c.sweep.task = ('lag(k=3, vocab=16)', 'seen(vocab=96)')
    c.sweep.scheme = SCHEMES
    c.seeds = 2
    c.model.heads = 4
    # Shorter than the founding experiment, with larger steps: there are five times as many runs.
    c.train.length, c.train.batch, c.train.steps = 32, 32, 1000
    c.optim.learning_rate, c.optim.warmup = 2e-3, 50
    c.eval.lengths, c.eval.interventions, c.eval.sequences = (32, 64, 128, 256), ('none',), 128
    return c
