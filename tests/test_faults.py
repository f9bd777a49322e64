"""What machines do to a run: kill it, ask it to stop, fill its disk, flip its bits.

Commands run as processes of their own. The full counts carry the marker `faults`; a short form of
each is in the default run. docs/reliability.md has the figures.
"""

import contextlib
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from posjax import plan, results, sweep
from posjax.checkpoint import CheckpointError, Checkpoints
from posjax.workdir import Workdir

OPTAX_RUNS = True
pytestmark = pytest.mark.xdist_group('faults')  # they share one finished workdir

GROUP = '00-lag-rope'
STEPS, CHUNK = 600, 10
CONFIG = f"""
from posjax import config

def get_config():
    c = config.default()
    c.task, c.scheme, c.seeds = 'lag(k=1, vocab=4)', 'rope', 2
    c.model.width, c.model.layers = 8, 1
    c.train.length, c.train.batch, c.train.steps = 8, 4, {STEPS}
    c.train.chunk, c.train.log_every, c.checkpoint.every = {CHUNK}, 5, {CHUNK}
    c.optim.learning_rate = 1e-2
    c.eval.lengths, c.eval.interventions = (8, 16), ('none',)
    c.eval.sequences, c.eval.batch = 8, 8
    return c
"""


def counts(short: int, full: int):
    """A short form by default, and the full count under the marker."""
    return pytest.mark.parametrize('count', [short, pytest.param(full, marks=pytest.mark.faults)])


class Bench:
    """Trains the tiny config in processes, and looks at what they leave."""

    def __init__(self, folder: Path, forks):
        self.folder, self.forks = folder, forks
        (folder / 'tiny.py').write_text(CONFIG)

    def start(self, work: Path, *args, setup='', figures=False):
        """Pictures take longer than all the rest, and are the same as ever."""
        if not figures:
            setup += '\nfrom posjax import plots\nplots.all_figures = lambda *args: None'
        args = ('--config', self.folder / 'tiny.py', '--workdir', work, *args)
        return self.forks.start('train.py', *args, setup=setup)

    def train(self, work: Path, *args, **kwargs):
        return self.start(work, *args, **kwargs).wait()

    def started(self, work: Path, *args, **kwargs):
        """A command that has trained further than the one before it."""
        before, log = size(metrics(work)), self.start(work, *args, **kwargs)
        deadline = time.monotonic() + 120
        # The log is first cut back to the newest checkpoint.
        while time.monotonic() < deadline and not log.ended():
            now = size(metrics(work))
            if now > before:
                break
            before = min(before, now) if now else before
            time.sleep(0.002)
        return log


def metrics(work: Path) -> Path:
    return work / 'groups' / GROUP / 'metrics.jsonl'


def checkpoints(work: Path) -> Path:
    return work / 'groups' / GROUP / 'checkpoints'


def size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def newest(work: Path):
    """The newest checkpoint that verifies."""
    (group,) = sweep.group(plan.runs(Workdir(work).config()))
    with Checkpoints(checkpoints(work)) as kept:
        return kept.load(sweep.abstract(group))


def same_to_the_byte(work: Path, other: Path) -> None:
    for name in ('results.csv', 'positions.csv', f'groups/{GROUP}/metrics.jsonl',
                 'provenance.json'):  # fmt: skip
        assert (work / name).read_bytes() == (other / name).read_bytes(), name
    a, b = newest(work), newest(other)
    assert a.step == b.step == STEPS and a.digest == b.digest
    jax.tree.map(np.testing.assert_array_equal, a.tree, b.tree)


def one_line(done, code: int) -> str:
    """The error, which is all there is on stderr beside warnings."""
    assert done.code == code, done
    assert 'Traceback' not in done.err, done.err
    (line,) = [line for line in done.err.splitlines() if line.startswith('error: ')]
    return line


@pytest.fixture(scope='module')
def bench(tmp_path_factory, forks):
    return Bench(tmp_path_factory.mktemp('faults'), forks)


@pytest.fixture(scope='module')
def whole(bench):
    """A workdir whose training was never interrupted."""
    done = bench.train(bench.folder / 'whole')
    assert done.code == 0, done
    return bench.folder / 'whole'


