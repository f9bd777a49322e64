"""Tasks against slow solvers, and their baselines against counting."""

import functools
import itertools
import re
from collections import Counter

import jax
import numpy as np
import pytest

from posjax.tasks.task import UNSCORED, Task, baseline, parse

EXAMPLES = {
    'lag': ['lag', 'lag(k=1, vocab=5)', 'lag(k=6)'],
    'seen': ['seen(vocab=96)', 'seen(vocab=7)'],
    'induction': ['induction', 'induction(vocab=3)'],
    'recall': ['recall', 'recall(keys=3, values=5)'],
    'copy': ['copy', 'copy(vocab=3, vary=False)'],
    'reverse': ['reverse', 'reverse(vocab=3, vary=False)'],
    'needle': [
        'needle',
        'needle(keys=3, values=2, queries=2, key_vocab=5)',
        'needle(keys=1, values=5, queries=1, key_vocab=1, value_vocab=10, hay_vocab=1)',
        'needle(keys=6, values=1, queries=3, depth=(0.25, 0.5))',
    ],
}
TEXTS = [text for texts in EXAMPLES.values() for text in texts]


@functools.partial(jax.jit, static_argnames=('batch', 'length'))
def draw(task, seed, batch, length):
    """Tokens, answers and depths."""
    tokens, answers = task.sample(jax.random.key(seed), batch, length)
    return tokens, answers, task.depths(tokens)


def solve_lag(task, tokens):
    return [tokens[t - task.k] if t >= task.k else UNSCORED for t in range(len(tokens))]


def solve_seen(task, tokens):
    return [int(token in list(tokens[:t])) for t, token in enumerate(tokens)]


def solve_induction(task, tokens):
    answers, follower = [], {}
    for t, token in enumerate(tokens):
        if t:
            follower[tokens[t - 1]] = token
        answers.append(follower.get(token, UNSCORED))
    return answers


def solve_recall(task, tokens):
    answers, known = [], {}
    for t, token in enumerate(tokens):
        if t % 2 == 0:
            assert token >= task.values, 'a key'
            answers.append(known.get(token, UNSCORED))
        else:
            assert known.setdefault(tokens[t - 1], token) == token < task.values
            answers.append(UNSCORED)
    return answers


def solve_output(task, tokens, order):
    tokens = list(map(int, tokens))
    size = tokens.index(task.vocab)
    assert size <= len(tokens) // 2 and (task.vary or size == len(tokens) // 2)
    output = tokens[:size][::order]
    assert max(output) < task.vocab
    assert tokens[size + 1 : 2 * size] == output[:-1], 'the output is fed back'
    assert set(tokens[2 * size :]) <= {task.vocab + 1}, 'padding'
    return [UNSCORED] * size + output + [UNSCORED] * (len(tokens) - 2 * size)


def solve_copy(task, tokens):
    return solve_output(task, tokens, 1)


def solve_reverse(task, tokens):
    return solve_output(task, tokens, -1)


def needles(task, tokens):
    """{key: (place, values)} in the haystack, and the key and place of every question."""
    tokens = list(map(int, tokens))
    is_key = range(task.value_vocab, task.value_vocab + task.key_vocab)
    questions = [t + 1 for t, token in enumerate(tokens) if token == task.tokens - 1]
    hay = questions[0] - 1
    found = {}
    for t, token in enumerate(tokens[:hay]):
        if token in is_key:
            assert token not in found, 'keys are different'
            found[token] = t, tokens[t + 1 : t + 1 + task.values]
    assert len(found) == task.keys
    inside = sum(token < task.value_vocab for token in tokens[:hay])
    assert inside == task.keys * task.values, 'hay holds no values'
    assert len({tokens[t] for t in questions}) == len(questions) == task.queries
    return found, [(tokens[t], t) for t in questions]


def solve_needle(task, tokens):
    found, questions = needles(task, tokens)
    answers = [UNSCORED] * len(tokens)
    for key, t in questions:
        _, values = found[key]
        assert max(values) < task.value_vocab
        assert list(tokens[t + 1 : t + task.values]) == values[:-1], 'the answer is fed back'
        answers[t : t + task.values] = values
    assert len(answers) == len(tokens)
    return answers


SOLVERS = {
    'lag': solve_lag,
    'seen': solve_seen,
    'induction': solve_induction,
    'recall': solve_recall,
    'copy': solve_copy,
    'reverse': solve_reverse,
    'needle': solve_needle,
}


@pytest.mark.parametrize('name', sorted(Task.registry))
def test_every_task_has_a_slow_solver_and_its_fields_are_glossed(name):
    assert SOLVERS.keys() == EXAMPLES.keys() == Task.registry.keys()
    cls = Task.registry[name]
    glosses = cls.__doc__.partition('Fields:')[2]
    for field in cls.__dataclass_fields__:
        assert field in glosses, field


