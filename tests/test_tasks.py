"""Tasks against slow solvers, and their baselines against counting."""

import jax
import numpy as np
import pytest

from posjax.tasks.task import UNSCORED, Task, baseline, parse

EXAMPLES = {
    'lag': ['lag', 'lag(k=1, vocab=5)', 'lag(k=6)'],
    'seen': ['seen(vocab=96)', 'seen(vocab=7)'],
}
TEXTS = [text for texts in EXAMPLES.values() for text in texts]


def solve_lag(task, tokens):
    return [tokens[t - task.k] if t >= task.k else UNSCORED for t in range(len(tokens))]


def solve_seen(task, tokens):
    return [int(token in list(tokens[:t])) for t, token in enumerate(tokens)]


SOLVERS = {'lag': solve_lag, 'seen': solve_seen}


def test_every_task_has_a_slow_solver_and_a_docstring_with_an_example():
    assert Task.registry.keys() == SOLVERS.keys() == EXAMPLES.keys()
    for cls in Task.registry.values():
        assert 'tokens' in cls.__doc__ and 'answers' in cls.__doc__


@pytest.mark.parametrize('text', TEXTS)
def test_answers_agree_with_the_slow_solver(text):
    task = parse(text)
    tokens, answers = task.sample(jax.random.key(0), 20, 33)
    assert tokens.shape == answers.shape == (20, 33)
    assert tokens.dtype == answers.dtype == np.int32
    assert tokens.min() >= 0 and tokens.max() == task.tokens - 1
    for row, expected in zip(np.asarray(tokens), np.asarray(answers), strict=True):
        assert SOLVERS[task.name()](task, row) == list(expected)


@pytest.mark.parametrize('text', TEXTS)
def test_the_docstring_example_is_right(text):
    task = parse(text)
    lines = type(task).__doc__.splitlines()
    tokens = next(line for line in lines if 'tokens  ' in line).split('tokens')[1].split()
    answers = next(line for line in lines if 'answers  ' in line).split('answers')[1].split()
    default = type(task)()
    solved = SOLVERS[task.name()](default, [int(t) for t in tokens])
    assert [UNSCORED if a == '.' else int(a) for a in answers] == solved


@pytest.mark.parametrize('text', TEXTS)
def test_answer_probabilities_are_exact(text):
    task, count, length = parse(text), 20_000, 12
    _, answers = task.sample(jax.random.key(1), count, length)
    answers = np.asarray(answers)
    exact = task.answers(length)
    assert exact.dtype == np.float64 and exact.shape == (length, task.classes)
    for c in range(task.classes):
        counted = (answers == c).mean(axis=0)
        # Five standard errors of a frequency over `count` draws, for every position.
        bound = 5 * np.sqrt(exact[:, c] * (1 - exact[:, c]) / count) + 1e-9
        assert (np.abs(counted - exact[:, c]) <= bound).all()


def test_the_published_baselines_of_seen():
    task = parse('seen(vocab=96)')
    no = [task.answers(length)[:, 0].mean() for length in (32, 64, 128)]
    np.testing.assert_allclose(no, [0.85, 0.73, 0.55], atol=0.006)
    past = task.answers(128)[32:, 0].mean()
    assert past == pytest.approx(0.45, abs=0.005)
    # Past position 32 the best constant answer is "yes".
    assert baseline(task, 128, start=32) == pytest.approx(1 - past)
    assert baseline(task, 32) == pytest.approx(no[0])


def test_the_baseline_of_lag_is_chance_on_scored_positions():
    task = parse('lag(k=3, vocab=16)')
    assert baseline(task, 32) == baseline(task, 128, start=32) == pytest.approx(1 / 16)
    assert np.isnan(baseline(task, 32, 0, 3))


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('lag(k=0)', 'k=0 should be at least 1'),
        ('lag(vocab=1)', 'vocab=1 should be at least 2'),
        ('seen(vocab=0)', 'vocab=0 should be at least 2'),
        ('lag(k=2.5)', 'k=2.5 should be an integer'),
        ('lagg', "did you mean 'lag'"),
    ],
)
def test_wrong_tasks_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_a_length_that_scores_nothing_is_refused():
    with pytest.raises(ValueError, match='scores nothing within 3 tokens; ask for more than 3'):
        parse('lag(k=3)').check_length(3)
    parse('lag(k=3)').check_length(4)
