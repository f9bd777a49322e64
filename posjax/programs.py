"""What a sweep compiles: functions of one run, over the runs of a device, over the devices.

`shard_map` keeps devices from talking to each other over runs, which have nothing to say to one
another. Devices that share a run are left to XLA, which is told where sequences are, and
parameters, and does the talking.
"""

import functools
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posjax import evaluation, training
from posjax.run import Run

_RUNS, _EVERYWHERE = PartitionSpec('runs'), PartitionSpec()

_BATCHING = {
    'vmap': lambda f, *args: jax.vmap(f)(*args),
    'map': lambda f, *args: jax.lax.map(lambda row: f(*row), args),
}


class Program:
    """A jitted function that may be compiled ahead of its calls, on any thread, and is compiled
    once for arguments of one kind, whoever asks.

    Args:
      static: names of the last arguments, which are no arrays.
    """

    def __init__(self, f: Callable, static: Sequence[str] = (), **options):
        self._jitted = jax.jit(f, static_argnames=static, **options)
        self._locks: dict = {}
        self._static = len(static)

    def __call__(self, *args):
        with self._lock(args):
            return self._jitted(*args)

    def prepare(self, *args):
        """Compiles for arguments, of which shapes are enough; returns the shapes of what comes."""
        with self._lock(args):
            return self.lower(*args).compile().out_info

    def lower(self, *args) -> jax.stages.Lowered:
        return self._jitted.lower(*args)

    def forget(self) -> None:
        self._jitted.clear_cache()

    def _lock(self, args):
        # Programs with other static arguments may well compile side by side.
        return self._locks.setdefault(args[len(args) - self._static :], threading.Lock())


class Layout:
    """Where runs are on a mesh, and sequences and parameters of a run.

    Args:
      mesh: with axes 'runs' and 'data', the latter of devices that share a run.
      batching: how one device goes through its runs; see sweep.Machine.
      split: whether devices that share a run each keep a part of its parameters and optimiser.

    Attributes:
      runs: where arrays of whole runs are.
    """

    def __init__(self, mesh: Mesh, batching: str, split: bool):
        self.mesh, self.each = mesh, _BATCHING[batching]
        self._data, self._split = mesh.shape['data'], split
        self.runs = NamedSharding(mesh, _RUNS)

    def sharding(self, x) -> NamedSharding:
        """Of an array (R, ...) of runs."""
        part = _part(x.shape[1:], self._data) if self._split else ()
        return NamedSharding(self.mesh, PartitionSpec('runs', *part))

    def spread(self, rows):
        """Sequences of one run, over the devices that share it."""
        return self._put(
            rows, lambda x: _EVERYWHERE if x.shape[0] % self._data else PartitionSpec('data')
        )

    def kept(self, state):
        """The state of one run, likewise."""
        return self._put(
            state, lambda x: _part(x.shape, self._data) if self._split else _EVERYWHERE
        )

    def _put(self, tree, where):
        if self._data == 1:
            return tree
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, where(x)), tree)

    def over_devices(self, f, *specs):
        """`f` of a device's runs, on all devices."""
        # What devices share is XLA's to talk about; where they share nothing, it has no say.
        mine = {'runs'} if self._data > 1 else {'runs', 'data'}
        # Loops start from constants, which are not yet "varying over runs": no check for that.
        return jax.shard_map(f, mesh=self.mesh, in_specs=specs, out_specs=_RUNS, check_vma=False,
                             axis_names=mine)  # fmt: skip

    def program(self, f, *static: str, **options) -> Program:
        return Program(f, static, compiler_options=_compiler_options(self.mesh), **options)


class Programs(NamedTuple):
    """Those of one structure of runs.

    Attributes:
      net: the networks' first numbers, which take the longest to compile of what is not trained.
      draw: the sequences of an evaluation.
      init: the state around the network's numbers.
      chunk: steps.
      evaluate: answers to what was drawn.
    """

    net: Program
    draw: Program
    init: Program
    chunk: Program
    evaluate: Program


