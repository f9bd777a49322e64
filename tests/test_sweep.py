"""The run axis: grouping, a row against its run alone, and how often anything compiles."""

import contextlib
import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from configs import blog
from posjax import config as config_lib
from posjax import experiment, plan, sweep
from posjax.sweep import Machine
from tests.test_training import chunk, init, make, poisoned

OPTAX_RUNS = True


@contextlib.contextmanager
def compiled():
    """Counts programs that XLA compiles inside."""
    count = []

    def listen(event, _, **__):
        if event == '/jax/core/compile/backend_compile_duration':
            count.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def grid():
    """Two numbers by two seeds and one more: five runs of one structure, on two devices."""
    runs = [make(f'rope(theta={theta})|alibi(slopes=({theta}, 0.1))', seed)
            for theta in (3.0, 50.0) for seed in (0, 1)]  # fmt: skip
    (group,) = sweep.group(
        [*runs, make('rope(theta=9.0)|alibi(slopes=(1, 2))', 7, learning_rate=0.01)]
    )
    return group


def test_the_founding_table_is_ten_programs():
    groups = sweep.group(plan.runs(blog.get_config()))
    assert [len(g.runs) for g in groups] == [2, 2, 2, 4, 4] * 2
    assert len({g.name for g in groups}) == 10
    assert groups[0].name == '00-lag-none' and groups[9].name == '09-seen-alibi'


def test_names_of_groups_are_safe_in_files():
    names = [g.name for g in sweep.group([make('rope|alibi'), make('learned(max_length=9)')])]
    assert names == ['00-lag-rope-alibi', '01-lag-learned']


@pytest.mark.parametrize(
    'devices, batching',
    [
        (2, 'map'),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in ((1, 'map'), (1, 'vmap'), (2, 'vmap'))
        ),
    ],
)
def test_a_row_of_the_sweep_is_its_run_alone(batching, devices):
    group, machine = grid(), Machine(devices, batching)
    state, metrics = machine.chunk(group, machine.init(group), 20, 20)
    state, metrics = machine.fetch(group, state), machine.fetch(group, metrics)
    assert state.step.shape == (5,)
    for row, run in enumerate(group.runs):
        alone, log = chunk(run, init(run), 20)
        np.testing.assert_allclose(metrics.loss[row], log.loss, atol=2e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a[row], b, atol=5e-4),
                     state.params, alone.params)  # fmt: skip
    assert np.ptp(metrics.loss[:, -1]) > 1e-3


def test_neighbours_of_a_failed_run_are_untouched_to_the_bit():
    group, machine = grid(), Machine()

    def train(spoil):
        state = machine.fetch(group, machine.init(group))
        if spoil:
            row = jax.tree.map(lambda x: x[1], state)
            bad = jax.tree.map(np.asarray, poisoned(group.runs[1], row))
            state = jax.tree.map(lambda x, y: np.stack([*x[:1], y, *x[2:]]), state, bad)
        state, _ = machine.chunk(group, machine.place(group, state), 10, 20)
        return machine.fetch(group, state)

    clean, spoiled = train(False), train(True)
    assert list(spoiled.failed) == [-1, 0, -1, -1, -1]
    for row in (0, 2, 3, 4):
        jax.tree.map(lambda a, b, r=row: np.testing.assert_array_equal(a[r], b[r]), spoiled, clean)


def asking(group, lengths):
    """Each run under its own scheme."""
    schemes = [tuple((run.scheme,) for _ in lengths) for run in group.runs]
    return sweep.Question(schemes, lengths, sequences=10, batch=4)


def test_exact_compile_counts():
    group, machine = grid(), Machine()
    with compiled() as count:
        state = machine.init(group)
        assert len(count) == 2, 'the network, and the state around it'
        for steps in (20, 20, 3):
            state, _ = machine.chunk(group, state, steps, 20)
        assert len(count) == 3
        state = machine.place(group, machine.fetch(group, state))
        state, _ = machine.chunk(group, state, 5, 20)
        assert len(count) == 3, 'a restored state compiles again'
        for lengths in ((6,), (12, 6), (6,)):
            machine.evaluate(group, state.params, asking(group, lengths))
        assert len(count) == 7, 'for each choice of lengths what draws sequences, and what answers'
        # Other numbers, other seeds: the same programs.
        (other,) = sweep.group(
            [make(f'rope(theta=2.0)|alibi(slopes=({s}.5, 1))', s) for s in range(5)]
        )
        state, _ = machine.chunk(other, machine.init(other), 20, 20)
        assert len(count) == 7
        # Another scheme takes the network's numbers, and the sequences, as they are.
        (other,) = sweep.group([make('sinusoidal', seed) for seed in range(5)])
        state = machine.init(other)
        assert len(count) == 8
        machine.evaluate(other, state.params, asking(other, (6,)))
        assert len(count) == 9


@pytest.mark.parametrize('batching', ['map', 'vmap'])
def test_what_is_compiled_ahead_is_compiled_once(batching):
    group, machine = grid(), Machine(2, batching)
    question = asking(group, (6,))
    with compiled() as count:
        with ThreadPoolExecutor() as pool:
            for future in [
                pool.submit(machine.prepare_training, group, 20),
                pool.submit(machine.prepare_evaluation, group, question),
                pool.submit(machine.prepare_training, group, 20),
            ]:
                future.result()
        assert len(count) == 4, 'the network, a chunk of steps, sequences, answers'
        state = machine.place(group, machine.fetch(group, machine.init(group)))
        assert len(count) == 5
        state, _ = machine.chunk(group, state, 3, 20)
        machine.evaluate(group, state.params, question)
        machine.prepare_training(group, 20)
        assert len(count) == 5