@pytest.fixture(scope='module')
def half(bench, whole):
    """A workdir that has some chunks still to train."""
    command, log = bench.start(bench.folder / 'half'), Workdir(bench.folder / 'half')
    while not (lines := log.metrics(GROUP)) or lines[-1]['step'] < STEPS - 20 * CHUNK:
        time.sleep(0.01)
    command.kill(signal.SIGTERM)
    assert command.wait().code == 143
    return bench.folder / 'half'


@pytest.fixture
def halfway(half, tmp_path):
    shutil.copytree(half, tmp_path / 'w')
    return tmp_path / 'w'


@counts(2, 20)
def test_killed_at_random_the_newest_checkpoint_is_whole(bench, whole, tmp_path, count):
    rng, work, last = random.Random(1), tmp_path / 'w', 0
    for _ in range(count):
        command = bench.started(work)
        time.sleep(rng.uniform(0, 1))
        command.kill(signal.SIGKILL)
        command.wait()
        found = newest(work)
        assert found is None or last <= found.step == found.tree.step[0]
        last = found.step if found else 0
        assert len(list(checkpoints(work).glob('*-tmp*'))) <= 1
        if last == STEPS:
            shutil.rmtree(work)
            last = 0


@counts(3, 12)
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(bench, whole, tmp_path, count):
    rng, work, codes = random.Random(2), tmp_path / 'w', []
    while True:
        number = signal.SIGKILL if len(codes) % 2 else signal.SIGTERM
        command = bench.started(work)
        if len(codes) < count:
            time.sleep(rng.uniform(0, 0.2))
            command.kill(number)
        done = command.wait()
        if done.code == 0:
            break
        assert done.code == (-9 if number == signal.SIGKILL else 143), done
        codes.append(done.code)
    assert len(codes) == count, 'it finished before it was killed often enough'
    same_to_the_byte(work, whole)


