"""Whether a sweep can fit in memory, asked before anything is allocated.

Counted from below: the states of all runs, and beside them the largest of what a step must hold at
one time (all gradients, or the activations of one layer). So what is refused cannot fit, and what
is not refused may still run out; it then ends with one line, too.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from posjax import evaluation, training
from posjax.attention import keys_at_once
from posjax.config import ConfigError
from posjax.model import is_fused
from posjax.run import Run
from posjax.sweep import Group, Machine


def check_training(groups: Sequence[Group], machine: Machine) -> None:
    """Raises ConfigError, with the memory it would take, where a group cannot be trained."""
    for group in groups:
        run = group.runs[0]
        state, params = _sizes(run)
        layer = _layer(run, run.microbatch or run.batch, run.length, keys=run.length)
        step = max(params // _parts(machine), layer // machine.data)
        _check(group, machine, state, step, f'config.train.length={run.length}',
               'set train.microbatch or model.block')  # fmt: skip


def check_evaluation(
    groups: Sequence[Group], machine: Machine, config, able: Mapping[str, Sequence[int]] = {}
) -> None:
    """Raises ConfigError, with the memory it would take, where a length cannot be evaluated.

    Args:
      config: the `eval` part of a config.
      able: lengths that are asked of a group, by its name; those of the config by default.
    """
    for group in groups:
        run = group.runs[0]
        _, params = _sizes(run)
        words = len(config.interventions)
        asked = dict.fromkeys(able.get(group.name, config.lengths), words * config.sequences)
        for lengths in evaluation.together(run.model, asked):
            longest = max(lengths)
            answers = sum(asked[length] for length in lengths) * longest * 4
            keys = keys_at_once(run.scheme, run.model.block, longest)
            layer = _layer(run, min(config.batch, config.sequences), longest, keys)
            step = layer // machine.data + answers
            remedy = 'lower eval.batch, train with model.block, or leave that length out'
            _check(group, machine, params, step, f'config.eval.lengths: {longest}', remedy)


def _check(group, machine, resting, working, what, remedy) -> None:
    runs, at_once = machine.share(group)
    need = runs * resting // _parts(machine) + at_once * working
    have = _available(machine.device)
    if machine.device.platform == 'cpu':  # where devices are cores, with one memory
        need *= machine.here
    if need > have:
        raise ConfigError(f'{what} takes at least {_text(need)} of memory, and there are '
                          f'{_text(have)} ({group.name}); {remedy}')  # fmt: skip


def _parts(machine: Machine) -> int:
    """How many devices share the parameters of a run."""
    return machine.data if machine.split else 1


def _sizes(run: Run) -> tuple[int, int]:
    """Bytes of a run's whole state, and of its parameters alone."""
    state = jax.eval_shape(training.init, run)
    return tuple(
        sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))
        for tree in (state, state.params)
    )


def _layer(run: Run, batch: int, length: int, keys: int) -> int:
    """Bytes in float32 of the attention weights that a layer has at a time, if it makes any, beside
    the logits."""
    m = run.model
    queries = 0 if is_fused(m, run.scheme) else min(m.block or length, length)
    return 4 * batch * (m.heads * queries * keys + length * m.classes)


def _available(device: jax.Device) -> float:
    """Bytes that a device has in all, used ones too: those may become free."""
    if device.platform != 'cpu':
        return (device.memory_stats() or {}).get('bytes_limit', math.inf)
    pages = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    limit = Path('/sys/fs/cgroup/memory.max')  # of a container
    text = limit.read_text().strip() if limit.exists() else 'max'
    return min(pages, int(text)) if text.isdigit() else pages


def _text(count: float) -> str:
    for unit in ('kB', 'MB', 'GB', 'TB'):
        count /= 1000
        if count < 1000:
            return f'{count:.1f} {unit}'
    return f'{count:.3g} {unit}'
