"""Time per run and step against how many runs share a program: falling or flat.

    python benchmarks/width.py

The founding model (2 layers, width 64, 32 tokens, batch 64) under rope on `lag`, on all devices.
"""

import os

import jax
from measure import alternate, machine, say

from posjax import config
from posjax.sweep import Machine, group

STEPS = 20


def main():
    jax.config.update('jax_num_cpu_devices', os.cpu_count())
    print(machine())
    calls, share = {}, {}
    for runs in (1, 2, 8, 32):
        c = config.default()
        c.seeds = runs
        (one,) = group(config.runs(c))
        calls[f'R={runs}'] = _chunk(Machine(), one)
        share[f'R={runs}'] = STEPS * runs
    medians = alternate(calls, rounds=5)
    say('a run-step', {name: s / share[name] for name, s in medians.items()})


def _chunk(machine_, one):
    state = machine_.init(one)

    def call():
        nonlocal state  # used up by each chunk, and made anew
        state, metrics = machine_.chunk(one, state, STEPS, STEPS)
        return metrics.loss

    return call


if __name__ == '__main__':
    main()
