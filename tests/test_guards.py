"""Guards against what would be wrong in silence."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import posjax
from posjax import memory, provenance, sweep
from posjax.checkpoint import Checkpoints, SaveError
from posjax.config import ConfigError, default
from posjax.run import Optim
from posjax.scheme import Scheme
from posjax.streams import PURPOSES, stream
from posjax.sweep import Machine
from posjax.workdir import Workdir
from tests.test_training import make

OPTAX_RUNS = True
ROOT = Path(__file__).parent.parent


def test_nothing_is_unpickled_or_executed():
    forbidden = re.compile(
        r'pickle|marshal|shelve|allow_pickle|joblib|torch\.load|\beval\(|\bexec\(|yaml\.load'
    )
    sources = [*ROOT.glob('*.py'), *(ROOT / 'posjax').rglob('*.py'), *ROOT.glob('configs/*.py')]
    assert len(sources) > 40
    for path in sources:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert not forbidden.search(line), f'{path}:{number}: {line}'


@pytest.mark.parametrize(('training', 'evaluation'),
                         [('data', 'eval_data'), ('positions', 'eval_positions')])  # fmt: skip
def test_no_evaluation_key_is_a_training_key_of_any_seed(training, evaluation):
    def keys(purpose, numbers):
        each = jax.vmap(lambda key, n: jax.random.fold_in(key, n), (None, 0))
        found = jax.vmap(lambda seed: each(stream(seed, purpose), numbers))(np.arange(50))
        return set(map(bytes, np.asarray(jax.random.key_data(found)).reshape(-1, 2)))

    steps, lengths = np.arange(3000), 2 ** np.arange(3, 17)
    trained = keys(training, steps)
    assert len(trained) == 50 * 3000, 'two seeds, or two steps, share a key'
    asked = keys(evaluation, lengths)
    assert len(asked) == 50 * 14 and not asked & trained
    assert training in PURPOSES and evaluation in PURPOSES


def test_clipping_never_couples_runs():
    machine = Machine(1, 'vmap')

    def first(other):
        (group,) = sweep.group([make(clip=1e-3), other])
        state, metrics = machine.chunk(group, machine.init(group), 5, 20)
        return jax.tree.map(lambda x: x[0], machine.fetch(group, (state, metrics)))

    # Beside a run that is clipped harder, and one whose gradients are of another size.
    a = first(make(clip=1e-9, seed=1))
    b = first(make(clip=0.0, seed=2, learning_rate=10.0))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_decay_skips_norms_biases_and_positions_by_default():
    assert Optim().decay == tuple(default().optim.decay) == ('weights', 'embeddings')


def floats():
    return [
        (cls, field.name)
        for cls in Scheme.registry.values()
        for field in dataclasses.fields(cls)
        if field.type is float
    ]


@pytest.mark.parametrize(('cls', 'name'), floats(), ids=lambda x: getattr(x, '__name__', x))
def test_a_float_of_a_scheme_is_refused_outside_its_meaning(cls, name):
    # Not one of them means anything below zero.
    needed = {
        f.name: {float: 8.0, int: 8}[f.type]
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.type in (float, int)
    }
    with pytest.raises(ValueError, match=f'{name}=-1.0 ') as error:
        cls(**(needed | {name: -1.0})).check()
    assert '\n' not in str(error.value)


def test_keys_that_orbax_would_mix_up_are_refused(tmp_path):
    tree = {'a.b': np.ones(2), 'a': {'b': np.zeros(2)}}
    with Checkpoints(tmp_path / 'c') as kept, pytest.raises(SaveError, match='a.b.*no dots'):
        kept.save(1, tree)


def test_notes_are_verified_with_the_arrays(tmp_path):
    tree = {'a': np.arange(3.0)}
    with Checkpoints(tmp_path / 'c') as kept:
        digests = [kept.save(step, tree, {'from': 'here'}) for step in (1, 2)]
    assert len(set(digests)) == 2, 'the step is part of the digest'
    path = tmp_path / 'c' / '2' / '_CHECKPOINT_METADATA'
    path.write_text(path.read_text().replace('here', 'hera'))
    with Checkpoints(tmp_path / 'c') as kept:
        found = kept.load(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree))
    assert (found.step, found.digest, found.notes) == (1, digests[0], {'from': 'here'})


@pytest.mark.parametrize('tail', ['{"step": 30, "lo', '{"step": 30}{"st', '\x00\x00', '{"step'])
def test_torn_metrics_are_read_up_to_the_tear_and_each_step_once(tmp_path, tail):
    work = Workdir(tmp_path)
    work.append_metrics('g', [{'step': s, 'seed': i, 'loss': 1.0}
                              for s in (10, 20) for i in (0, 1)])  # fmt: skip
    path = work.group('g') / 'metrics.jsonl'
    path.write_text(path.read_text() + tail)
    assert [m['step'] for m in work.metrics('g')] == [10, 10, 20, 20]
    work.truncate_metrics('g', 10)
    work.append_metrics('g', [{'step': 20, 'seed': i, 'loss': float('nan')} for i in (0, 1)])
    assert [(m['step'], m['seed']) for m in work.metrics('g')] == [
        (10, 0), (10, 1), (20, 0), (20, 1)
    ]  # fmt: skip
    assert work.metrics('g')[-1]['loss'] is None


@pytest.mark.parametrize('folder', sorted((ROOT / 'tests' / 'fixtures').glob('workdir_*')))
def test_workdirs_of_earlier_versions_load(tmp_path, folder):
    """Committed as they were written; a change that cannot read them needs a reason."""
    shutil.copytree(folder, tmp_path / 'w')
    run = posjax.load(tmp_path / 'w')
    assert (run.step, run.failed, run.run.scheme.text) == (20, -1, 'rope')
    np.testing.assert_allclose(
        run(np.arange(8)[None] % 4)[0, -1],
        [-0.43070298, 0.21678194, 0.49524966, -0.38079226], atol=1e-5,
    )  # fmt: skip
    assert run.parameters()['net/embed/embedding'].sum() == pytest.approx(4.809913, abs=1e-5)
    record = json.loads((tmp_path / 'w' / 'provenance.json').read_text())['00-lag-rope']
    assert record['config'] == provenance.of_config(Workdir(tmp_path / 'w').config())


def sized(length, block=0, batch=64):
    run = make('none')
    model = dataclasses.replace(run.model, block=block)
    return sweep.group([dataclasses.replace(run, model=model, length=length, batch=batch)])


def test_memory_is_counted_from_below(monkeypatch):
    machine = Machine(1)
    needs = []
    monkeypatch.setattr(memory, '_available', lambda device: needs and needs[-1] or 0)

    def need(groups):
        with pytest.raises(ConfigError, match='config.train.length=.* takes at least') as error:
            memory.check_training(groups, machine)
        number, unit = re.search(r'least ([\d.e+]+) (\w+) of', str(error.value)).groups()
        return float(number) * {'kB': 1e3, 'MB': 1e6, 'GB': 1e9, 'TB': 1e12}[unit]

    # Two heads of 1000 x 1000 float32 weights, for 64 sequences: 512 MB; by 100 queries a tenth.
    assert need(sized(1000)) == pytest.approx(512e6 + 64 * 1000 * 4 * 4, rel=1e-2)
    assert need(sized(1000, block=100)) == pytest.approx(52.2e6, rel=1e-2)
    # Right at the limit it runs.
    needs.append(512e6 + 5e6)
    memory.check_training(sized(1000), machine)


def test_what_is_there_is_what_the_machine_has():
    have = memory._available(jax.devices()[0])
    assert 1e8 < have < 1e14
    memory.check_training(sized(64), Machine(1))
