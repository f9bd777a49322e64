"""Accuracy per position: on which sequences, and what a broken model scores."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import evaluation
from posjax.scheme import parse
from posjax.streams import stream
from tests.cases import apply
from tests.test_training import init, make, poisoned

RUN = make('rope', task='lag(k=2, vocab=4)')
OTHER = parse('sinusoidal')


@functools.cache
def params(run=RUN):
    """Fresh parameters answer one class whatever they are asked; these are larger."""
    return jax.tree.map(lambda x: 4 * x, init(run).params)


@functools.partial(jax.jit, static_argnames=('lengths', 'sequences', 'batch'))
def several(run, params, schemes, lengths, sequences, batch):
    return evaluation.counts(run, params, schemes, lengths, sequences, batch)


def counts(run, params, schemes, length, sequences, batch):
    return several(run, params, (schemes,), (length,), sequences, batch)[0]


def test_against_counting_one_by_one():
    got = counts(RUN, params(), (RUN.scheme, OTHER), 9, 10, 4)
    key = jax.random.fold_in(stream(RUN.seed, 'eval_data'), 9)
    for row, scheme in enumerate((RUN.scheme, OTHER)):
        right = np.zeros(9)
        for i in range(10):
            tokens, answers = RUN.task.sample(jax.random.fold_in(key, i), 1, 9)
            logits = apply(RUN.model, params(), tokens, scheme).logits_BTC
            right += np.asarray(logits.argmax(-1) == answers)[0]
        np.testing.assert_array_equal(got.right_NT[row], right)
    np.testing.assert_array_equal(got.scored_T, [0, 0] + [10] * 7)
    assert np.abs(got.right_NT[0] - got.right_NT[1]).max() > 0


def test_schemes_of_equal_structure_are_asked_as_if_alone():
    texts = ('rope(theta=3.0)', 'none', 'rope(theta=50.0)', 'none')
    together = counts(RUN, params(), tuple(map(parse, texts)), 9, 10, 4).right_NT
    alone = [counts(RUN, params(), (parse(text),), 9, 10, 4).right_NT[0] for text in texts]
    np.testing.assert_array_equal(together, alone)
    assert np.abs(together[0] - together[2]).max() > 0


@pytest.mark.parametrize('task', ['lag(k=2, vocab=4)', 'needle(keys=2, queries=2)'])
def test_lengths_are_asked_as_if_alone(task):
    run, lengths, batch = make('rope', task=task), (21, 9, 17), 4
    schemes = ((OTHER, run.scheme), (run.scheme,), (run.scheme, OTHER))
    together = several(run, params(run), schemes, lengths, 10, batch)
    for got, row, length in zip(together, schemes, lengths, strict=True):
        alone = counts(run, params(run), row, length, 10, batch)
        jax.tree.map(np.testing.assert_array_equal, got, alone)
        assert got.right_NT.shape == (len(row), length) and got.right_NT.sum() > 0


def test_random_positions_are_those_of_a_sequence_alone():
    # No number is left for padding: those of the longest sequence are all there are.
    run = make('learned(max_length=20)|randomised(max_position=20)', task='lag(k=2, vocab=4)')
    rows = ((run.scheme,),) * 2
    together = several(run, params(run), rows, (20, 9), 10, 4)
    for got, length in zip(together, (20, 9), strict=True):
        alone = counts(run, params(run), rows[0], length, 10, 4)
        np.testing.assert_array_equal(got.right_NT, alone.right_NT)


def test_lengths_are_together_while_padding_is_cheap():
    def programs(*lengths, sequences=256, **sizes):
        model = dataclasses.replace(RUN.model, layers=2, width=64, mlp=4, **sizes)
        return evaluation.together(model, dict.fromkeys(lengths, sequences))

    assert programs(32, 128, 64) == [(128, 64, 32)]
    assert programs(32, 64, 128, sequences=40 * 256) == [(128, 64), (32,)]
    assert programs(32, 8192) == [(8192,), (32,)]
    assert programs(64) == [(64,)] and programs() == []


@pytest.mark.parametrize('batch', [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 64))])
def test_neither_the_batch_nor_more_sequences_change_anything(batch):
    got = counts(RUN, params(), (RUN.scheme,), 9, 10, batch)
    expected = counts(RUN, params(), (RUN.scheme, OTHER), 9, 10, 4)
    np.testing.assert_array_equal(got.right_NT[0], expected.right_NT[0])
    few = counts(RUN, params(), (RUN.scheme,), 9, 5, batch).right_NT
    assert (few <= got.right_NT).all() and got.right_NT.sum() > few.sum()


def test_a_broken_model_scores_nan_and_not_the_frequency_of_class_zero():
    broken = poisoned(RUN, init(RUN)).params
    broken['net']['out']['bias'] = jnp.full_like(broken['net']['out']['bias'], jnp.nan)
    got = counts(RUN, broken, (RUN.scheme,), 9, 10, 5).right_NT[0]
    np.testing.assert_array_equal(got[:2], 0)  # not scored
    assert np.isnan(got[2:]).all()


def test_evaluation_sees_other_sequences_than_training():
    trained = {
        RUN.task.sample(jax.random.fold_in(stream(0, 'data'), step), 4, 6)[0].tobytes()
        for step in range(50)
    }
    key = jax.random.fold_in(stream(0, 'eval_data'), 6)
    for i in range(50):
        assert RUN.task.sample(jax.random.fold_in(key, i), 4, 6)[0].tobytes() not in trained


def test_depths_are_counted_in_tenths():
    # Two sequences, two schemes; three answers have depths, one with a logit that was not finite.
    depth = jnp.array([[jnp.nan, 0.0, 0.1], [1.0, 0.55, jnp.nan]])
    scored = jnp.array([[1, 1, 1], [1, 1, 0]])
    right = jnp.array([[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [[1.0, 0.0, 1.0], [0.0, jnp.nan, 0.0]]])
    right_ND, scored_D = evaluation.by_depth(right, scored, depth)
    np.testing.assert_array_equal(scored_D, [1, 1, 0, 0, 0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(right_ND, [[1, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                                             [0, 1, 0, 0, 0, np.nan, 0, 0, 0, 0]])  # fmt: skip


def test_a_task_with_depths_is_counted_by_them_and_others_are_not():
    assert counts(RUN, params(), (RUN.scheme,), 9, 5, 5).right_ND is None
    run = make('rope', task='needle(keys=2, queries=2)')
    got = counts(run, params(run), (run.scheme,), 17, 40, 20)
    assert got.scored_D.sum() == got.scored_T.sum() == 80 and (got.scored_D > 0).all()
    assert got.right_ND.sum() == got.right_NT.sum() > 0
