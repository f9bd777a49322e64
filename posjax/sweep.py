"""Many runs as one program: grouped by structure, stacked along a run axis, spread over devices.

    runs -- group by structure --> for each group: jit(vmap(loop(step))), sharded over its runs

Runs that differ only in data (seed, floats) share a program; runs of another structure (another
scheme class, task, width, length) are another. The run axis R comes first in every array.
"""

import collections
import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from posjax import evaluation, hosts, training
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


def _structure(group: Group):
    return jax.tree.structure(group.runs[0])


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
      devices: how many the run axis is split over; 0 takes all, of all hosts.
      batching: how one device goes through its runs: 'vmap' all at once; 'map' one after the other,
        which is faster on CPUs, where a batch of small products gains nothing; 'auto' picks.
      data: how many devices share the batch of a run. The others have other runs.
      parameters: on those devices: 'copied', or 'split', where each keeps a part of parameters and
        optimiser, for models that need it.

    Raises:
      ValueError: there are not so many devices, hosts have different numbers of them or would not
        use all, or `data` does not divide them.
    """

    def __init__(
        self, devices: int = 0, batching: str = 'auto', data: int = 1, parameters: str = 'copied'
    ):
        found = jax.devices()
        if devices > len(found):
            raise ValueError(
                f'mesh.devices={devices}, but this machine has {len(found)} '
                f'({found[0].platform}); ask for at most that, or 0 for all'
            )
        self.count = devices or len(found)
        self.here = sum(d.process_index == jax.process_index() for d in found[: self.count])
        each = sorted(collections.Counter(d.process_index for d in found).values())
        if each[0] != each[-1]:
            raise ValueError(f'mesh.devices={devices}: hosts should have equally many, and have '
                             f'{each[0]} to {each[-1]}')  # fmt: skip
        if hosts.several() and self.count < len(found):
            raise ValueError(
                f'mesh.devices={devices}, but there are {len(found)} on {jax.process_count()} '
                'hosts; of several hosts all are taken: leave it 0'
            )
        if batching == 'auto':
            batching = 'map' if found[0].platform == 'cpu' else 'vmap'
        if self.count % data:
            raise ValueError(f'mesh.data={data} should divide the number of devices, {self.count}')
        self.rows, self.data, self.split = self.count // data, data, parameters == 'split'
        self._mesh = jax.make_mesh((self.rows, data), ('runs', 'data'), (AxisType.Auto,) * 2,
                                   devices=found[: self.count])  # fmt: skip
        self.batching, self.device = batching, jax.local_devices()[0]
        self._made: dict = {}

    def __str__(self) -> str:
        where = f' on {jax.process_count()} hosts' if hosts.several() else ''
        return f'{self.count} {self.device.platform} devices{where}'

    def describe(self) -> dict[str, object]:
        """What it is, in JSON."""
        return {'platform': self.device.platform, 'device': self.device.device_kind,
                'devices': self.count, 'batching': self.batching, 'data': self.data,
                'parameters': 'split' if self.split else 'copied'}  # fmt: skip

    def share(self, group: Group) -> tuple[int, int]:
        """How many runs of a group a device has, and how many of them it works on at once."""
        runs = -(-len(group.runs) // self.rows)
        return runs, runs if self.batching == 'vmap' else 1

    def place(self, group: Group, tree):
        """`tree`, of (R, ...) arrays, on the devices, filled up with copies of the last run."""
        short = -len(group.runs) % self.rows

        def fill(x):
            x = np.asarray(x)
            return np.concatenate([x, np.repeat(x[-1:], short, axis=0)]) if short else x

        def put(x):
            x = fill(x)
            return jax.make_array_from_callback(x.shape, self._where(x), lambda rows: x[rows])

        return jax.tree.map(put, tree)

    def _where(self, x) -> NamedSharding:
        part = _part(x.shape[1:], self.data) if self.split else ()
        return NamedSharding(self._mesh, PartitionSpec('runs', *part))

    def fetch(self, group: Group, tree):
        """Copies in host memory, without the rows that only filled up the devices."""
        return jax.tree.map(lambda x: np.array(x[: len(group.runs)]), hosts.gathered(tree))

    def init(self, group: Group) -> training.State:
        """States before the first step, on the devices."""
        net = self._of(group.runs[0].model).net(*self._for_net(group))
        return self.programs(group).init(self._stacked(group), net)

    def chunk(self, group: Group, state: training.State, steps: int, size: int):
        """`steps` <= `size` steps of all runs; `state` is used up. Metrics come as (R, size)."""
        program = self.programs(group).chunk
        return program(self._stacked(group), state, np.int32(steps), size)

    def evaluate(
        self, group: Group, params, schemes: Sequence[tuple[tuple[Scheme, ...], ...]],
        lengths: tuple[int, ...], sequences: int, batch: int,
    ) -> tuple[evaluation.Counts, ...]:  # fmt: skip
        """Counts (R, ...), on the devices, of each length, of every run under its schemes;
        `schemes` has a tuple per run, of a tuple per length."""
        program = self.programs(group).evaluate
        placed = self.place(group, stack(schemes))
        return program(self._stacked(group), params, placed, lengths, sequences, batch)

    def prepare_training(self, group: Group, size: int) -> None:
        """Compiles what `init` and `chunk` need; other threads may do so, and call them, too."""
        state = self._like(group, abstract(group))
        program = self.programs(group).chunk
        program.prepare(self._stacked(group), state, np.int32(1), size)
        self._of(group.runs[0].model).net.prepare(*self._for_net(group))

    def prepare_evaluation(
        self, group: Group, schemes, lengths: tuple[int, ...], sequences: int, batch: int
    ) -> None:
        """Compiles what `evaluate` needs."""
        params = self._like(group, abstract(group).params)
        program = self.programs(group).evaluate
        placed = self.place(group, stack(schemes))
        program.prepare(self._stacked(group), params, placed, lengths, sequences, batch)

    def forget(self, group: Group) -> None:
        """Drops what was compiled for a group that is done; no other has its programs.

        Their code is memory that the system lends in pieces, of which a process may have 65,530 on
        Linux: LLVM crashes when some three hundred programs have used them up.
        """
        if made := self._made.pop(_structure(group), None):
            made.forget()

    def programs(self, group: Group) -> 'Programs':
        """What is, or is to be, compiled for a group's structure; but for the network's numbers,
        which are those of all groups with its model."""
        return self._of(_structure(group))

    def _of(self, what) -> 'Programs':
        if what not in self._made:
            fresh = Programs(self._mesh, _BATCHING[self.batching], self.split)
            self._made.setdefault(what, fresh)  # of two threads, the first has its way
        return self._made[what]

    def _for_net(self, group):
        seeds = np.asarray([run.seed for run in group.runs], np.int32)
        return self.place(group, seeds), group.runs[0].model

    def _like(self, group, tree):
        """Shapes of `tree`, of (R, ...) arrays, as it would be placed."""
        count = len(group.runs) + -len(group.runs) % self.rows
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype, sharding=self._where(x)),
            tree,
        )

    def _stacked(self, group):
        return self.place(group, stack(group.runs))


_BATCHING = {
    'vmap': lambda f, *args: jax.vmap(f)(*args),
    'map': lambda f, *args: jax.lax.map(lambda row: f(*row), args),
}


def _part(shape: tuple[int, ...], count: int) -> PartitionSpec:
    """Which dim of an array is split over the devices of a run: the last that can be, if any."""
    for axis in reversed(range(len(shape))):
        if shape[axis] and shape[axis] % count == 0:
            return PartitionSpec(*[None] * axis, 'data')
    return PartitionSpec()


class Program:
    """A jitted function, which can be compiled ahead of its calls, and is compiled once whichever
    threads ask for it."""

    def __init__(self, f: Callable, static: Sequence[str] = (), **options):
        self._jitted = jax.jit(f, static_argnames=static, **options)
        self._locks: dict = {}
        self._static = len(static)

    def __call__(self, *args):
        with self._lock(args):
            return self._jitted(*args)

    def prepare(self, *args) -> None:
        """Compiles for arguments, of which shapes are enough."""
        with self._lock(args):
            self.lower(*args).compile()

    def lower(self, *args) -> jax.stages.Lowered:
        return self._jitted.lower(*args)

    def forget(self) -> None:
        self._jitted.clear_cache()

    def _lock(self, args):
        """One for each program: static arguments come last."""
        return self._locks.setdefault(args[len(args) - self._static :], threading.Lock())


class Programs:
    """What is compiled: functions of one run, over the runs of a device, over the devices.

    Each compiles once per structure of its arguments. `shard_map` keeps devices from talking to
    each other over runs, which have nothing to say to one another. Devices that share a run are
    left to XLA, which is told where sequences are, and parameters, and does the talking.
    """

    def __init__(self, mesh: jax.sharding.Mesh, each, split: bool = False):
        runs, everywhere = PartitionSpec('runs'), PartitionSpec()
        data = mesh.shape['data']

        def over_devices(f, *specs):
            # Loops start from constants, which are not yet "varying over runs": no check for that.
            return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=runs, check_vma=False,
                                 axis_names={'runs'})  # fmt: skip

        def put(tree, where):
            if data == 1:
                return tree
            return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, where(x)), tree)

        def spread(rows):
            return put(rows, lambda x: everywhere if x.shape[0] % data else PartitionSpec('data'))

        def kept(state):
            return put(state, lambda x: _part(x.shape, data) if split else everywhere)

        def net(seeds, model):
            def one(seed):
                return training.net(model, seed)

            return over_devices(lambda s: each(one, s), runs)(seeds)

        def init(stacked, net):
            def one(run, net):
                return kept(training.begin(run, net))

            return over_devices(lambda r, n: each(one, r, n), runs, runs)(stacked, net)

        def chunk(stacked, state, steps, size):
            def local(r, s, n):
                def one(run, state):
                    state, metrics = training.chunk(run, kept(state), n, size, spread)
                    return kept(state), metrics

                return each(one, r, s)

            return over_devices(local, runs, runs, everywhere)(stacked, state, steps)

        def evaluate(stacked, params, schemes, lengths, sequences, batch):
            def one(run, params, schemes):
                return evaluation.counts(run, params, schemes, lengths, sequences, batch, spread)

            local = functools.partial(each, one)
            return over_devices(local, runs, runs, runs)(stacked, params, schemes)

        program = functools.partial(Program, compiler_options=_compiler_options(mesh))
        # The network's numbers take the longest to compile, and are those of every scheme.
        self.net = program(net, ('model',))
        self.init = program(init)
        self.chunk = program(chunk, ('size',), donate_argnames='state')
        self.evaluate = program(evaluate, ('lengths', 'sequences', 'batch'))

    def forget(self) -> None:
        for program in (self.net, self.init, self.chunk, self.evaluate):
            program.forget()


def _compiler_options(mesh) -> dict[str, int] | None:
    """On CPUs, the lowest level at which LLVM optimises: those above compile a fifth longer or
    more, for programs that are no faster. Whoever has switched optimisation off altogether keeps
    it off."""
    if mesh.devices.flat[0].platform != 'cpu' or jax.config.read('jax_disable_most_optimizations'):
        return None
    return {'xla_backend_optimization_level': 1}
