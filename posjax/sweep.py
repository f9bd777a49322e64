"""Many runs as one program: grouped by structure, stacked along a run axis, spread over devices.

    runs -- group by structure --> for each group: jit(vmap(loop(step))), sharded over its runs

Runs that differ only in data (seed, floats) share a program; runs of another structure (another
scheme class, task, width, length) are another. The run axis R comes first in every array.
"""

import collections
import dataclasses
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType

from posjax import evaluation, hosts, training
from posjax.programs import Layout, Programs, Shelf
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


class Question(NamedTuple):
    """What one program of evaluation asks a group.

    Attributes:
      schemes: for each run, for each length, the schemes it is asked under.
      lengths: in tokens.
      sequences: how many of each length; `batch` at a time.
    """

    schemes: Sequence[tuple[tuple[Scheme, ...], ...]]
    lengths: tuple[int, ...]
    sequences: int
    batch: int


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
        mesh = jax.make_mesh((self.rows, data), ('runs', 'data'), (AxisType.Auto,) * 2,
                             devices=found[: self.count])  # fmt: skip
        self.batching, self.device = batching, jax.local_devices()[0]
        self._layout = Layout(mesh, batching, self.split)
        self._shelf = Shelf(self._layout)

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
            where = self._layout.sharding(x)
            return jax.make_array_from_callback(x.shape, where, lambda rows: x[rows])

        return jax.tree.map(put, tree)

    def fetch(self, group: Group, tree):
        """Copies in host memory, without the rows that only filled up the devices."""
        return jax.tree.map(lambda x: np.array(x[: len(group.runs)]), hosts.gathered(tree))

    def init(self, group: Group) -> training.State:
        """States before the first step, on the devices."""
        programs = self.programs(group)
        return programs.init(self._stacked(group), programs.net(*self._for_net(group)))

    def chunk(self, group: Group, state: training.State, steps: int, size: int):
        """`steps` <= `size` steps of all runs; `state` is used up. Metrics come as (R, size)."""
        program = self.programs(group).chunk
        return program(self._stacked(group), state, np.int32(steps), size)

    def evaluate(self, group: Group, params, asked: Question) -> tuple[evaluation.Counts, ...]:
        """Counts (R, ...), on the devices, of each length asked about."""
        programs = self.programs(group)
        drawn = programs.draw(*self._for_drawing(group, asked))
        return programs.evaluate(*self._for_evaluation(group, params, drawn, asked))

    def prepare_training(self, group: Group, size: int) -> None:
        """Compiles, if it is not, what takes long of `init`, and `chunk`: on any thread."""
        state, programs = self._like(group, abstract(group)), self.programs(group)
        programs.chunk.prepare(self._stacked(group), state, np.int32(1), size)
        programs.net.prepare(*self._for_net(group))

    def prepare_evaluation(self, group: Group, asked: Question) -> None:
        """Compiles, if it is not, what `evaluate` needs: on any thread."""
        params, programs = self._like(group, abstract(group).params), self.programs(group)
        drawn = programs.draw.prepare(*self._for_drawing(group, asked))
        programs.evaluate.prepare(*self._for_evaluation(group, params, drawn, asked))

    def forget(self, group: Group, others: Sequence[Group] = ()) -> None:
        """Drops what was compiled for a group that is done, and that no other needs.

        Their code is memory that the system lends in pieces, of which a process may have 65,530 on
        Linux: LLVM crashes when some three hundred programs have used them up.
        """
        self._shelf.forget(group.runs[0], [other.runs[0] for other in others])

    def programs(self, group: Group) -> Programs:
        """What is, or is to be, compiled for runs of a group's structure."""
        return self._shelf.of(group.runs[0])

    def _for_net(self, group):
        return self._seeds(group), group.runs[0].model

    def _for_drawing(self, group, asked):
        tasks = self.place(group, stack([run.task for run in group.runs]))
        return tasks, self._seeds(group), asked.lengths, asked.sequences, asked.batch

    def _for_evaluation(self, group, params, drawn, asked):
        schemes = self.place(group, stack(asked.schemes))
        return self._stacked(group), params, schemes, drawn, asked.lengths, asked.batch

    def _like(self, group, tree):
        """Shapes of `tree`, of (R, ...) arrays, as it would be placed."""
        count = self.rows * self.share(group)[0]

        def like(x):
            where = self._layout.sharding(x)
            return jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype, sharding=where)

        return jax.tree.map(like, tree)

    def _seeds(self, group):
        return self.place(group, np.asarray([run.seed for run in group.runs], np.int32))

    def _stacked(self, group):
        return self.place(group, stack(group.runs))