class Shelf:
    """Programs of all structures of runs; those that do not depend on where structures differ, as
    in their scheme, are one."""

    def __init__(self, layout: Layout):
        self._layout, self._made = layout, {}

    def of(self, run: Run) -> Programs:
        """What is, or is to be, compiled for runs of this one's structure."""
        found = {}
        for name, key in _keys(run).items():
            if key not in self._made:
                # Of two threads that find nothing, the first has its way.
                self._made.setdefault(key, _MAKERS[name](self._layout))
            found[name] = self._made[key]
        return Programs(**found)

    def forget(self, run: Run, others: Iterable[Run]) -> None:
        """Drops what was compiled for a structure of runs, but for what others need."""
        needed = {key for other in others for key in _keys(other).values()}
        for key in _keys(run).values():
            if key not in needed and key in self._made:
                self._made.pop(key).forget()


def _keys(run: Run) -> dict[str, Hashable]:
    """What each program depends on."""
    structure = jax.tree.structure(run)
    parts = dict.fromkeys(_MAKERS, structure)
    parts |= {'net': run.model, 'draw': jax.tree.structure(run.task)}
    return {name: (name, part) for name, part in parts.items()}


def _net(layout):
    def net(seeds, model):
        one = functools.partial(training.net, model)
        return layout.over_devices(functools.partial(layout.each, one), _RUNS)(seeds)

    return layout.program(net, 'model')


def _draw(layout):
    def draw(tasks, seeds, lengths, sequences, batch):
        def one(task, seed):
            return evaluation.draw(task, seed, lengths, sequences, batch, layout.spread)

        over = layout.over_devices(functools.partial(layout.each, one), _RUNS, _RUNS)
        return over(tasks, seeds)

    return layout.program(draw, 'lengths', 'sequences', 'batch', out_shardings=layout.runs)


def _init(layout):
    def init(stacked, net):
        def one(run, net):
            return layout.kept(training.begin(run, net))

        over = layout.over_devices(functools.partial(layout.each, one), _RUNS, _RUNS)
        return over(stacked, net)

    return layout.program(init)


def _chunk(layout):
    def chunk(stacked, state, steps, size):
        def local(runs, states, steps):
            def one(run, state):
                state, metrics = training.chunk(run, layout.kept(state), steps, size, layout.spread)
                return layout.kept(state), metrics

            return layout.each(one, runs, states)

        return layout.over_devices(local, _RUNS, _RUNS, _EVERYWHERE)(stacked, state, steps)

    return layout.program(chunk, 'size', donate_argnames='state')


def _evaluate(layout):
    def evaluate(stacked, params, schemes, drawn, lengths, batch):
        def one(run, params, schemes, drawn):
            return evaluation.answer(run, params, schemes, drawn, lengths, batch, layout.spread)

        over = layout.over_devices(functools.partial(layout.each, one), *[_RUNS] * 4)
        return over(stacked, params, schemes, drawn)

    return layout.program(evaluate, 'lengths', 'batch')


_MAKERS = {'net': _net, 'draw': _draw, 'init': _init, 'chunk': _chunk, 'evaluate': _evaluate}


def _part(shape: tuple[int, ...], count: int) -> PartitionSpec:
    """Which dim of an array is split over the devices of a run: the last that can be, if any."""
    for axis in reversed(range(len(shape))):
        if shape[axis] and shape[axis] % count == 0:
            return PartitionSpec(*[None] * axis, 'data')
    return PartitionSpec()


def _compiler_options(mesh) -> dict[str, int] | None:
    """On CPUs, the lowest level at which LLVM optimises: those above compile a fifth longer or
    more, for programs that are no faster. Whoever has switched optimisation off altogether keeps
    it off."""
    if mesh.devices.flat[0].platform != 'cpu' or jax.config.read('jax_disable_most_optimizations'):
        return None
    return {'xla_backend_optimization_level': 1}