@pytest.mark.parametrize('text', TEXTS)
def test_answers_agree_with_the_slow_solver(text):
    task = parse(text)
    tokens, answers, _ = draw(task, 0, 20, 33)
    assert tokens.shape == answers.shape == (20, 33)
    assert tokens.dtype == answers.dtype == np.int32
    assert tokens.min() >= 0 and tokens.max() == task.tokens - 1
    for row, expected in zip(np.asarray(tokens), np.asarray(answers), strict=True):
        assert SOLVERS[task.name()](task, row) == list(expected)


@pytest.mark.parametrize('name', sorted(Task.registry))
def test_long_sequences_are_asked_something(name):
    task, length = parse(name), 8192
    task.check_length(length)
    tokens, answers, _ = draw(task, 3, 1, length)
    assert SOLVERS[name](task, np.asarray(tokens[0])) == list(answers[0])
    assert (answers != UNSCORED).any() and baseline(task, length) < 1


@pytest.mark.parametrize('name', sorted(Task.registry))
def test_samples_are_functions_of_the_key_and_one_program_a_length(name):
    task = parse(name)
    first, other = (np.asarray(draw(task, seed, 20, 33)[0]) for seed in (0, 1))
    programs = draw._cache_size()
    np.testing.assert_array_equal(draw(parse(name), 0, 20, 33)[0], first)
    assert (first != other).any(axis=1).all() and draw._cache_size() == programs


def examples(cls):
    """(task, tokens, answers) of the examples in a docstring; a line above may say the fields."""
    lines, task, tokens = cls.__doc__.splitlines(), cls(), None
    for line in lines:
        if re.fullmatch(rf'\s+{cls.name()}\(.*\)', line):
            task = parse(line.strip())
        elif 'tokens  ' in line:
            tokens = [int(t) for t in line.split('tokens')[1].split()]
        elif line.strip().startswith('answers  '):
            answers = line.split('answers')[1].split()
            yield task, tokens, [UNSCORED if a == '.' else int(a) for a in answers]


@pytest.mark.parametrize('name', sorted(Task.registry))
def test_the_docstring_examples_are_right(name):
    found = list(examples(Task.registry[name]))
    assert found
    for task, tokens, answers in found:
        assert SOLVERS[name](task, tokens) == answers


@pytest.mark.parametrize('text', TEXTS)
def test_answer_probabilities_agree_with_counting(text):
    task, count, length = parse(text), 20_000, 21
    _, answers, _ = draw(task, 1, count, length)
    answers = np.asarray(answers)
    exact = task.answers(length)
    assert exact.dtype == np.float64 and exact.shape == (length, task.classes)
    for c in range(task.classes):
        counted = (answers == c).mean(axis=0)
        # Five standard errors of a frequency over `count` draws, for every position.
        bound = 5 * np.sqrt(exact[:, c] * (1 - exact[:, c]) / count) + 1e-9
        assert (np.abs(counted - exact[:, c]) <= bound).all()


def every_uniform(task, length):
    return itertools.product(range(task.tokens), repeat=length)


