"""Time per run and step against how many runs share a program: falling or flat.

    python benchmarks/width.py

The founding model (2 layers, width 64, 32 tokens, batch 64) under rope on `lag`, on all devices.
"""

import os

import jax
from measure import alternate, machine, say, steps

from posjax import config, plan
from posjax.sweep import group

STEPS = 20


def main():
    jax.config.update('jax_num_cpu_devices', os.cpu_count())
    print(machine())
    calls, share = {}, {}
    for runs in (1, 2, 8, 32):
        c = config.default()
        c.seeds = runs
        (one,) = group(plan.runs(c))
        calls[f'R={runs}'] = steps(one, STEPS)
        share[f'R={runs}'] = STEPS * runs
    medians = alternate(calls, rounds=5)
    say('a run-step', {name: s / share[name] for name, s in medians.items()})


if __name__ == '__main__':
    main()
