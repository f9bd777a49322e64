"""Several processes as one command: one on each host, started alike, each with its own devices.

All of them compute; the first alone touches the disk, so that a workdir need not be reachable from
the others. What it reads and what goes wrong there, it tells them, so that all take the same turns.
With one process, which is the rule, everything here does nothing.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar('T')

_joined = False  # asking JAX would start it

# A process that says nothing for so long is taken for dead; so long the others wait for its end.
_PATIENCE_SECONDS = 10


class FirstFailed(Exception):
    """What the first process could not do; its own error, in one line."""


def join(text: str) -> None:
    """Makes this process one of several; before anything else of JAX.

    Args:
      text: 'auto' where the launcher says who is who (TPU pods, Slurm, Kubernetes, MPI), or
        'ADDRESS:PORT,i/n': where the first of n processes listens, and which one this is.

    Raises:
      ValueError: neither; or no launcher is found.
    """
    global _joined
    given = {}
    if text != 'auto':
        found = re.fullmatch(r'(\S+:\d+),(\d+)/(\d+)', text)
        if not found or not int(found[2]) < int(found[3]):
            raise ValueError(f"{text!r} should be 'auto' or 'ADDRESS:PORT,i/n' with i from 0 to "
                             "n - 1, as in '10.0.0.1:1234,0/2'")  # fmt: skip
        given = {'coordinator_address': found[1], 'cluster_detection_method': 'deactivate',
                 'process_id': int(found[2]), 'num_processes': int(found[3])}  # fmt: skip
    # SIGTERM is ours (signals.py): JAX's own service would swallow it.
    jax.config.update('jax_enable_preemption_service', False)
    try:
        jax.distributed.initialize(
            **given,
            heartbeat_timeout_seconds=_PATIENCE_SECONDS,
            shutdown_timeout_seconds=_PATIENCE_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(f'{text!r}: {str(error).splitlines()[0]}; where no launcher says who is '
                         "who, write 'ADDRESS:PORT,i/n'") from None  # fmt: skip
    _joined = True


def several() -> bool:
    """Whether there are other processes."""
    return _joined and jax.process_count() > 1


def first() -> bool:
    """Whether this is the process that touches the disk, and speaks."""
    return not _joined or jax.process_index() == 0


def shared(make: Callable[[], T]) -> T:
    """What `make` gives on the first process, on all; JSON. The others do not call it.

    Raises:
      FirstFailed: on the others, where `make` raised something on the first.
    """
    if not several():
        return make()
    told, problem = None, None
    if first():
        try:
            told = {'value': make()}
        except Exception as error:
            problem = error
            told = {'error': (str(error).splitlines() or [type(error).__name__])[0]}
    told = json.loads(_broadcast(json.dumps(told).encode()))
    if problem:
        raise problem
    if 'error' in told:
        raise FirstFailed(told['error'])
    return told['value']


@contextlib.contextmanager
def entered(manager: AbstractContextManager) -> Iterator[None]:
    """Inside, the first process is inside of `manager`. Raises what `shared` raises."""
    with contextlib.ExitStack() as stack:

        def enter():
            stack.enter_context(manager)

        shared(enter)
        yield


def spread(tree):
    """The first process's arrays, to the bit, on all; each gives a tree of the same shapes."""
    if not several():
        return tree

    def one(array):
        array = np.ascontiguousarray(array)
        return np.frombuffer(_broadcast(array.tobytes()), array.dtype).reshape(array.shape).copy()

    return jax.tree.map(one, tree)


def gathered(tree):
    """Arrays that are spread over all devices, in the memory of every process."""
    if not several():
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def agreed(asked: Callable[[], int | None]) -> Callable[[], int | None]:
    """`asked`, but what any process is asked all are; all must call it at the same places."""
    if not several():
        return asked

    def ask():
        numbers = multihost_utils.process_allgather(np.int32(asked() or 0))
        return int(numbers.max()) or None

    return ask


def check_alike(mine: dict[str, Any]) -> None:
    """Raises ValueError, on all processes, where they do not all have the same; values are JSON."""
    if not several():
        return
    mine = json.loads(json.dumps(mine))
    theirs = json.loads(_broadcast(json.dumps(mine).encode()))
    names = sorted(n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n))
    other = multihost_utils.process_allgather(np.int32(bool(names)))
    remedy = 'start all processes alike'
    if names:
        raise ValueError(f'{names[0]} is {mine.get(names[0])!r} here and {theirs.get(names[0])!r} '
                         f'on the first process; {remedy}')  # fmt: skip
    if other.any():
        raise ValueError(f'process {other.argmax()} differs from this one, as it says; {remedy}')


def _broadcast(content: bytes) -> bytes:
    """The first process's bytes, on all."""
    size = int(multihost_utils.broadcast_one_to_all(np.uint32(len(content))))
    # Programs are compiled for each size: so powers of two. Sums of words keep every bit.
    words = np.zeros(1 << max(-(-size // 4) - 1, 255).bit_length(), np.uint32)
    if first():
        words.view(np.uint8)[:size] = np.frombuffer(content, np.uint8)
    told = np.ascontiguousarray(multihost_utils.broadcast_one_to_all(words))
    return told.view(np.uint8)[:size].tobytes()
