"""What a sweep compiles: functions of one run, over the runs of a device, over the devices.

`shard_map` keeps devices from talking to each other over runs, which have nothing to say to one
another. Devices that share a run are left to XLA, which is told where sequences are, and
parameters, and does the talking.
"""

import functools
import threading
from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from posjax import evaluation, training

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

    def prepare(self, *args) -> None:
        """Compiles for arguments, of which shapes are enough."""
        with self._lock(args):
            self.lower(*args).compile()

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
    """

    def __init__(self, mesh: Mesh, batching: str, split: bool):
        self.mesh, self.each = mesh, _BATCHING[batching]
        self._data, self._split = mesh.shape['data'], split

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

    def net(self) -> Program:
        """The networks' first numbers, which take the longest to compile of what is not trained,
        and are those of every scheme."""

        def net(seeds, model):
            one = functools.partial(training.net, model)
            return self.over_devices(lambda s: self.each(one, s), _RUNS)(seeds)

        return self.program(net, 'model')


class Programs:
    """Those of one structure of runs: a state around the network's numbers, a chunk of steps, an
    evaluation."""

    def __init__(self, layout: Layout):
        over, each = layout.over_devices, layout.each

        def init(stacked, net):
            def one(run, net):
                return layout.kept(training.begin(run, net))

            return over(functools.partial(each, one), _RUNS, _RUNS)(stacked, net)

        def chunk(stacked, state, steps, size):
            def local(runs, states, steps):
                def one(run, state):
                    state, metrics = training.chunk(
                        run, layout.kept(state), steps, size, layout.spread
                    )
                    return layout.kept(state), metrics

                return each(one, runs, states)

            return over(local, _RUNS, _RUNS, _EVERYWHERE)(stacked, state, steps)

        def evaluate(stacked, params, schemes, lengths, sequences, batch):
            def one(run, params, schemes):
                return evaluation.counts(
                    run, params, schemes, lengths, sequences, batch, layout.spread
                )

            return over(functools.partial(each, one), _RUNS, _RUNS, _RUNS)(stacked, params, schemes)

        self.init = layout.program(init)
        self.chunk = layout.program(chunk, 'size', donate_argnames='state')
        self.evaluate = layout.program(evaluate, 'lengths', 'sequences', 'batch')

    def forget(self) -> None:
        for program in (self.init, self.chunk, self.evaluate):
            program.forget()


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