@counts(1, 5)
@pytest.mark.parametrize(('number', 'code'), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_saves_its_step(bench, whole, tmp_path, number, code, count):
    rng = random.Random(3)
    for trial in range(count):
        work = tmp_path / f'{trial}'
        # Checkpoints only at the end: what is saved is saved because of the signal.
        command = bench.started(work, f'--config.checkpoint.every={STEPS}')
        time.sleep(rng.uniform(0, 0.2))
        command.kill(number)
        asked, done = time.monotonic(), command.wait()
        assert time.monotonic() - asked < 10
        assert done.code == code, done
        last = done.err.splitlines()[-1]
        step = int(re.search(rf'stopped by {number.name} at step (\d+) of {STEPS}', last).group(1))
        assert 'the same command goes on from there' in last and 'Traceback' not in done.err
        assert newest(work).step == step == Workdir(work).metrics(GROUP)[-1]['step'] < STEPS


# A chunk that takes a minute, in which Python runs no handler.
SLOW = """
import subprocess, sys
from posjax.sweep import Machine
chunk = Machine.chunk
def slow(self, group, state, steps, size):
    out = chunk(self, group, state, steps, size)
    if out[0].step[0] > 10:
        import ctypes
        ctypes.CDLL(None).sleep(60)
        ctypes.CDLL(None).sleep(60)
    return out
Machine.chunk = slow
"""


def test_a_second_signal_stops_at_once_whatever_it_does(bench, whole, tmp_path):
    command = bench.started(tmp_path / 'w', setup=SLOW)
    time.sleep(0.5)
    command.kill(signal.SIGTERM)
    time.sleep(0.2)
    assert not command.ended()
    command.kill(signal.SIGTERM)
    asked, done = time.monotonic(), command.wait()
    assert done.code == 143 and time.monotonic() - asked < 2
    assert 'stopping after this chunk' in done.err and 'stopped at once by SIGTERM' in done.err


# Kills the process at an event that Python reports of itself, once it has happened often enough.
KILL_AT = """
import os, re, signal, sys, threading
def watch(event, args, seen=[0], lock=threading.Lock()):
    if event == {event!r} and re.search({path!r}, str(args[0])):
        with lock:
            seen[0] += 1
            if seen[0] >= {nth}:
                os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
"""
PHASES = {
    'before anything is written': ('os.mkdir', 'orbax-checkpoint-tmp', 2),
    'before it is committed': ('open', 'orbax-checkpoint-tmp.*commit_success', 2),
    'before it gets its name': ('os.rename', 'orbax-checkpoint-tmp', 2),
    'before an old one goes': ('shutil.rmtree', r'checkpoints/\d+$', 1),
    'while an old one goes': ('os.remove', '.', 4),
    'while metrics are cut back': ('os.rename', 'metrics.jsonl', 1),
    'while metrics are added': ('open', 'metrics.jsonl', 3),
}


@pytest.mark.parametrize(
    'phase',
    [p if p in ('before it gets its name', 'while an old one goes')
     else pytest.param(p, marks=pytest.mark.faults) for p in PHASES],
)  # fmt: skip
def test_killed_at_each_phase_of_saving_it_goes_on(bench, whole, halfway, phase):
    before = newest(halfway).step
    event, path, nth = PHASES[phase]
    done = bench.train(halfway, setup=KILL_AT.format(event=event, path=path, nth=nth))
    assert done.code == -9, f'it was not killed {phase}: {done}'
    assert before <= newest(halfway).step < STEPS
    assert bench.train(halfway).code == 0
    same_to_the_byte(halfway, whole)


def test_what_a_killed_process_left_is_cleared_away(bench, whole, halfway):
    folder, last = checkpoints(halfway), newest(halfway).step
    (folder / f'{last + 10}').mkdir()
    (folder / f'{last + 20}.orbax-checkpoint-tmp').mkdir()
    (folder / 'stray').write_text('x')
    (halfway / 'groups' / GROUP / '.results.csv.0.tmp').write_text('half')
    assert newest(halfway).step == last
    assert bench.train(halfway).code == 0
    assert not list(folder.glob('*tmp*')) and not list(halfway.rglob('.*.tmp'))
    same_to_the_byte(halfway, whole)


def test_a_file_that_may_not_grow_is_one_line(bench, whole, halfway):
    before = newest(halfway)
    limit = 'import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))'
    line = one_line(bench.train(halfway, setup=limit), 3)
    assert 'File too large' in line
    assert newest(halfway).digest == before.digest
    assert bench.train(halfway).code == 0
    same_to_the_byte(halfway, whole)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int):
    folder.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={megabytes}m', 'tmpfs', folder],
                      capture_output=True).returncode:  # fmt: skip
        pytest.skip('no file system can be mounted here')
    try:
        yield folder
    finally:
        subprocess.run(['umount', folder], check=True)


def test_a_full_disk_is_one_line_and_costs_nothing_saved(bench, whole, halfway, tmp_path):
    before = newest(halfway)
    with small_disk(tmp_path / 'disk', 2) as disk:
        work = disk / 'w'
        shutil.copytree(halfway, work)
        for room in (0, 4096, 16384, 65536):
            free = shutil.disk_usage(disk).free
            (disk / 'filler').write_bytes(b'x' * max(free - room, 0))
            line = one_line(bench.train(work), 3)
            assert 'No space left' in line, line
            (disk / 'filler').unlink()
            assert newest(work).step >= before.step
        assert bench.train(work).code == 0
        same_to_the_byte(work, whole)


def test_a_disk_that_cannot_be_written_is_one_line(bench, whole, halfway, tmp_path):
    with small_disk(tmp_path / 'disk', 2) as disk:
        shutil.copytree(halfway, disk / 'w')
        subprocess.run(['mount', '-o', 'remount,ro', disk], check=True)
        assert 'Read-only file system' in one_line(bench.train(disk / 'w'), 2)
    for place in ('groups', 'figures'):
        shutil.rmtree(halfway / place, ignore_errors=True)
        (halfway / place).write_text('a file')
        line = one_line(bench.train(halfway, figures=True), 3)
        assert place in line, line
        (halfway / place).unlink()


