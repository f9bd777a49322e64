"""What a config compiles: how many programs, and seconds spent on them, afresh and kept.

    python benchmarks/compiling.py configs/blog.py configs/zoo.py

Trains each config for two steps, evaluates as it asks, and draws nothing: the programs are those of
the whole command. Then again, from a folder that kept them (`--compiled`). Seconds are summed over
threads that compile side by side.
"""

import argparse
import collections
import importlib.util
import os
import tempfile
import time
from pathlib import Path

import jax
from measure import machine

from posjax import compiled, experiment, plan, plots, sweep

KINDS = {'traced': '/jax/core/compile/jaxpr_trace_duration',
         'lowered': '/jax/core/compile/jaxpr_to_mlir_module_duration',
         'compiled': '/jax/core/compile/backend_compile_duration'}  # fmt: skip


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument('configs', nargs='+', type=Path)
    jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
    plots.all_figures = lambda *_: None
    print(machine())
    seconds, count = collections.Counter(), collections.Counter()

    def note(event, duration, **_):
        seconds[event] += duration
        count[event] += 1

    jax.monitoring.register_event_duration_secs_listener(note)
    for file in options.parse_args().configs:
        asked = _config(file)
        groups = sweep.group(plan.runs(asked))
        with tempfile.TemporaryDirectory() as folder:
            compiled.keep(Path(folder) / 'kept')
            for name in ('afresh', 'kept'):
                seconds.clear()
                count.clear()
                start = time.perf_counter()
                experiment.train(asked, Path(folder) / name, say=lambda line: None)
                wall = time.perf_counter() - start
                spent = ', '.join(f'{k} {seconds[event]:.1f} s' for k, event in KINDS.items())
                print(f'{file.stem} {name}: {count[KINDS["compiled"]]} programs for {len(groups)} '
                      f'groups and {len(asked.eval.lengths)} lengths; {spent}; {wall:.1f} s in all',
                      flush=True)  # fmt: skip


def _config(file: Path):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked = module.get_config()
    asked.train.steps = asked.train.chunk = asked.train.log_every = 2
    asked.optim.warmup = min(asked.optim.warmup, 2)
    asked.eval.sequences = asked.eval.batch
    return asked


if __name__ == '__main__':
    main()