def test_a_group_that_is_done_takes_no_other_s_programs_with_it():
    machine, groups = Machine(2), [grid(), *sweep.group([make('sinusoidal', s) for s in range(3)])]
    with compiled() as count:
        for group in groups:
            machine.prepare_training(group, 20)
        before = len(count)
        machine.forget(groups[0], groups[1:])
        other = groups[1]
        state = machine.place(other, machine.fetch(other, machine.init(other)))
        machine.chunk(other, state, 3, 20)
        assert len(count) == before + 1, 'but for the state around the network'
        machine.forget(other)
        machine.init(other)
        assert len(count) == before + 3, 'the network, which nobody else needed, and the state'


def test_a_sweep_compiles_nothing_twice(tmp_path):
    config = small()
    config.sweep.scheme, config.eval.lengths = ('none', 'alibi', 'sinusoidal'), (6, 3)
    with compiled() as count:
        experiment.train(config, tmp_path, say=lambda line: None)
    assert len(count) == 2 + 3 * 3, (
        'a network, sequences of evaluation; and of each scheme states, steps and answers'
    )


def small():
    config = config_lib.default()
    config.task, config.model.layers, config.model.width = 'lag(k=1, vocab=4)', 1, 8
    config.train.length, config.train.batch, config.train.steps = 6, 4, 2
    config.train.chunk = config.train.log_every = 2
    config.eval.lengths, config.eval.interventions, config.eval.sequences = (6,), ('none',), 4
    return config


def pieces():
    """How many pieces of memory the system has lent to this process."""
    with open('/proc/self/maps') as file:
        return sum(1 for _ in file)


@pytest.mark.skipif(not os.path.exists('/proc/self/maps'), reason='of Linux alone')
def test_programs_of_a_group_that_is_done_are_given_back(tmp_path):
    config = small()
    config.sweep.scheme, found = ('none', 'alibi', 'sinusoidal'), []
    experiment.train(config, tmp_path, say=lambda line: found.append(pieces()))
    first, *_, last = found[1:]  # the first line is said before anything is compiled
    assert len(found) == 4 and last - first < 150, found


def losses_in(dtype, batching='map'):
    """Of a few steps, by the program that a sweep runs."""
    runs = [make('none', seed) for seed in (0, 1)]
    runs = [
        dataclasses.replace(run, model=dataclasses.replace(run.model, dtype=dtype)) for run in runs
    ]
    (group,) = sweep.group(runs)
    machine = Machine(2, batching)
    _, log = machine.chunk(group, machine.init(group), 20, 20)
    return machine.fetch(group, log).loss


@pytest.mark.parametrize('batching', ['map', 'vmap'])
def test_training_in_bfloat16_stays_by_that_in_float32(batching):
    full, half = losses_in('float32', batching), losses_in('bfloat16', batching)
    assert np.abs(half - full).max() > 0, 'bfloat16 changed nothing'
    np.testing.assert_allclose(half, full, rtol=0.02)


def test_bfloat16_trains_as_people_run_it():
    """With XLA's threads and optimisation, which these tests go without: it may then take a product
    in bfloat16 for one that it has fast code for, and be unable to run it."""
    code = (
        'import jax; jax.config.update("jax_num_cpu_devices", 2); '
        'from tests.test_sweep import losses_in; print(losses_in("bfloat16").mean())'
    )
    without = {'XLA_FLAGS': '', 'JAX_DISABLE_MOST_OPTIMIZATIONS': '0'}
    done = subprocess.run([sys.executable, '-c', code], env=os.environ | without, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 0.5 < float(done.stdout) < 2


def test_devices_do_not_talk():
    group, machine = grid(), Machine(2)
    runs, state = machine._stacked(group), machine.init(group)
    text = machine.programs(group).chunk.lower(runs, state, np.int32(1), 20).compile().as_text()
    for collective in ('all-reduce', 'all-gather', 'collective-permute', 'all-to-all'):
        assert collective not in text


def test_too_many_devices_are_refused():
    with pytest.raises(ValueError, match=r'mesh.devices=64, but this machine has 2 \(cpu\)'):
        Machine(64)


@pytest.mark.parametrize(
    ('batching', 'parameters'),
    [('map', 'split'), *(
        pytest.param(*row, marks=pytest.mark.slow) for row in (('map', 'copied'), ('vmap', 'split'))
    )],
)  # fmt: skip
def test_devices_that_share_a_run_train_it_alike(batching, parameters):
    # Adam's steps along gradients that are zero but for rounding are large, unless eps is.
    (group,) = sweep.group([make('alibi', seed, eps=1e-3) for seed in range(2)])
    trained, answers = [], []
    for machine in (Machine(1), Machine(2, batching, data=2, parameters=parameters)):
        state, metrics = machine.chunk(group, machine.init(group), 20, 20)
        trained.append(machine.fetch(group, (state.params, metrics.loss)))
        (counts,) = machine.evaluate(group, state.params, asking(group, (9,)))
        answers.append(machine.fetch(group, counts).right_NT)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *trained)
    np.testing.assert_array_equal(*answers)
    # A batch of four, halved; and of parameters and optimiser each device keeps a part.
    compiled = (
        machine.programs(group)
        .chunk.lower(machine._stacked(group), state, np.int32(1), 20)
        .compile()
    )
    assert 'all-reduce' in compiled.as_text()
    leaf = state.optimizer[1][0].mu['net']['embed']['embedding']
    (part,) = {shard.data.shape for shard in leaf.addressable_shards}
    assert part == (2, 4, 8 // (2 if parameters == 'split' else 1))


def test_devices_that_do_not_share_out_are_refused():
    with pytest.raises(ValueError, match='mesh.data=3 should divide the number of devices, 2'):
        Machine(2, data=3)