@counts(12, 200)
def test_flipped_bits_never_load_as_something_else(half, tmp_path, count, caplog):
    caplog.set_level(logging.CRITICAL)  # a warning for each
    (group,) = sweep.group(plan.runs(Workdir(half).config()))
    shutil.copytree(checkpoints(half), tmp_path / 'c')
    abstract, rng = sweep.abstract(group), random.Random(4)
    with Checkpoints(tmp_path / 'c') as kept:
        *_, older, last = kept.steps()
        truth = {last: kept.load(abstract)}
        shutil.move(tmp_path / 'c' / f'{last}', tmp_path / 'aside')
        truth[older] = kept.load(abstract)
        shutil.move(tmp_path / 'aside', tmp_path / 'c' / f'{last}')
    files = sorted(p for p in (tmp_path / 'c' / f'{last}').rglob('*') if p.is_file())
    data = [p for p in files if p.parent.name == 'd']
    outcomes = {'newest': 0, 'older': 0}

    def load(path, content):
        whole_ = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with Checkpoints(tmp_path / 'c') as kept:
            found = kept.load(abstract)
        path.write_bytes(whole_)
        right = truth[found.step]
        assert found.digest == right.digest and found.notes == right.notes
        jax.tree.map(np.testing.assert_array_equal, found.tree, right.tree)
        outcomes['newest' if found.step == last else 'older'] += 1

    for flip in range(count):
        path = rng.choice(data if flip % 2 else files)
        content = bytearray(path.read_bytes())
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        load(path, bytes(content))
    for path in files if count > 100 else data:
        content = path.read_bytes()
        for damaged in (None, b'', content[: len(content) // 2]):
            load(path, damaged)
    assert outcomes['older'] > count / 10, outcomes
    print(f'{count} flips in {len(files)} files, and each cut, emptied and deleted: {outcomes}')


def test_damage_is_told_and_the_older_checkpoint_taken(bench, whole, tmp_path):
    work = tmp_path / 'w'
    shutil.copytree(whole, work)
    for path in (checkpoints(work) / f'{STEPS}').rglob('d/*'):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    asked = bench.forks.run('eval.py', '--workdir', work)
    assert 'no whole checkpoint of its last step; run train.py' in one_line(asked, 2)
    done = bench.train(work)
    assert done.code == 0 and 'trying an older one' in done.err, done
    same_to_the_byte(work, whole)


def test_tables_that_are_not_as_they_were_written_are_made_again(bench, whole, tmp_path):
    shutil.copytree(whole, tmp_path / 'done')
    table = tmp_path / 'done' / 'groups' / GROUP / 'results.csv'
    table.write_text(table.read_text().replace(',0.', ',1.'))
    assert bench.train(tmp_path / 'done').code == 0
    same_to_the_byte(tmp_path / 'done', whole)


def test_too_little_memory_is_one_line(bench, whole, halfway):
    short = 'from posjax.sweep import Machine\ndef f(*a): raise MemoryError\nMachine.chunk = f'
    assert 'out of memory; set train.microbatch' in one_line(bench.train(halfway, setup=short), 3)


def test_a_run_that_fails_is_told_and_its_neighbours_are_untouched(bench, whole, tmp_path):
    args = ('--config.train.steps=40',)
    clean = bench.train(tmp_path / 'a', *args, '--config.sweep.optim.learning_rate=(0.01, 0.02)')
    done = bench.train(tmp_path / 'b', *args, '--config.sweep.optim.learning_rate=(0.01, 1e38)')
    assert clean.code == 0 and done.code == 1, done
    assert '2 runs stopped being finite' in done.out and ' seed 1 at step ' in done.out
    assert re.search(r'rope, optim.learning_rate=1e\+38 +not finite', done.out), done.out
    a, b = (results.read(tmp_path / w / 'results.csv') for w in 'ab')
    for row, other in zip(a, b, strict=True):
        if row['optim.learning_rate'] == '0.01':
            assert row == other
        else:
            assert np.isnan(other['value'])
    a, b = newest(tmp_path / 'a').tree, newest(tmp_path / 'b').tree
    assert list(b.failed[:2]) == [-1, -1] and (b.failed[2:] >= 0).all()
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[:2], y[:2]), a, b)
    # Asked again, it says so again; and so does eval.py.
    assert bench.train(tmp_path / 'b', *args,
                       '--config.sweep.optim.learning_rate=(0.01, 1e38)').code == 1  # fmt: skip
    again = bench.forks.run('eval.py', '--workdir', tmp_path / 'b', '--lengths', '8')
    assert again.code == 1 and '2 runs stopped being finite' in again.out


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ('--config.scheme=none', "config.scheme was 'rope', is 'none'"),
        ('--config.seeds=3', 'config.seeds was 2, is 3'),
        ('--config.model.width=16', 'config.model.width was 8, is 16'),
        ('--config.train.steps=900', 'config.train.steps was 600, is 900'),
    ],
)
def test_another_config_is_refused_by_field_and_nothing_touched(bench, halfway, change, message):
    before = {p: p.read_bytes() for p in halfway.rglob('*') if p.is_file()}
    assert message in one_line(bench.train(halfway, change), 2)
    assert {p: p.read_bytes() for p in halfway.rglob('*') if p.is_file()} == before


