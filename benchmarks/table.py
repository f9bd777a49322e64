"""The founding table, all 28 runs, against the same runs in PyTorch at its best on this machine.

    python benchmarks/table.py --torch PYTHON                   steps as in configs/blog.py
    python benchmarks/table.py --torch PYTHON --steps 200       a tenth of them

PYTHON is an interpreter that has torch. Wall times of everything: imports, compilation, training,
evaluation, and with posjax checkpoints and figures. PyTorch's best way is found on the first runs,
as many as there are cores, each with all steps: with all threads one after the other, or with one
thread each side by side; eager or compiled. Then all runs go that way, and posjax in each dtype, in
turns: each side has the machine for some seconds and is stopped (SIGSTOP) for those of the others,
so that a machine that changes with the hour changes for all. Time stopped does not count.
"""

import argparse
import os
import signal
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
WAYS = [
    f'{how}, {what}' for how in ('all threads', 'side by side') for what in ('eager', 'compiled')
]
TURN = 20.0  # seconds


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument('--torch', required=True, help='a Python that has torch')
    options.add_argument('--steps', type=int, default=2000)
    options.add_argument('--dtypes', default='float32,bfloat16', help='of posjax')
    options.add_argument('--keep', type=Path, help='a folder for what posjax makes')
    options.add_argument('--way', choices=WAYS, help='of PyTorch; the best is found if not given')
    options.add_argument('--only-torch', action='store_true', help='all its runs, and no more')
    asked = options.parse_args()
    if asked.only_torch:
        _torch(asked, asked.way, RUNS)
        return
    few = RUNS[: os.cpu_count()]
    ways = {} if asked.way else {way: _timed_few(asked, way, few) for way in WAYS}
    way = asked.way or min(ways, key=ways.get)
    with tempfile.TemporaryDirectory() as folder:
        sides = {f'PyTorch, {way}': [
            sys.executable, __file__, '--torch', asked.torch, '--steps', str(asked.steps),
            '--way', way, '--only-torch',
        ]}  # fmt: skip
        for dtype in asked.dtypes.split(','):
            sides[f'posjax, {dtype}'] = [
                sys.executable, 'train.py', '--config', 'configs/blog.py',
                f'--config.train.steps={asked.steps}', f'--config.model.dtype={dtype}',
                '--workdir', str((asked.keep or Path(folder)).absolute() / dtype),
            ]  # fmt: skip
        seconds = _in_turns(sides)
    first = next(iter(seconds.values()))
    for name, taken in seconds.items():
        _say(name, asked.steps, len(RUNS), taken, f' ({taken / first:.2f})')


def _torch(asked, way, runs) -> None:
    cores, side_by_side = os.cpu_count() or 1, 'side by side' in way
    environment = os.environ | ({'OMP_NUM_THREADS': '1'} if side_by_side else {})

    def call(run):
        words = [*map(str, run), str(asked.steps), *(['--compile'] if 'compiled' in way else [])]
        subprocess.run([asked.torch, HERE / 'torch_blog.py', *words], env=environment, check=True,
                       capture_output=True)  # fmt: skip

    with ThreadPoolExecutor(cores if side_by_side else 1) as pool:
        list(pool.map(call, runs))


def _timed_few(asked, way, runs) -> float:
    start = time.perf_counter()
    _torch(asked, way, runs)
    seconds = time.perf_counter() - start
    _say(f'PyTorch, {way}', asked.steps, len(runs), seconds)
    return seconds


def _in_turns(commands: dict[str, list[str]]) -> dict[str, float]:
    """Seconds of each command, all of them under way and one of them running at a time."""
    seconds = dict.fromkeys(commands, 0.0)
    started: dict[str, subprocess.Popen] = {}
    left = list(commands)
    try:
        while left:
            for name in tuple(left):
                start = time.perf_counter()
                if name in started:
                    os.killpg(started[name].pid, signal.SIGCONT)
                else:
                    started[name] = subprocess.Popen(
                        commands[name], cwd=HERE.parent, start_new_session=True,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    )  # fmt: skip
                try:
                    if started[name].wait(TURN):
                        raise SystemExit(f'{name} failed: {commands[name]}')
                    left.remove(name)
                except subprocess.TimeoutExpired:
                    os.killpg(started[name].pid, signal.SIGSTOP)
                seconds[name] += time.perf_counter() - start
    finally:
        for process in started.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return seconds


def _say(name, steps, runs, seconds, more=''):
    per_step = 1e3 * seconds / (steps * runs)
    print(f'{name}: {runs} runs in {seconds:.0f} s, {per_step:.1f} ms a run-step, all included'
          + more, flush=True)  # fmt: skip


if __name__ == '__main__':
    main()
