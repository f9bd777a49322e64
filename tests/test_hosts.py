"""Several processes as one command, several jobs as one sweep, several devices as one."""

import json
import shutil
import signal
import socket
import time

import jax
import numpy as np
import pytest

from posjax import hosts
from posjax.workdir import Workdir
from tests.test_faults import CHUNK, GROUP, Bench, metrics, newest, one_line

OPTAX_RUNS = True
pytestmark = pytest.mark.xdist_group('hosts')  # they share one finished workdir

STEPS = 120
TABLES = ('results.csv', 'positions.csv', f'groups/{GROUP}/metrics.jsonl')


class Pair:
    """Two processes of one command; the second is given a workdir that it must not touch.

    Args:
      start: takes a workdir and arguments, and starts a process.
      each: arguments of the one and of the other.
    """

    def __init__(self, start, work, *args, each=((), ())):
        with socket.socket() as free:
            free.bind(('localhost', 0))
            port = free.getsockname()[1]
        self.untouched = work.with_name(work.name + '-of-the-second')
        self.both = [
            start(folder, f'--hosts=localhost:{port},{i}/2', *args, *each[i])
            for i, folder in enumerate((work, self.untouched))
        ]

    def wait(self, seconds=120):
        done = [process.wait(seconds) for process in self.both]
        assert not self.untouched.exists()
        return done

    def wait_for(self, work, step):
        deadline = time.monotonic() + 120
        while not any(r['step'] >= step for r in Workdir(work).metrics(GROUP)):
            assert time.monotonic() < deadline and not any(p.ended() for p in self.both)
            time.sleep(0.005)


class Short(Bench):
    """As there, with fewer steps."""

    def start(self, work, *args, **kwargs):
        return super().start(work, f'--config.train.steps={STEPS}', *args, **kwargs)


@pytest.fixture(scope='module')
def bench(tmp_path_factory, forks):
    return Short(tmp_path_factory.mktemp('hosts'), forks)


@pytest.fixture(scope='module')
def alone(bench):
    """A workdir that one process trained."""
    done = bench.train(bench.folder / 'alone')
    assert done.code == 0, done
    return bench.folder / 'alone'


def same(work, other):
    for name in TABLES:
        assert (work / name).read_bytes() == (other / name).read_bytes(), name
    a, b = newest(work), newest(other)
    assert a.step == b.step == STEPS
    jax.tree.map(np.testing.assert_array_equal, a.tree, b.tree)


def test_two_processes_leave_what_one_does_and_the_second_touches_nothing(bench, alone):
    work = bench.folder / 'two'
    first, second = Pair(bench.start, work).wait()
    assert (first.code, second.code) == (0, 0), (first, second)
    assert 'on 2 hosts' in first.out and 'results' in first.out
    assert 'results' not in second.out and 'program' not in second.out
    same(work, alone)
    (told,) = json.loads((work / 'provenance.json').read_text()).values()
    assert told['environment']['processes'] == 2

    # And so of an evaluation again.
    def ask(folder, *args):
        return bench.forks.start('eval.py', '--workdir', folder, '--lengths=8,24', *args)

    assert [done.code for done in Pair(ask, work).wait()] == [0, 0]
    assert ask(alone).wait().code == 0
    for name in TABLES[:2]:
        assert (work / 'eval' / name).read_bytes() == (alone / 'eval' / name).read_bytes(), name


@pytest.mark.slow
def test_two_processes_start_where_others_ended(bench, alone):
    begin = (f'--config.start.workdir={alone}', '--config.optim.learning_rate=0.0')
    assert bench.train(bench.folder / 'tuned-alone', *begin).code == 0
    done = Pair(bench.start, bench.folder / 'tuned', *begin).wait()
    assert [d.code for d in done] == [0, 0], done
    same(bench.folder / 'tuned', bench.folder / 'tuned-alone')
    params = [newest(work).tree.params for work in (bench.folder / 'tuned', alone)]
    jax.tree.map(np.testing.assert_array_equal, *params)


def test_a_signal_to_one_process_stops_both_at_one_saved_step(bench, alone):
    work = bench.folder / 'stopped'
    pair = Pair(bench.start, work)
    pair.wait_for(work, 2 * CHUNK)
    pair.both[1].kill(signal.SIGTERM)
    first, second = pair.wait()
    assert (first.code, second.code) == (143, 143), (first, second)
    step = newest(work).step
    assert 2 * CHUNK <= step < STEPS
    for done in (first, second):
        assert f'stopped by SIGTERM at step {step} of {STEPS}' in done.err
    # Two go on where two stopped, and so would one: what is saved knows no processes.
    copy = shutil.copytree(work, bench.folder / 'stopped-copy')
    assert [done.code for done in Pair(bench.start, work).wait()] == [0, 0]
    same(work, alone)
    one = bench.train(copy)
    assert one.code == 0 and 'processes was 2, is 1' in one.err, one
    same(copy, alone)


@pytest.mark.parametrize(
    ('each', 'message'),
    [
        (((), ('--config.optim.learning_rate=0.5',)), 'learning_rate is 0.5 here and 0.01 on the'),
        (('0/2', '1/2'), "shard is '1/2' here and '0/2' on the first process"),
    ],
)
def test_processes_started_differently_end_before_anything_is_written(bench, each, message):
    work = bench.folder / 'different'
    each = [(f'--shard={args}',) if isinstance(args, str) else args for args in each]
    first, second = Pair(bench.start, work, each=each).wait()
    assert message in one_line(second, 2)
    assert 'process 1 ended, and says why' in one_line(first, 4)
    assert not work.exists()


