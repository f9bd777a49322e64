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
from jax.sharding import NamedSharding, PartitionSpec

T = TypeVar('T')

# A process that says nothing for so long is taken for dead; so long the others wait for its end.
_PATIENCE_SECONDS = 10


class OtherFailed(Exception):
    """What another process could not do, in one line; it says it, too."""


def join(text: str) -> None:
    """Makes this process one of several; before anything else of JAX.

    Args:
      text: 'auto' where the launcher says who is who (TPU pods, Slurm, Kubernetes, MPI), or
        'ADDRESS:PORT,i/n': where the first of n processes listens, and which one this is.

    Raises:
      ValueError: neither; or no launcher is found.
    """
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


def several() -> bool:
    """Whether there are other processes."""
    # Counting processes would start JAX where it has not been.
    return jax.distributed.is_initialized() and jax.process_count() > 1


def first() -> bool:
    """Whether this is the process that touches the disk, and speaks."""
    return not several() or jax.process_index() == 0


def shared(make: Callable[[], T]) -> T:
    """What `make` gives on the first process, on all; JSON. The others do not call it.

    Raises:
      OtherFailed: on the others, where `make` raised something on the first.
    """
    if not several():
        return make()
    told, problem = '', None
    if first():
        try:
            told = json.dumps({'value': make()})
        except Exception as error:
            problem = error
            told = json.dumps({'error': (str(error).splitlines() or [type(error).__name__])[0]})
    told = json.loads(_broadcast(told.encode()))
    if problem:
        raise problem
    if 'error' in told:
        raise OtherFailed(f'the first process ended: {told["error"]}')
    return told['value']


def together(check: Callable[[], None]) -> None:
    """Calls `check` on every process; where one raises, the others raise OtherFailed."""
    problem = None
    try:
        check()
    except Exception as error:
        problem = error
    if several():
        failed = multihost_utils.process_allgather(np.int32(problem is not None))
        if problem is None and failed.any():
            raise OtherFailed(f'process {failed.argmax()} ended, and says why')
    if problem:
        raise problem


@contextlib.contextmanager
def entered(manager: AbstractContextManager) -> Iterator[None]:
    """Inside, the first process is inside of `manager`. Raises what `shared` raises."""
    with contextlib.ExitStack() as stack:

        def enter():
            stack.enter_context(manager)

        shared(enter)
        yield


def from_first(tree):
    """The first process's arrays, to the bit, on all; each gives a tree of the same shapes."""
    if not several():
        return tree

    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    content, arrays, start = _broadcast(b''.join(leaf.tobytes() for leaf in leaves)), [], 0
    for leaf in leaves:
        array = np.frombuffer(content, leaf.dtype, leaf.size, start)
        arrays.append(array.reshape(leaf.shape).copy())
        start += leaf.nbytes
    return jax.tree.unflatten(structure, arrays)


def gathered(tree):
    """Arrays that are spread over all devices, in the memory of every process."""
    if not several():
        return jax.device_get(tree)
    everywhere = NamedSharding(jax.tree.leaves(tree)[0].sharding.mesh, PartitionSpec())
    whole = jax.jit(_same, out_shardings=everywhere)(tree)
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), whole)


def _same(tree):
    """Defined once, so that gathering compiles once for each kind of tree."""
    return tree


def agreed(asked: Callable[[], int | None]) -> Callable[[], int | None]:
    """`asked`, but what any process is asked all are; all must call it at the same places."""
    if not several():
        return asked

    def ask():
        numbers = multihost_utils.process_allgather(np.int32(asked() or 0))
        return int(numbers.max()) or None

    return ask


def check_alike(mine: dict[str, Any]) -> None:
    """Raises ValueError where a process has something else than the first, and OtherFailed on the
    others; values are JSON."""
    if not several():
        return
    mine = json.loads(json.dumps(mine))
    theirs = json.loads(_broadcast(json.dumps(mine).encode()))

    def compare():
        for name in sorted(mine.keys() | theirs.keys()):
            here, there = mine.get(name), theirs.get(name)
            if here != there:
                raise ValueError(f'{name} is {here!r} here and {there!r} on the first process; '
                                 'start all processes alike')  # fmt: skip

    together(compare)


def _broadcast(content: bytes) -> bytes:
    """The first process's bytes, on all; up to 16 GiB."""
    content += b' ' * (-len(content) % 4)
    size = int(multihost_utils.broadcast_one_to_all(np.uint32(len(content) // 4)))
    # Programs are compiled for each size: so powers of two. Sums of words keep every bit.
    words = np.zeros(1 << max(size - 1, 255).bit_length(), np.uint32)
    if first():
        words[:size] = np.frombuffer(content, np.uint32)
    return np.asarray(multihost_utils.broadcast_one_to_all(words))[:size].tobytes()
