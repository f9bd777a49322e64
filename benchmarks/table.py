"""The founding table, all 28 runs, against the same runs in PyTorch at its best on this machine.

    python benchmarks/table.py --torch PYTHON                   steps as in configs/blog.py
    python benchmarks/table.py --torch PYTHON --steps 200       a tenth of them

PYTHON is an interpreter that has torch. Wall times of everything: imports, compilation, training,
evaluation, and with posjax checkpoints and figures. PyTorch's best way is found on the first runs,
as many as there are cores, each with all steps: with all threads one after the other, or with one
thread each side by side; eager or compiled. Then all runs go that way, a half before posjax in the
first dtype and a half after it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
RUNS = [
    (task, scheme, argument, seed)
    for task in ('lag', 'seen')
    for scheme, argument in (('none', 0), ('sinusoidal', 0), ('learned', 0), ('rope', 1e4),
                             ('rope', 1e6), ('alibi', 0.5), ('alibi', 0.0625))
    for seed in range(2)
]  # fmt: skip


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument('--torch', required=True, help='a Python that has torch')
    options.add_argument('--steps', type=int, default=2000)
    options.add_argument('--dtypes', default='float32,bfloat16', help='of posjax')
    options.add_argument('--keep', type=Path, help='a folder for what posjax makes')
    asked = options.parse_args()
    few = RUNS[: os.cpu_count()]
    ways = {(side_by_side, compiled): _torch(asked, side_by_side, compiled, few)
            for side_by_side in (False, True) for compiled in (False, True)}  # fmt: skip
    best = min(ways, key=ways.get)
    # In turns, since machines change with the hour.
    first, *others = asked.dtypes.split(',')
    theirs = _torch(asked, *best, RUNS[::2])
    ours = {first: _posjax(asked, first)}
    theirs += _torch(asked, *best, RUNS[1::2])
    ours |= {dtype: _posjax(asked, dtype) for dtype in others}
    for dtype, seconds in ours.items():
        print(f'{dtype}: {seconds / theirs:.2f} of PyTorch at its best, {theirs:.0f} s', flush=True)


def _torch(asked, side_by_side, compiled, runs) -> float:
    cores = os.cpu_count() or 1
    environment = os.environ | ({'OMP_NUM_THREADS': '1'} if side_by_side else {})

    def call(run):
        words = [*map(str, run), str(asked.steps), *(['--compile'] if compiled else [])]
        subprocess.run([asked.torch, HERE / 'torch_blog.py', *words], env=environment, check=True,
                       capture_output=True)  # fmt: skip

    with ThreadPoolExecutor(cores if side_by_side else 1) as pool:
        name = f'PyTorch, {"side by side" if side_by_side else "all threads"}'
        name += ', compiled' if compiled else ', eager'
        return _timed(name, asked.steps, len(runs), lambda: list(pool.map(call, runs)))


def _posjax(asked, dtype) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, 'train.py', '--config', 'configs/blog.py',
                   f'--config.train.steps={asked.steps}', f'--config.model.dtype={dtype}',
                   '--workdir', (asked.keep or Path(folder)).absolute() / dtype]  # fmt: skip
        return _timed(f'posjax, {dtype}', asked.steps, len(RUNS), lambda: subprocess.run(
            command, cwd=HERE.parent, check=True, capture_output=True))  # fmt: skip


def _timed(name, steps, runs, call) -> float:
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    per_step = 1e3 * seconds / (steps * runs)
    print(f'{name}: {runs} runs in {seconds:.0f} s, {per_step:.1f} ms a run-step, all included',
          flush=True)  # fmt: skip
    return seconds


if __name__ == '__main__':
    main()
