"""The founding experiment: seven schemes on two tasks, trained at 32 tokens, tested to 128.

    python train.py --config configs/blog.py                                   28 runs
    python train.py --config configs/blog.py --config.seeds=8 --workdir runs/blog8

`lag` needs positions and nothing else, `seen` needs content and no positions. The published table
is printed beside ours, cell by cell; README.md has the measured one, and the time it took.
"""

from posjax import config


def get_config():
    c = config.default()
    c.sweep.task = ('lag(k=3, vocab=16)', 'seen(vocab=96)')
    c.sweep.scheme = (
        'none',
        'sinusoidal',
        'learned(max_length=128)',
        'rope',
        'rope(theta=1e6)',
        'alibi(slopes=(0.5,))',
        'alibi(slopes=(0.0625,))',
    )
    c.seeds = 2
    c.train.length, c.train.batch, c.train.steps = 32, 64, 2000
    # So many at a time stay in the cache of a core, which saves a tenth of the time.
    c.train.microbatch = c.eval.batch = 16
    # As torch.optim.AdamW does by default: every parameter is decayed.
    c.optim.decay = ('weights', 'embeddings', 'biases', 'norms', 'positions')
    c.eval.lengths, c.eval.interventions, c.eval.sequences = (32, 64, 128), ('none', 'logn'), 256
    c.compare = ('configs/published/blog.csv', 'configs/published/blog_rerun.csv')
    return c
