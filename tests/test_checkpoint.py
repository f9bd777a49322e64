"""Checkpoints are whole, or are not there."""

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from posjax import training
from posjax.checkpoint import CheckpointError, Checkpoints, SaveError
from tests.test_training import make

ABSTRACT = jax.eval_shape(training.init, make())
RNG = np.random.default_rng(0)
STATE = jax.tree.map(lambda x: np.asarray(9 * RNG.normal(size=x.shape)).astype(x.dtype), ABSTRACT)


@pytest.fixture
def folder(tmp_path):
    with Checkpoints(tmp_path / 'c') as kept:
        assert kept.load(ABSTRACT) is None
        for step in (10, 20, 30):
            kept.save(step, STATE._replace(step=np.int32(step)))
    return tmp_path / 'c'


def load(folder, abstract=ABSTRACT):
    with Checkpoints(folder) as kept:
        return kept.load(abstract)


def test_the_newest_comes_back_bit_by_bit(folder):
    step, state, *_ = load(folder)
    assert step == 30 and int(state.step) == 30
    assert jax.tree.structure(state) == jax.tree.structure(STATE)
    jax.tree.map(np.testing.assert_array_equal, state._replace(step=STATE.step), STATE)
    with Checkpoints(folder) as kept:
        assert kept.steps() == [20, 30]


def test_a_flipped_bit_is_noticed_and_the_older_one_taken(folder):
    for file in (folder / '30').rglob('d/*'):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
    assert load(folder).step == 20


def test_half_a_checkpoint_does_not_count(folder):
    (folder / '30' / 'commit_success.txt').unlink()
    (folder / '40').mkdir()
    (folder / '50.orbax-checkpoint-tmp').mkdir()
    assert load(folder).step == 20


def test_nothing_whole_left_is_an_error_and_never_a_fresh_start(folder):
    for step in ('20', '30'):
        (folder / step / '_CHECKPOINT_METADATA').write_text('{}')
    with pytest.raises(CheckpointError, match='no whole checkpoint left'):
        load(folder)


def test_another_shape_or_tree_is_refused_by_name(folder):
    wider = ABSTRACT._replace(step=jax.ShapeDtypeStruct((3,), np.int32))
    with pytest.raises(CheckpointError, match=r'\.step is int32\(\), expected int32\(3,\)'):
        load(folder, wider)
    with pytest.raises(CheckpointError, match='does not match the config'):
        load(folder, {'weights': ABSTRACT.step})


def test_saving_an_earlier_step_again_replaces_it(folder):
    with Checkpoints(folder) as kept:
        kept.save(30, STATE._replace(step=np.int32(31)))
    assert int(load(folder).tree.step) == 31


class Broken:
    """What Orbax returns, when the disk fills up behind it."""

    def result(self):
        raise OSError(28, 'No space left on device')


def test_a_save_that_fails_is_told_and_earlier_ones_stay(folder, monkeypatch):
    with pytest.raises(CheckpointError, match='40 in .* was not saved: .*No space left'):
        with Checkpoints(folder) as kept:
            monkeypatch.setattr(ocp, 'save_checkpointables_async', lambda *a, **k: Broken())
            kept.save(40, STATE)  # in the background: told on leaving
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match='40 in .* was not saved'):
        with Checkpoints(folder) as kept:
            kept.save(40, {'a': np.array(object())})  # at once
    assert load(folder).step == 30


def test_what_the_system_said_is_found_in_a_long_error(folder, monkeypatch):
    where = 'Error writing "x" in OCDBT database at ' + 300 * 'y'

    def full(*_, **__):
        raise ValueError(f"{where} [os_error_code='28'] [path='/z'] {where}\nmore")

    with Checkpoints(folder) as kept:
        monkeypatch.setattr(ocp, 'save_checkpointables_async', full)
        with pytest.raises(SaveError, match='not saved: No space left on device') as error:
            kept.save(40, STATE)
    told = str(error.value)
    assert len(told) < 400 + len(str(folder)) and '\n' not in told


def test_what_was_just_saved_is_never_the_one_that_goes(folder):
    """After a fall back to an older step, newer ones are damaged and do not count."""
    for step in (20, 30):
        (data,) = [p for p in (folder / str(step)).rglob('d/*') if p.stat().st_size > 999][:1]
        data.write_bytes(b'')
    with Checkpoints(folder, keep=2) as kept:
        kept.save(15, STATE._replace(step=np.int32(15)))
    assert load(folder).step == 15
