"""A first look: who can copy from three tokens back, and who still can at four times the length?

    python train.py --config configs/quickstart.py

About a minute on 2 CPU cores. Expect rope at 1.0 at every length, alibi lower and level (it needs
more steps than these), learned at 1.0 up to the training length of 32 and near chance (1/16) past
it, and none low everywhere.
"""

from posjax import config


def get_config():
    c = config.default()
    c.task = 'lag(k=3, vocab=16)'
    c.sweep.scheme = ('none', 'learned(max_length=128)', 'rope', 'alibi(slopes=(0.5,))')
    c.seeds = 2
    # A larger step and a smaller batch than usual, to be done soon.
    c.train.steps, c.train.batch, c.optim.learning_rate = 400, 32, 3e-3
    c.eval.lengths, c.eval.interventions = (32, 64, 128), ('none',)
    return c
