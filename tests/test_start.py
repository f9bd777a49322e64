"""Runs that start from another workdir's parameters, and batches of several lengths."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax import analysis, experiment, outcome, plan, sweep, training
from posjax import config as config_lib
from posjax.checkpoint import Checkpoints
from posjax.config import ConfigError
from posjax.tasks.task import UNSCORED
from tests.cases import apply
from tests.test_training import chunk, init, make

OPTAX_RUNS = True
pytestmark = pytest.mark.xdist_group('start')  # they share one finished workdir


def tiny(**fields):
    c = config_lib.default()
    c.task, c.scheme, c.seeds = 'lag(k=1, vocab=4)', 'rope', 2
    c.model.layers, c.model.width, c.model.mlp = 1, 8, 2
    c.train.length, c.train.batch, c.train.steps, c.train.chunk, c.train.log_every = 6, 4, 4, 2, 2
    c.eval.lengths, c.eval.interventions, c.eval.sequences = (6,), ('none',), 4
    for name, value in fields.items():
        owner, _, field = name.partition('__')
        target = c[owner] if field else c
        target[field or owner] = value
    return c


@pytest.fixture(scope='module')
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp('start') / 'source'
    experiment.train(tiny(), path, say=lambda line: None)
    return path


def test_a_run_starts_where_another_ended(source, tmp_path):
    # No step moves anything at a learning rate of 0: what comes out is what went in.
    c = tiny(scheme='rope(scaling=linear(factor=2.0))', train__length=12, train__steps=2,
             optim__learning_rate=0.0, start__scheme='rope')  # fmt: skip
    c.start.workdir = str(source)
    experiment.train(c, tmp_path / 'tuned', say=lambda line: None)
    for seed in range(2):
        before, after = (posjax.load(path, seed=seed) for path in (source, tmp_path / 'tuned'))
        jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
        assert (before.step, after.step) == (4, 6), 'the same batches come twice'
        assert after.run.length == 12 and after.run.scheme.text != before.run.scheme.text
    records = json.loads((tmp_path / 'tuned' / 'provenance.json').read_text())
    (record,) = records.values()
    began = record['checkpoint']['start']
    assert began == {'workdir': str(source), 'scheme': 'rope', 'step': 4,
                     'checkpoint': before.checkpoint}  # fmt: skip
    (theirs,) = json.loads((source / 'provenance.json').read_text()).values()
    assert began['checkpoint'] == theirs['checkpoint']['digest']


def test_what_runs_share_is_read_once(source, monkeypatch):
    reads, real = [], Checkpoints.load

    def load(kept, like):
        reads.append(kept)
        return real(kept, like)

    monkeypatch.setattr(Checkpoints, 'load', load)
    trained = analysis.Trained(source)
    one, other = (trained.load(seed=seed) for seed in range(2))
    assert (one.run.seed, other.run.seed, len(reads)) == (0, 1, 1)
    for seed, run in enumerate((one, other)):
        alone = posjax.load(source, seed=seed)
        jax.tree.map(np.testing.assert_array_equal, run.params, alone.params)


def test_what_is_finished_needs_its_source_no_more(source, tmp_path):
    copied, c = tmp_path / 'source', tiny(train__steps=2)
    shutil.copytree(source, copied)
    c.start.workdir = str(copied)
    experiment.train(c, tmp_path / 'tuned', say=lambda line: None)
    shutil.rmtree(copied)
    lines = []
    experiment.train(c, tmp_path / 'tuned', say=lines.append)
    assert 'is finished' in lines[0]


def test_killed_before_its_first_checkpoint_it_still_starts_there(source, tmp_path, monkeypatch):
    c = tiny(train__steps=2, optim__learning_rate=0.0)
    c.start.workdir = str(source)
    with monkeypatch.context() as patched:
        patched.setattr(sweep.Machine, 'chunk', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            experiment.train(c, tmp_path / 'tuned', say=lambda line: None)
    assert (tmp_path / 'tuned' / 'groups' / '00-lag-rope').exists()
    experiment.train(c, tmp_path / 'tuned', say=lambda line: None)
    before, after = (posjax.load(path, seed=1) for path in (source, tmp_path / 'tuned'))
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)


@pytest.mark.slow
def test_the_optimiser_is_fresh_and_warms_up(source, tmp_path):
    c = tiny(train__steps=2, optim__warmup=2, optim__learning_rate=1e-3)
    c.start.workdir = str(source)
    experiment.train(c, tmp_path / 'tuned', say=lambda line: None)
    before, after = (posjax.load(path, seed=0) for path in (source, tmp_path / 'tuned'))
    run = dataclasses.replace(after.run)
    state = init(run)._replace(params=before.params, step=jnp.int32(4))
    state, _ = chunk(run, state, 2, size=2)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.params, after.params
    )
    changed = jax.tree.map(lambda a, b: np.abs(a - b).max(), before.params, after.params)
    # Adam's first steps are as large as the learning rate: half of it, then all.
    assert 1e-4 < max(jax.tree.leaves(changed)) < 1.6e-3


@pytest.mark.parametrize(
    'fields, message',
    [
        ({'start__scheme': 'alibi'}, "no run with scheme='alibi'"),
        ({'seeds': 3, 'start__scheme': 'rope'}, 'no run with seed=2'),
        ({'task': 'lag(k=2, vocab=4)'}, "no run with task='lag"),
        ({'scheme': 'learned(max_length=9)', 'start__scheme': 'rope'}, 'do not fit learned'),
        ({'model__width': 16}, 'do not fit rope.*start from a run of the same model'),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(source, tmp_path, fields, message):
    c = tiny(**fields)
    c.start.workdir = str(source)
    with pytest.raises(ConfigError, match=message) as error:
        experiment.train(c, tmp_path / 'tuned', say=lambda line: None)
    assert '\n' not in str(error.value) and not (tmp_path / 'tuned').exists()


def test_sequences_of_several_lengths_share_a_batch_and_not_their_numbers():
    run = dataclasses.replace(make('alibi'), length=6, batch=6, lengths=(2, 4, 6))
    tokens, answers, length_B = training.batch(run, jax.random.key(0))
    np.testing.assert_array_equal(length_B, [2, 2, 4, 4, 6, 6])
    assert (np.asarray(answers)[np.arange(6) >= np.asarray(length_B)[:, None]] == UNSCORED).all()
    params = init(run).params
    whole = apply(run.model, params, tokens, run.scheme, unpadded_B=length_B).logits_BTC
    for row, length in enumerate([2, 2, 4, 4, 6, 6]):
        alone = apply(run.model, params, tokens[row : row + 1, :length], run.scheme)
        np.testing.assert_allclose(whole[row, :length], alone.logits_BTC[0], atol=1e-5)
        np.testing.assert_array_equal(
            answers[row, 1:length], tokens[row, : length - 1], 'the task is another one'
        )
    # The same task at one length has the same rows, whatever the others are.
    other = dataclasses.replace(run, lengths=(2, 6, 6))
    np.testing.assert_array_equal(training.batch(other, jax.random.key(0))[0][:2], tokens[:2])


@pytest.mark.parametrize('lengths', [(4,), (4, 7), (3, 4, 6)])
def test_lengths_that_do_not_share_out_are_refused(lengths):
    with pytest.raises(ConfigError, match='train.lengths=.*as the longest, and share out'):
        plan.runs(tiny(train__lengths=lengths))


def test_interventions_that_mean_nothing_for_a_scheme_are_left_out_and_named():
    c = tiny(eval__interventions=('none', 'linear', 'yarn|logn', 'shift(by=6)', 'logn'))
    c.sweep.scheme = ('rope', 'none', 'alibi', 'learned(max_length=16)')
    groups = sweep.group(plan.runs(c))
    asked, left_out = outcome.askable(c, groups, (6, 12, 17))
    assert left_out == [
        'left out at length 12: scheme learned(max_length=16) has 16 rows, none for position 16 '
        'of 18; ask for fewer tokens, or train with learned(max_length=18)',
        'left out at length 17: scheme learned(max_length=16) has 16 rows, none for position 16 '
        'of 17; ask for fewer tokens, or train with learned(max_length=17)',
        'left out at length 17: scheme learned(max_length=16) has 16 rows, none for position 16 '
        'of 23; ask for fewer tokens, or train with learned(max_length=23)',
        'left out for none, alibi, learned(max_length=16), where they mean nothing: linear, '
        'yarn|logn',
    ]
    by_scheme = {g.runs[0].scheme.text: asked[g.name] for g in groups}
    everything = ['none', 'linear', 'yarn|logn', 'shift(by=6)', 'logn']
    assert by_scheme['rope'] == dict.fromkeys((6, 12, 17), everything)
    assert by_scheme['alibi'] == dict.fromkeys((6, 12, 17), ['none', 'shift(by=6)', 'logn'])
    few = ['none', 'shift(by=6)', 'logn']
    assert by_scheme['learned(max_length=16)'] == {6: few, 12: ['none', 'logn']}
    with pytest.raises(ConfigError, match='scheme none has no rotary part'):
        plan.runs(tiny(scheme='none', eval__interventions=('yarn',)))
