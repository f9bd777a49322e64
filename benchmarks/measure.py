"""Sides against each other in one run, in turns, so that a busy machine hits them alike."""

import platform
import statistics
import time
from collections.abc import Callable, Mapping

import jax

from posjax.sweep import Group, Machine


def alternate(sides: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """Median seconds of each side, in turns; the first call of each, which compiles, is not one."""
    for call in sides.values():
        jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def say(what: str, medians: Mapping[str, float], per: float = 1e-3, unit: str = 'ms') -> None:
    """One line: each side, and its ratio to the first."""
    first = next(iter(medians.values()))
    parts = [f'{name} {s / per:.3g} {unit} ({s / first:.2f})' for name, s in medians.items()]
    print(f'{what}: ' + ', '.join(parts), flush=True)


def steps(group: Group, count: int) -> Callable[[], object]:
    """A call that trains a group for `count` steps more, on all devices."""
    machine_ = Machine()
    state = machine_.init(group)

    def call():
        nonlocal state  # used up by each chunk, and made anew
        state, metrics = machine_.chunk(group, state, count, count)
        return metrics.loss

    return call


def machine() -> str:
    """What a figure was measured on."""
    device = jax.devices()[0]
    kind = device.device_kind if device.platform != 'cpu' else _processor()
    return f'{jax.device_count()} x {device.platform} ({kind}), jax {jax.__version__}'


def _processor() -> str:
    try:
        with open('/proc/cpuinfo') as file:
            names = [line.partition(':')[2].strip() for line in file if 'model name' in line]
        return f'{names[0]}, {len(names)} cores'
    except (OSError, IndexError):
        return platform.processor() or platform.machine()
