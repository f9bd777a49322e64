"""One run: what a step does, what freezes it, and what its random streams never share."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import model as model_lib
from posjax import training
from posjax.model import Model
from posjax.run import DECAYABLE, Optim, Run
from posjax.scheme import parse
from posjax.streams import PURPOSES, stream
from posjax.tasks.task import parse as parse_task

OPTAX_RUNS = True


def make(text='learned(max_length=8)', seed=0, task='lag(k=1, vocab=4)', steps=20, **optim) -> Run:
    t = parse_task(task)
    model = Model(t.tokens, t.classes, layers=1, heads=2, width=8, mlp=2)
    return Run(t, parse(text), model, Optim(**optim), seed, length=6, batch=4, steps=steps)


init, step = jax.jit(training.init), jax.jit(training.step)


@functools.partial(jax.jit, static_argnames='size')
def chunk(run, state, steps, size=20):
    return training.chunk(run, state, steps, size)


def test_training_learns():
    _, metrics = chunk(make(steps=300, learning_rate=1e-2), init(make()), 300, size=300)
    assert metrics.loss[0] > 1 and metrics.loss[-20:].mean() < 0.05
    assert metrics.accuracy[-20:].mean() > 0.99


def test_the_length_of_a_chunk_changes_no_bit():
    run = make()
    whole, log = chunk(run, init(run), 20)
    state, logs = init(run), []
    for steps in (7, 1, 12):
        state, part = chunk(run, state, steps)
        assert np.isnan(part.loss[steps:]).all()
        logs.append(part.loss[:steps])
    jax.tree.map(np.testing.assert_array_equal, state, whole)
    np.testing.assert_array_equal(np.concatenate(logs), log.loss)


def in_parts(run, microbatch, rows, key=0):
    """Loss, accuracy and gradient of a batch, some sequences at a time."""
    run = dataclasses.replace(run, microbatch=microbatch)

    @jax.jit
    def gradient(run, rows, key):
        return training._gradient(run, training.init(run).params, rows, key, training.alone)

    return gradient(run, rows, jax.random.key(key))


@pytest.mark.parametrize('microbatch', [1, 2])
def test_microbatches_add_up_to_their_batch(microbatch):
    # Sequences of two lengths: a mean of the microbatches' means would be another number.
    run = dataclasses.replace(make('shaw|alibi'), lengths=(3, 6))
    rows = training.batch(run, jax.random.key(0))
    whole, parts = in_parts(run, 0, rows), in_parts(run, microbatch, rows)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), parts, whole)
    (_, whole), (_, parts) = (
        step(run, init(run)), step(dataclasses.replace(run, microbatch=microbatch), init(run))
    )  # fmt: skip
    np.testing.assert_allclose(parts, whole, atol=1e-6)


def test_each_microbatch_draws_positions_of_its_own():
    run = make('randomised(max_position=64)|rope(theta=10.0)')
    tokens, answers, _ = training.batch(run, jax.random.key(0))
    twice = jnp.tile(tokens[:2], (2, 1)), jnp.tile(answers[:2], (2, 1)), None
    losses = [in_parts(run, 2, twice, key)[0] for key in range(3)]
    alike = [
        in_parts(dataclasses.replace(run, batch=2), 0, (*(x[:2] for x in twice[:2]), None), key)[0]
        for key in range(3)
    ]
    assert len({round(float(loss), 5) for loss in losses + alike}) == 6


def test_memory_is_that_of_a_microbatch():
    def room(microbatch):
        run = dataclasses.replace(make(), batch=1024, microbatch=microbatch)
        state = jax.eval_shape(training.init, run)
        return step.lower(run, state).compile().memory_analysis().temp_size_in_bytes

    assert room(16) < room(256) / 4 < room(0) / 8


def test_seeds_differ_in_initialisation_and_data():
    states = [init(make(seed=seed)) for seed in range(3)]
    constant = ('norm', "['scale']['bias']")
    for path, a in jax.tree_util.tree_leaves_with_path(states[0].params):
        if not any(word in jax.tree_util.keystr(path) for word in constant):
            for other in states[1:]:
                b = functools.reduce(lambda tree, entry: tree[entry.key], path, other.params)
                assert np.abs(a - b).max() > 1e-3, jax.tree_util.keystr(path)
    task = make().task
    batches = [
        np.asarray(task.sample(jax.random.fold_in(stream(seed, 'data'), step), 4, 6)[0])
        for seed in range(3) for step in range(3)
    ]  # fmt: skip
    assert len({batch.tobytes() for batch in batches}) == 9


def test_streams_never_meet():
    keys = {
        tuple(np.asarray(jax.random.key_data(jax.random.fold_in(stream(seed, purpose), number))))
        for seed in range(20) for purpose in PURPOSES for number in range(50)
    }  # fmt: skip
    assert len(keys) == 20 * len(PURPOSES) * 50


def test_all_schemes_see_the_same_batches(monkeypatch):
    seen = []

    def spy(run, state):
        tokens, _ = run.task.sample(jax.random.fold_in(stream(run.seed, 'data'), state.step), 4, 6)
        seen.append(np.asarray(tokens))

    for text in ('none', 'rope', 'learned(max_length=8)'):
        spy(make(text), init(make(text)))
    assert all((tokens == seen[0]).all() for tokens in seen)


def poisoned(run, state):
    """A state whose next gradient is not finite."""
    params = jax.tree.map(jnp.array, state.params)
    params['net']['out']['bias'] = params['net']['out']['bias'].at[0].set(jnp.inf)
    return state._replace(params=params)


def test_a_run_that_stops_being_finite_freezes_at_that_step():
    run = make()
    state, _ = chunk(run, init(run), 5)
    bad = poisoned(run, state)
    after, metrics = chunk(run, bad, 4)
    assert int(after.failed) == 5 and int(after.step) == 9
    jax.tree.map(np.testing.assert_array_equal, after.params, bad.params)
    jax.tree.map(np.testing.assert_array_equal, after.optimizer, bad.optimizer)
    assert not np.isfinite(metrics.loss[:4]).any()
    assert int(state.failed) == -1


def one_step(**optim):
    """Parameters before and after one step whose gradient is zero: nothing is scored."""
    run = make(weight_decay=0.5, learning_rate=0.1, **optim)
    run = dataclasses.replace(run, task=parse_task('lag(k=6, vocab=4)'))
    state = init(run)
    state = state._replace(params=jax.tree.map(jnp.ones_like, state.params))
    return step(run, state)[0].params


@pytest.mark.parametrize('kind', DECAYABLE)
def test_weight_decay_takes_its_kind_of_parameters_and_no_other(kind):
    expected = {
        'weights': ['kernel'], 'embeddings': ['embedding'], 'positions': ['table'],
        'biases': ['bias'], 'norms': ['scale', 'bias'],
    }  # fmt: skip
    for path, leaf in jax.tree_util.tree_leaves_with_path(one_step(decay=(kind,))):
        names = [entry.key for entry in path]
        in_norm = any(name.startswith('norm') for name in names)
        decays = names[-1] in expected[kind] and in_norm == (kind == 'norms')
        # One step takes learning rate x decay = 5 % off a decayed parameter.
        np.testing.assert_allclose(leaf, 0.95 if decays else 1.0, rtol=1e-6, err_msg=str(names))


def test_all_kinds_together_are_all_parameters():
    for leaf in jax.tree.leaves(one_step(decay=DECAYABLE)):
        np.testing.assert_allclose(leaf, 0.95, rtol=1e-6)


def test_adamw_against_the_textbook():
    """Two steps in float64, decoupled decay, bias-corrected moments, as torch.optim.AdamW."""
    run = make('none', learning_rate=0.03, weight_decay=0.1, decay=DECAYABLE, beta1=0.8, beta2=0.95)
    state, path = init(run), ('net', 'out', 'kernel')

    def pick(tree):
        return np.asarray(functools.reduce(lambda t, k: t[k], path, tree), np.float64)

    def gradient(state):
        key = jax.random.fold_in(stream(run.seed, 'data'), state.step)
        tokens, answers = run.task.sample(key, run.batch, run.length)

        def loss(p):
            out = model_lib.apply(run.model, p, tokens, run.scheme)
            scored = training.count_scored(answers)
            return training.loss_and_accuracy(out.logits_BTC, answers, scored)[0]

        return pick(jax.jit(jax.grad(loss))(state.params))

    p, m, v = pick(state.params), 0.0, 0.0
    for t in (1, 2):
        g = gradient(state)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g**2
        change = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        p = p - 0.03 * (change + 0.1 * p)
        state, _ = step(run, state)
        np.testing.assert_allclose(pick(state.params), p, atol=2e-6)


def test_clipping_bounds_a_runs_own_gradient():
    free, tight = make(clip=0.0), make(clip=1e-3)
    assert jax.tree.structure(free) == jax.tree.structure(tight)
    tx = training._clip(jnp.float32(1e-3))
    clipped, _ = tx.update({'a': jnp.float32([3.0, 4.0])}, tx.init(None))
    np.testing.assert_allclose(clipped['a'], [0.6e-3, 0.8e-3], rtol=1e-6)
    same, _ = tx.update({'a': jnp.float32([3e-5, 4e-5])}, tx.init(None))
    np.testing.assert_allclose(same['a'], [3e-5, 4e-5])
    unclipped, _ = training._clip(jnp.float32(0)).update({'a': jnp.float32([3.0])}, tx.init(None))
    np.testing.assert_allclose(unclipped['a'], 3.0)


@pytest.mark.parametrize(
    ('schedule', 'last'),
    [('constant', 1.0), ('linear', 1 / 16), ('cosine', 0.5 * (1 + np.cos(np.pi * 15 / 16)))],
)
def test_learning_rate_by_step(schedule, last):
    rate = training._progress(Optim(warmup=4, schedule=schedule), steps=20)
    np.testing.assert_allclose([rate(i) for i in range(4)], [0.25, 0.5, 0.75, 1.0])
    assert float(rate(4)) == 1.0
    assert float(rate(19)) == pytest.approx(last, abs=1e-6)


def test_the_loss_is_a_mean_over_scored_answers_not_over_sequences():
    logits = jnp.log(jnp.float32([[[0.5, 0.5], [0.25, 0.75]], [[0.9, 0.1], [0.5, 0.5]]]))
    answers = jnp.asarray([[0, 1], [-1, -1]])
    loss, accuracy = training.loss_and_accuracy(logits, answers, training.count_scored(answers))
    assert float(loss) == pytest.approx(-(np.log(0.5) + np.log(0.75)) / 2)
    assert float(accuracy) == pytest.approx(
        1.0
    )  # argmax of a tie is the first, which is right here
