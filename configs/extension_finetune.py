"""A short fine-tune on top of configs/extension.py: a tenth of the steps, at four times the length.

    python train.py --config configs/extension.py
    python train.py --config configs/extension_finetune.py

Each run goes on from the RoPE run with its task and seed: under plain RoPE (a longer limit and
nothing else), under three scalings with factor 4, and without positions (DroPE), at 64 tokens as
DroPE's paper does and at 256. docs/extension.md has the tables, and the time it took.
"""

from posjax import config


def get_config():
    c = config.default()
    c.sweep.task = ('needle', 'seen(vocab=96)')
    c.sweep.scheme = (
        'rope',
        'rope(scaling=linear(factor=4.0))',
        'rope(scaling=ntk(factor=4.0))',
        'rope(scaling=yarn_paper(factor=4.0, original_length=64.0, beta=10.0))',
        'none',
    )
    c.sweep.train.length = (64, 256)
    c.seeds = 2
    c.start.workdir, c.start.scheme = 'runs/extension', 'rope'
    c.model.heads = 2
    c.train.batch, c.train.steps = 16, 200
    c.optim.learning_rate, c.optim.warmup = 1e-3, 20
    c.eval.lengths, c.eval.interventions = (64, 256, 1024), ('none',)
    c.eval.sequences, c.eval.batch = 64, 8
    return c
