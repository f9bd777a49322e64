"""Many runs as one program: grouped by structure, stacked along a run axis, spread over devices.

    runs -- group by structure --> for each group: jit(vmap(loop(step))), sharded over its runs

Runs that differ only in data (seed, floats) share a program; runs of another structure (another
scheme class, task, width, length) are another. The run axis R comes first in every array.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from posjax import evaluation, training
from posjax.run import Run
from posjax.scheme import Scheme, as_chain


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one structure, in order, and a name for their files."""

    name: str
    runs: tuple[Run, ...]


def group(runs: Sequence[Run]) -> list[Group]:
    """Runs of equal structure together, in order of their first appearance."""
    found: dict = {}
    for run in runs:
        found.setdefault(jax.tree.structure(run), []).append(run)
    return [
        Group(f'{number:02d}-{_slug(members[0])}', tuple(members))
        for number, members in enumerate(found.values())
    ]


def _slug(run: Run) -> str:
    """Names of task and scheme without their arguments, fit for a folder."""
    names = [run.task.name(), *(part.name() for part in as_chain(run.scheme).parts)]
    return re.sub(r'[^A-Za-z0-9_]+', '-', '-'.join(names))[:60]


def stack(trees: Sequence) -> object:
    """Trees of one structure with numbers for leaves, as one tree of (R,) arrays."""
    return jax.tree.map(lambda *leaves: np.asarray(leaves, _dtype(leaves[0])), *trees)


def _dtype(leaf):
    return np.float32 if isinstance(leaf, float) else np.int32


def abstract(group: Group) -> training.State:
    """Shapes and dtypes of the states (R, ...) of a group."""
    state = jax.eval_shape(training.init, group.runs[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((len(group.runs), *x.shape), x.dtype), state)


class Machine:
    """The devices a sweep runs on.

    Args:
      devices: how many the run axis is split over; 0 takes all.
      batching: how one device goes through its runs: 'vmap' all at once; 'map' one after the other,
        which is faster on CPUs, where a batch of small products gains nothing; 'auto' picks.

    Raises:
      ValueError: there are not so many devices.
    """

    def __init__(self, devices: int = 0, batching: str = 'auto'):
        found = jax.devices()
        if devices > len(found):
            raise ValueError(
                f'mesh.devices={devices}, but this machine has {len(found)} '
                f'({found[0].platform}); ask for at most that, or 0 for all'
            )
        self.count = devices or len(found)
        if batching == 'auto':
            batching = 'map' if found[0].platform == 'cpu' else 'vmap'
        mesh = jax.make_mesh(
            (self.count,), ('runs',), (AxisType.Auto,), devices=found[: self.count]
        )
        self.batching, self.device = batching, found[0]
        self._by_run = NamedSharding(mesh, PartitionSpec('runs'))
        self._programs = Programs(mesh, _BATCHING[batching])

    def __str__(self) -> str:
        return f'{self.count} {self.device.platform} devices'

    def describe(self) -> dict[str, object]:
        """What it is, in JSON."""
        return {'platform': self.device.platform, 'device': self.device.device_kind,
                'devices': self.count, 'batching': self.batching}  # fmt: skip

    def share(self, group: Group) -> tuple[int, int]:
        """How many runs of a group a device has, and how many of them it works on at once."""
        runs = -(-len(group.runs) // self.count)
        return runs, runs if self.batching == 'vmap' else 1

    def place(self, group: Group, tree):
        """`tree`, of (R, ...) arrays, on the devices, filled up with copies of the last run."""
        short = -len(group.runs) % self.count

        def fill(x):
            x = np.asarray(x)
            return np.concatenate([x, np.repeat(x[-1:], short, axis=0)]) if short else x

        return jax.device_put(jax.tree.map(fill, tree), self._by_run)

    def fetch(self, group: Group, tree):
        """Copies in host memory, without the rows that only filled up the devices."""
        return jax.tree.map(lambda x: np.array(x[: len(group.runs)]), jax.device_get(tree))

    def init(self, group: Group) -> training.State:
        """States before the first step, on the devices."""
        seeds = self.place(group, np.asarray([run.seed for run in group.runs], np.int32))
        net = self._programs.net(seeds, group.runs[0].model)
        return self._programs.init(self._stacked(group), net)

    def chunk(self, group: Group, state: training.State, steps: int, size: int):
        """`steps` <= `size` steps of all runs; `state` is used up. Metrics come as (R, size)."""
        return self._programs.chunk(self._stacked(group), state, np.int32(steps), size)

    def evaluate(
        self, group: Group, params, schemes: Sequence[Sequence[Scheme]], length: int,
        sequences: int, batch: int,
    ) -> evaluation.Counts:  # fmt: skip
        """Counts (R, ...) of every run under its schemes; `schemes` has a sequence per run."""
        placed = self.place(group, stack([tuple(row) for row in schemes]))
        runs = self._stacked(group)
        counts = self._programs.evaluate(runs, params, placed, length, sequences, batch)
        return self.fetch(group, counts)

    def _stacked(self, group):
        return self.place(group, stack(group.runs))


_BATCHING = {
    'vmap': lambda f, *args: jax.vmap(f)(*args),
    'map': lambda f, *args: jax.lax.map(lambda row: f(*row), args),
}


class Programs:
    """What is compiled: functions of one run, over the runs of a device, over the devices.

    Each compiles once per structure of its arguments. `shard_map` keeps devices from talking to
    each other: runs have nothing to say to one another.
    """

    def __init__(self, mesh: jax.sharding.Mesh, each):
        runs, shared = PartitionSpec('runs'), PartitionSpec()

        def over_devices(f, *specs):
            # Loops start from constants, which are not yet "varying over runs": no check for that.
            return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=runs, check_vma=False)

        def net(seeds, model):
            def one(seed):
                return training.net(model, seed)

            return over_devices(lambda s: each(one, s), runs)(seeds)

        def init(stacked, net):
            return over_devices(lambda r, n: each(training.begin, r, n), runs, runs)(stacked, net)

        def chunk(stacked, state, steps, size):
            def local(r, s, n):
                return each(lambda run, state: training.chunk(run, state, n, size), r, s)

            return over_devices(local, runs, runs, shared)(stacked, state, steps)

        def evaluate(stacked, params, schemes, length, sequences, batch):
            def one(run, params, schemes):
                return evaluation.counts(run, params, schemes, length, sequences, batch)

            local = functools.partial(each, one)
            return over_devices(local, runs, runs, runs)(stacked, params, schemes)

        # The network's numbers take the longest to compile, and are those of every scheme.
        self.net = jax.jit(net, static_argnames='model')
        self.init = jax.jit(init)
        self.chunk = jax.jit(chunk, static_argnames='size', donate_argnames='state')
        self.evaluate = jax.jit(evaluate, static_argnames=('length', 'sequences', 'batch'))
