"""The commands as a person types them: from a config to tables and pictures, again, and wrongly."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import posjax
from posjax import experiment, results
from posjax.config import ConfigError
from posjax.sweep import Machine
from posjax.tasks.task import UNSCORED
from posjax.workdir import Workdir

OPTAX_RUNS = True
pytestmark = pytest.mark.xdist_group('commands')  # one finished workdir serves them all
ROOT = Path(__file__).parent.parent

CONFIG = '''
"""A tiny experiment."""
from posjax import config

def get_config():
    c = config.default()
    c.task = 'lag(k=1, vocab=4)'
    c.sweep.scheme = ('learned(max_length=16)', 'rope', 'rope(theta=100.0)')
    c.seeds = 2
    c.model.width, c.model.layers, c.model.heads = 16, 2, 2
    c.train.length, c.train.batch, c.train.steps = 8, 16, 60
    c.train.chunk, c.train.log_every, c.checkpoint.every = 20, 10, 20
    c.optim.learning_rate = 1e-2
    c.eval.lengths, c.eval.sequences, c.eval.batch = (8, 16), 16, 8
    return c
'''


def run(script, *args, cwd=ROOT):
    return subprocess.run(
        [sys.executable, ROOT / script, *map(str, args)], cwd=cwd, capture_output=True, text=True
    )


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A finished workdir, and what the command printed."""
    folder = tmp_path_factory.mktemp('runs')
    (folder / 'tiny.py').write_text(CONFIG)
    done = run('train.py', '--config', folder / 'tiny.py', '--workdir', folder / 'w')
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_what_a_workdir_holds(finished):
    folder, printed = finished
    work = folder / 'w'
    assert '6 runs as 2 programs' in printed and 'lag(k=1, vocab=4), trained at length 8' in printed
    rows = results.read(work / 'results.csv')
    # 6 runs x (8: all; 16: all, past) x (none, logn)
    assert len(rows) == 6 * 3 * 2
    with open(work / 'results.csv') as file:
        assert tuple(next(csv.reader(file))) == results.COLUMNS
    positions = results.read(work / 'positions.csv', ())
    assert len(positions) == 6 * (7 + 15) * 2
    past = next(r for r in rows if r['region'] == 'past')
    by_hand = [r for r in positions
               if r['position'] >= 8 and r['length'] == 16
               and all(r[k] == past[k] for k in ('scheme', 'seed', 'intervention'))]  # fmt: skip
    assert past['value'] == pytest.approx(np.mean([r['accuracy'] for r in by_hand]), abs=1e-4)
    assert past['count'] == 8 * 16
    drawn = {path.stem for path in (work / 'figures').iterdir()}
    assert drawn == {'accuracy', 'accuracy_by_length', 'accuracy_by_position', 'training'}
    for name in drawn:
        assert (work / 'figures' / f'{name}.png').read_bytes().startswith(b'\x89PNG')
    assert not list(work.rglob('depths.csv')), 'lag has no depths'
    metrics = Workdir(work).metrics('00-lag-learned')
    assert [m['step'] for m in metrics] == [s for s in range(10, 61, 10) for _ in range(2)]
    assert metrics[-1]['loss'] < metrics[0]['loss']
    assert json.loads((work / 'config.json').read_text())['train']['steps'] == 60


def test_running_again_says_so_and_costs_nothing(finished):
    folder, printed = finished
    before = {p: p.stat().st_mtime_ns for p in (folder / 'w').rglob('checkpoints/*')}
    again = run('train.py', '--config', folder / 'tiny.py', '--workdir', folder / 'w')
    assert again.returncode == 0 and 'is finished: nothing to do' in again.stdout
    assert again.stdout.split('trained at')[1:] == printed.split('trained at')[1:]
    assert {p: p.stat().st_mtime_ns for p in (folder / 'w').rglob('checkpoints/*')} == before


def test_another_experiment_in_the_same_folder_is_refused_by_field(finished):
    folder, _ = finished
    other = run('train.py', '--config', folder / 'tiny.py', '--workdir', folder / 'w',
                '--config.optim.learning_rate=0.5')  # fmt: skip
    assert other.returncode == 2
    assert 'config.optim.learning_rate was 0.01, is 0.5' in other.stderr
    assert other.stderr.count('\n') == 1


@pytest.mark.slow
def test_an_interrupted_run_ends_as_if_it_had_not_been(finished, tmp_path, monkeypatch):
    folder, _ = finished
    config = Workdir(folder / 'w').config()
    chunk, calls = Machine.chunk, []

    def die_in_the_second_group(self, group, *args):
        calls.append(group.name)
        if calls.count('01-lag-rope') == 3:
            raise KeyboardInterrupt
        return chunk(self, group, *args)

    monkeypatch.setattr(Machine, 'chunk', die_in_the_second_group)
    with pytest.raises(KeyboardInterrupt):
        experiment.train(config, tmp_path, say=lambda line: None)
    monkeypatch.undo()
    torn = tmp_path / 'groups' / '01-lag-rope' / 'metrics.jsonl'
    torn.write_text(torn.read_text() + '{"step": 50, "lo')
    experiment.train(config, tmp_path, say=lambda line: None)
    for name in ('results.csv', 'positions.csv', 'groups/01-lag-rope/metrics.jsonl'):
        assert (tmp_path / name).read_text() == (folder / 'w' / name).read_text(), name


