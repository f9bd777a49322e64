"""Past the window: what each context extension does to a model that was trained at 64 tokens.

    python train.py --config configs/extension.py
    python train.py --config configs/extension_finetune.py

Trains RoPE, NoPE and ALiBi on retrieval (`needle`) and on `seen`, at 64 tokens, and asks RoPE at 1,
2, 4, 8 and 16 times that length under every method, each with the factor that the length asks for
(factor='auto'). docs/extension.md has the tables, and the time it took.
"""

from posjax import config

METHODS = (
    'none',
    'logn',
    'crop',
    'linear',
    'ntk',
    'ntk_su',
    'dynamic_ntk',
    'by_parts',
    'llama3',
    'yarn',
    'yarn_paper',
    'yarn_paper|logn',
    'rerope',
    'rerope|logn',
    'self_extend',
    'lm_infinite',
    'drop',
    'drop|logn',
)


def get_config():
    c = config.default()
    c.sweep.task = ('needle', 'seen(vocab=96)')
    c.sweep.scheme = ('rope', 'none', 'alibi')
    c.seeds = 2
    c.model.heads = 2
    c.train.length, c.train.batch, c.train.steps = 64, 32, 2000
    c.optim.learning_rate, c.optim.warmup, c.optim.schedule = 2e-3, 50, 'linear'
    c.eval.lengths, c.eval.interventions = (64, 128, 256, 512, 1024), METHODS
    c.eval.sequences, c.eval.batch = 64, 8
    return c