def every_recall(task, length):
    for values in itertools.product(range(task.values), repeat=task.keys):
        for keys in itertools.product(range(task.keys), repeat=-(-length // 2)):
            yield sum(((task.values + k, values[k]) for k in keys), ())[:length]


def every_output(task, length, order):
    # Each size equally often: contents of fewer tokens appear as many times as longer ones.
    longest = length // 2
    for size in range(1 if task.vary else longest, longest + 1):
        for content in itertools.product(range(task.vocab), repeat=longest):
            output = content[:size][::order]
            row = (*content[:size], task.vocab, *output[:-1])
            yield row + (task.vocab + 1,) * (length - len(row))


def every_needle(task, length):
    assert task.keys == task.queries == task.hay_vocab == task.key_vocab == 1
    v, width, hay = task.value_vocab, 1 + task.values, length - 1 - task.values
    for values in itertools.product(range(v), repeat=task.values):
        for place in range(hay - width + 1):
            row = [v + 1] * hay
            row[place : place + width] = v, *values
            yield *row, v + 2, v, *values[:-1]


EVERY = {
    'lag(k=2, vocab=3)': every_uniform,
    'seen(vocab=3)': every_uniform,
    'induction(vocab=3)': every_uniform,
    'recall(keys=2, values=3)': every_recall,
    'copy(vocab=3)': lambda task, length: every_output(task, length, 1),
    'reverse(vocab=2)': lambda task, length: every_output(task, length, -1),
    'copy(vocab=2, vary=False)': lambda task, length: every_output(task, length, 1),
    'needle(keys=1, values=2, queries=1, key_vocab=1, value_vocab=3, hay_vocab=1)': every_needle,
}


@pytest.mark.parametrize('text', EVERY)
def test_answer_probabilities_and_baselines_are_those_of_all_sequences(text):
    task = parse(text)
    length = 8 if 'needle' in text else 7
    rows = [tuple(map(int, row)) for row in EVERY[text](task, length)]
    answers = np.array([SOLVERS[task.name()](task, row) for row in rows])
    exact = np.stack([(answers == c).mean(axis=0) for c in range(task.classes)], axis=1)
    np.testing.assert_allclose(task.answers(length), exact, rtol=1e-12, atol=1e-15)
    scored = answers[answers != UNSCORED]
    best = Counter(scored.tolist()).most_common(1)[0][1] / scored.size
    assert baseline(task, length) == pytest.approx(best, rel=1e-12)
    # What is sampled is among them.
    sampled, _, _ = draw(task, 2, 50, length)
    assert set(map(tuple, sampled.tolist())) <= set(rows)


@pytest.mark.parametrize('text', EXAMPLES['needle'])
def test_the_depth_of_a_needle_is_where_it_lies(text):
    task = parse(text)
    tokens, answers, depths = draw(task, 4, 20, 33)
    assert depths.dtype == np.float32
    for row, got in zip(np.asarray(tokens), np.asarray(depths), strict=True):
        found, questions = needles(task, row)
        last = 33 - (task.queries + 1) * (task.values + 1)
        expected = np.full(33, np.nan)
        for key, t in questions:
            expected[t : t + task.values] = found[key][0] / last
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.isnan(depths), answers == UNSCORED)


def test_needles_lie_anywhere_equally_often():
    task, count = parse('needle(keys=1, queries=1)'), 20_000
    tokens, _, _ = draw(task, 5, count, 12)
    places = np.asarray((tokens[:, :10] >= 16) & (tokens[:, :10] < 32)).mean(axis=0)
    # 10 tokens of hay hold a needle of two at places 0 to 8; five standard errors.
    np.testing.assert_allclose(places[:9], 1 / 9, atol=5 * np.sqrt(8 / 81 / count))
    assert places[9] == 0


@pytest.mark.parametrize(
    ('text', 'low', 'high'),
    [
        ('needle(keys=1, queries=1, depth=(0.0, 0.0))', 0, 0),
        ('needle(keys=1, queries=1, depth=(1.0, 1.0))', 1, 1),
        ('needle(keys=1, queries=1, depth=(0.25, 0.5))', 0.25, 0.5),
        # Four needles of two tokens cannot all end the haystack of 120: they fill its last eight.
        ('needle(depth=(1.0, 1.0))', 112 / 118, 1),
        ('needle(keys=2, queries=1, depth=(1.0, 1.0))', 1, 1),
    ],
)
def test_needles_lie_at_the_depth_asked_for(text, low, high):
    depths = np.asarray(draw(parse(text), 6, 200, 128)[2])
    assert np.nanmin(depths) == pytest.approx(low, abs=0.01)
    assert np.nanmax(depths) == pytest.approx(high, abs=0.01)


def test_the_depth_of_needles_is_data():
    texts = ['needle', 'needle(depth=(0.0, 0.1))', 'needle(depth=(0.9, 1.0))']
    assert len({jax.tree.structure(parse(text)) for text in texts}) == 1


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
        ('induction(vocab=1)', 'vocab=1 should be at least 2'),
        ('recall(values=1)', 'values=1 should be at least 2'),
        ('recall(keys=0)', 'keys=0 should be at least 1'),
        ('reverse(vocab=1)', 'task reverse: vocab=1 should be at least 2'),
        ('needle(queries=5)', 'queries=5 should be at most keys=4'),
        ('needle(key_vocab=3)', 'key_vocab=3 should be at least keys=4'),
        ('needle(values=0)', 'values=0 should be at least 1'),
        ('needle(hay_vocab=0)', 'hay_vocab=0 should be at least 1'),
        ('needle(depth=(0.5, 0.2))', r'depth=\(0.5, 0.2\) should be \(from, to\)'),
        ('needle(depth=0.5)', r'depth=\(0.5,\) should be \(from, to\)'),
        ('needle(depth=(0.5, 1.5))', '0 <= from <= to <= 1'),
        ('lagg', "did you mean 'lag'"),
    ],
)
def test_wrong_tasks_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ('text', 'least', 'message'),
    [
        ('lag(k=3)', 4, 'scores nothing within 3 tokens; ask for more than 3'),
        ('induction', 2, 'scores nothing within 1 tokens; ask for at least 2'),
        ('recall', 3, 'scores nothing within 2 tokens; ask for at least 3'),
        ('copy', 2, 'scores nothing within 1 tokens; ask for at least 2'),
        ('reverse', 2, 'scores nothing within 1 tokens; ask for at least 2'),
        ('needle(keys=3, values=2, queries=1)', 12, 'not fit in 11 tokens; ask for at least 12'),
    ],
)
def test_a_length_that_scores_nothing_is_refused(text, least, message):
    task = parse(text)
    with pytest.raises(ValueError, match=message):
        task.check_length(least - 1)
    task.check_length(least)
    tokens, answers, _ = draw(task, 0, 20, least)
    assert (answers != UNSCORED).any()
    for row, expected in zip(np.asarray(tokens), np.asarray(answers), strict=True):
        assert SOLVERS[task.name()](task, row) == list(expected)