def test_eval_needs_no_config_file_and_agrees_with_training(finished):
    folder, _ = finished
    (folder / 'elsewhere').mkdir()
    args = ('--workdir', folder / 'w', '--lengths', '8,16,32', '--interventions',
            'none,shift(by=3)', '--sequences', '16')  # fmt: skip
    done = run('eval.py', *args, cwd=folder / 'elsewhere')
    assert done.returncode == 0, done.stderr
    assert 'left out at length 32: scheme learned(max_length=16) has 16 rows' in done.stdout
    rows = results.read(folder / 'w' / 'eval' / 'results.csv')
    trained = results.read(folder / 'w' / 'results.csv')
    same = [r for r in rows if r['intervention'] == 'none' and r['length'] <= 16]
    assert same == [r for r in trained if r['intervention'] == 'none']
    assert {r['scheme'] for r in rows if r['length'] == 32} == {'rope', 'rope(theta=100.0)'}
    moved = [r for r in rows if r['intervention'] == 'shift(by=3)' and r['scheme'] == 'rope']
    still = [r for r in rows if r['intervention'] == 'none' and r['scheme'] == 'rope']
    for a, b in zip(moved, still, strict=True):
        assert a['value'] == pytest.approx(b['value'], abs=0.02)
    again = run('eval.py', *args)
    assert 'holds this evaluation already' in again.stdout


def test_a_loaded_run_is_the_trained_one(finished):
    folder, _ = finished
    run_ = posjax.load(folder / 'w', scheme='rope(theta=1e2)', seed=1)
    assert run_.step == 60 and run_.run.seed == 1
    tokens, answers = run_.sample(16, sequences=4)
    logits, weights = run_(tokens), run_.attention(tokens)
    assert logits.shape == (4, 16, 4) and weights.shape == (2, 4, 2, 16, 16)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert (logits.argmax(-1) == answers)[answers != UNSCORED].mean() > 0.8
    assert np.abs(run_(tokens, intervention='logn') - logits).max() > 0.01
    names = run_.parameters()
    assert names['net/block_0/qkv/kernel'].shape == (16, 48)
    by_position = run_.accuracy(16, sequences=16)
    assert np.isnan(by_position[0])
    (row,) = [r for r in results.read(folder / 'w' / 'results.csv')
              if (r['scheme'], r['seed'], r['length'], r['intervention'], r['region'])
              == ('rope(theta=100.0)', 1, 16, 'none', 'all')]  # fmt: skip
    assert row['value'] == pytest.approx(by_position[1:].mean(), abs=1e-5)
    assert posjax.load(folder / 'w', scheme='learned', seed=0).params['scheme']['learned'][
        'table'
    ].shape == (16, 16)


@pytest.mark.slow
def test_needles_are_counted_by_depth_from_training_to_the_notebook(finished, tmp_path):
    config = Workdir(finished[0] / 'w').config()
    config.task, config.seeds = 'needle(keys=2, queries=2)', 1
    config.sweep.scheme, config.train.steps = ('rope',), 20
    config.eval.interventions = ('none',)
    experiment.train(config, tmp_path, say=lambda line: None)
    rows = results.read(tmp_path / 'results.csv')
    depths = results.read(tmp_path / 'depths.csv', results.DEPTH_COLUMNS)
    for row in rows:
        here = [r for r in depths if r['length'] == row['length']]
        assert sum(r['count'] for r in here) == row['count'] == 32
        right = sum(r['accuracy'] * r['count'] for r in here)
        assert right == pytest.approx(row['value'] * 32, abs=1e-3)
    names = {path.stem for path in (tmp_path / 'figures').iterdir()}
    assert {'accuracy_by_depth', 'accuracy_by_depth_and_length'} <= names
    by_depth = posjax.load(tmp_path).accuracy_by_depth(16, sequences=16)
    long = {r['depth']: r['accuracy'] for r in depths if r['length'] == 16}
    for tenth, accuracy in enumerate(by_depth):
        expected = long.get(round(tenth / 10 + 0.05, 2), np.nan)
        assert accuracy == pytest.approx(expected, abs=1e-5, nan_ok=True)
    with pytest.raises(ValueError, match='lag.* has no depths'):
        posjax.load(finished[0] / 'w', scheme='learned', seed=0).accuracy_by_depth(16)


@pytest.mark.parametrize(
    ('choice', 'message'),
    [
        ({'scheme': 'rope'}, '2 runs of .* match; say task, scheme and seed'),
        ({'scheme': 'alibi', 'seed': 0}, "no run with scheme='alibi'; known: learned"),
        ({'scheme': 'ropee', 'seed': 0}, "unknown scheme 'ropee'"),
        ({'scheme': 'rope', 'seed': 9}, r'no run with seed=9; it has \[0, 1\]'),
    ],
)
def test_a_run_that_is_not_there_is_named(finished, choice, message):
    with pytest.raises(ConfigError, match=message):
        posjax.load(finished[0] / 'w', **choice)


def test_a_loaded_run_refuses_what_it_cannot_take(finished):
    run_ = posjax.load(finished[0] / 'w', scheme='learned', seed=0)
    with pytest.raises(ValueError, match='16 rows, none for position 16 of 17;'):
        run_.accuracy(17)
    with pytest.raises(ValueError, match=r'tokens should be in 0..3, got 0..7'):
        run_(np.arange(8)[None])
    with pytest.raises(ValueError, match='should be integers'):
        run_(np.zeros((1, 4)))