def test_harmless_fields_may_differ(bench, whole, halfway):
    done = bench.train(halfway, '--config.train.chunk=25', '--config.checkpoint.keep=3',
                       '--config.checkpoint.every=100')  # fmt: skip
    assert done.code == 0, done
    assert newest(halfway).digest == newest(whole).digest


def test_another_environment_is_told(bench, whole, halfway):
    changed = "import importlib.metadata as m; m.version = lambda name: 'another'"
    done = bench.train(halfway, setup=changed)
    assert done.code == 0
    assert 'goes on in another environment' in done.err and "flax was '" in done.err
    record = json.loads((halfway / 'provenance.json').read_text())[GROUP]
    first, second = record['checkpoint']['sessions']
    assert first['from_step'] == 0 and second['from_step'] > 0
    assert second['environment'] == record['environment'] != first['environment']


def test_one_process_at_a_time(bench, whole, tmp_path):
    first = bench.started(tmp_path / 'w', setup=SLOW)
    assert 'in use by another process' in one_line(bench.train(tmp_path / 'w'), 2)
    asked = bench.forks.run('eval.py', '--workdir', tmp_path / 'w')
    assert 'in use by another process' in one_line(asked, 2)
    first.kill(signal.SIGKILL)
    first.wait()
    assert bench.train(tmp_path / 'w').code == 0  # the lock died with it
    same_to_the_byte(tmp_path / 'w', whole)


def test_an_evaluation_stops_at_once_and_leaves_nothing_in_part(bench, whole, tmp_path):
    shutil.copytree(whole, tmp_path / 'w')
    args = ('eval.py', '--workdir', tmp_path / 'w', '--lengths', '8,24')
    slow = SLOW.replace('chunk', 'place').replace('state, steps, size', 'tree').replace(
        'out[0].step[0] > 10', 'True')  # fmt: skip
    command = bench.forks.start(*args, setup=slow)
    time.sleep(3)
    command.kill(signal.SIGINT)
    asked, done = time.monotonic(), command.wait()
    assert done.code == 130 and time.monotonic() - asked < 2, done
    assert not (tmp_path / 'w' / 'eval').exists()
    assert bench.forks.run(*args).code == 0


def test_every_figure_leads_to_its_checkpoint(whole):
    record = json.loads((whole / 'provenance.json').read_text())
    for row in results.read(whole / 'results.csv'):
        (group,) = [
            name for name, of in record.items()
            if any(all(run[k] == row[k] for k in ('task', 'scheme', 'seed', 'train_length'))
                   for run in of['runs'])
        ]  # fmt: skip
        assert group == GROUP
    found, told = newest(whole), record[GROUP]
    assert (found.step, found.digest) == (told['checkpoint']['step'], told['checkpoint']['digest'])
    assert told['checkpoint']['sessions'] == found.notes['sessions']
    environment = told['environment']
    for name in ('code', 'python', 'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy',
                 'platform', 'device', 'devices', 'cpus', 'batching', 'xla_flags'):  # fmt: skip
        assert environment[name] not in (None, ''), name
    assert environment['devices'] == os.cpu_count()
    assert {(run['dtype'], run['precision']) for run in told['runs']} == {('float32', 'highest')}
    assert len(told['config']) == len(environment['code']) == 32


def test_nothing_whole_left_is_an_error(halfway, bench):
    for path in checkpoints(halfway).rglob('_CHECKPOINT_METADATA'):
        path.write_text('{}')
    with pytest.raises(CheckpointError):
        newest(halfway)
    assert 'no whole checkpoint left' in one_line(bench.train(halfway), 2)