@pytest.mark.parametrize('killed', [1, pytest.param(0, marks=pytest.mark.faults)])
def test_the_survivor_of_a_killed_process_ends_soon_and_all_go_on(bench, alone, killed):
    work = bench.folder / f'killed-{killed}'
    pair = Pair(bench.start, work)
    pair.wait_for(work, 2 * CHUNK)
    pair.both[killed].kill(signal.SIGKILL)
    pair.both[killed].wait()
    begun = time.monotonic()
    survivor = pair.both[1 - killed].wait()
    assert survivor.code != 0 and time.monotonic() - begun < 30, survivor
    assert [done.code for done in Pair(bench.start, work).wait()] == [0, 0]
    same(work, alone)


def test_an_error_on_the_first_process_is_told_to_the_second(bench, alone):
    with Workdir(alone).locked():
        first, second = Pair(bench.start, alone).wait()
    assert 'in use by another process' in one_line(first, 2)
    assert 'the first process ended: workdir' in one_line(second, 4)


@pytest.mark.parametrize('text', ['', 'localhost', 'localhost:1,2/2', 'localhost:1', 'auto'])
def test_texts_that_join_nothing_are_one_line(bench, text):
    done = bench.train(bench.folder / 'nothing', f'--hosts={text}')
    assert one_line(done, 2).startswith(f"error: --hosts='{text}'"), done
    assert not (bench.folder / 'nothing').exists()


def test_alone_there_is_nobody_to_wait_for():
    assert hosts.first() and not hosts.several()
    assert hosts.shared(lambda: (1, 'a')) == (1, 'a')
    hosts.check_alike({'a': object()})


SWEEP = ('--config.sweep.scheme=("rope", "none", "alibi")', '--config.train.steps=20')


def test_shards_side_by_side_leave_what_one_job_does(bench):
    whole, work = bench.folder / 'unsharded', bench.folder / 'shards'
    assert bench.train(whole, *SWEEP).code == 0
    started = [bench.start(work, *SWEEP, f'--shard={i}/2') for i in (0, 1)]
    done = [job.wait() for job in started]
    assert [d.code for d in done] == [0, 0], done
    for name in TABLES[:2]:
        assert (work / name).read_bytes() == (whole / name).read_bytes(), name
    assert sum('left to other shards' in d.out for d in done) <= 1
    assert 'is finished' in bench.train(work, *SWEEP).out
    # A shard with nothing to do is no mistake; one that is run again has nothing to do.
    for text in ('3/4', '0/2'):
        again = bench.train(work, *SWEEP, f'--shard={text}')
        assert again.code == 0, again
    for name in TABLES[:2]:
        assert (work / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_shard_alone_leaves_its_groups_and_says_what_is_left(bench):
    work = bench.folder / 'shard'
    done = bench.train(work, *SWEEP, '--shard=1/2')
    assert done.code == 0 and '2 of 3 programs are left to other shards' in done.out, done
    assert not (work / 'results.csv').exists()
    assert [path.name for path in (work / 'groups').iterdir()] == ['01-lag-none']
    with Workdir(work).locked(['01-lag-none']):
        assert 'in use by another process' in one_line(bench.train(work, *SWEEP, '--shard=1/2'), 2)
        assert bench.train(work, *SWEEP, '--shard=0/2').code == 0


@pytest.mark.parametrize('text', ['', '1', '2/2', '-1/2', '0/0', 'a/b'])
def test_texts_that_are_no_shard_are_one_line(bench, text):
    done = bench.train(bench.folder / 'no-shard', f'--shard={text}')
    assert f"--shard='{text}' should be i/n" in one_line(done, 2)
    assert not (bench.folder / 'no-shard').exists()


def test_any_number_of_devices_and_either_batching_train_alike(bench, alone):
    """And what was saved on some devices goes on, from the same bytes, on others."""
    wanted, half = newest(alone).tree, bench.folder / 'half'
    cpus = 'import os\nos.cpu_count = lambda: 4'
    log = bench.start(half, setup=cpus)
    while not any(r['step'] >= STEPS // 2 for r in Workdir(half).metrics(GROUP)):
        assert not log.ended()
        time.sleep(0.005)
    log.kill(signal.SIGTERM)
    assert log.wait().code == 143
    saved = newest(half)
    for devices, batching in ((1, 'map'), (2, 'vmap'), (4, 'map')):
        work = shutil.copytree(half, bench.folder / f'on-{devices}')
        changed = (f'--config.mesh.devices={devices}', f'--config.mesh.batching={batching}')
        done = bench.train(work, *changed, setup=cpus)
        assert done.code == 0, done
        (told,) = json.loads((work / 'provenance.json').read_text()).values()
        begun = [session['from_step'] for session in told['checkpoint']['sessions']]
        assert begun == ([0] if devices == 4 else [0, saved.step]), done
        assert ('goes on in another environment' in done.err) == (devices != 4), done.err
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * max(1, abs(b).max())),
            newest(work).tree,
            wanted,
        )
        losses = [
            [r['loss'] for r in map(json.loads, metrics(w).read_text().splitlines())]
            for w in (work, alone)
        ]
        np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)
