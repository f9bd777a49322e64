"""Tables: what a figure rests on, how they are stored, and how they are compared."""

import math

import numpy as np
import pytest

from posjax import heatmaps, plots, report, results
from posjax.evaluation import Counts
from tests.test_training import make


def rows(length=9, right=None, text='rope'):
    """Rows of one run that was trained at 6 tokens."""
    run = make(text, task='lag(k=2, vocab=4)')
    scored = np.array([0, 0] + [10] * (length - 2))
    right = scored[None] * 1.0 if right is None else np.asarray([right], float)
    tables = results.tables_of(run, {}, length, ['none'], Counts(right, scored))
    return tables['results.csv'], tables['positions.csv']


def test_regions_are_means_over_answers_and_past_shows_what_all_hides():
    # Right on every position up to the training length of 6, wrong past it.
    found, by_position = rows(right=[0, 0, 10, 10, 10, 10, 0, 0, 0])
    everything, past = found
    assert (everything['region'], everything['value'], everything['count']) == ('all', 4 / 7, 70)
    assert (past['region'], past['value'], past['count']) == ('past', 0.0, 30)
    assert everything['baseline'] == past['baseline'] == 0.25
    assert [r['position'] for r in by_position] == [2, 3, 4, 5, 6, 7, 8]
    assert [r['accuracy'] for r in by_position] == [1, 1, 1, 1, 0, 0, 0]


def needle_tables(length=16, text='rope'):
    run = make(text, task='needle(keys=1, queries=1)')
    right, scored = np.zeros((1, length)), np.zeros(length, int)
    right[0, -1], scored[-1] = 24, 40
    deep = np.array([[9, 8, 7]]), np.array([10, 10, 20])
    pad = np.zeros(7, int)
    return results.tables_of(run, {}, length, ['none'], Counts(
        right, scored, np.concatenate([deep[0], pad[None]], 1), np.concatenate([deep[1], pad])
    ))  # fmt: skip


def test_depths_are_named_by_the_middle_of_their_tenth():
    rows = needle_tables()['depths.csv']
    assert [r['depth'] for r in rows] == pytest.approx([0.05, 0.15, 0.25])
    assert [r['accuracy'] for r in rows] == [0.9, 0.8, 0.35]
    assert [r['count'] for r in rows] == [10, 10, 20]
    assert {r['baseline'] for r in rows} == {1 / 16}
    assert rows[0].keys() == dict.fromkeys(results.DEPTH_COLUMNS).keys()
    assert results.label(rows[0]) == 'rope'


def test_tables_are_files_where_they_have_rows(tmp_path):
    run = make('rope', task='lag(k=2, vocab=4)')
    none = results.tables_of(run, {}, 3, ['none'], Counts(np.ones((1, 3)), np.array([0, 0, 1])))
    results.write_all(tmp_path / 'lag', none)
    assert {p.name for p in (tmp_path / 'lag').iterdir()} == {'results.csv', 'positions.csv'}
    both = results.joined([needle_tables(), needle_tables(24)])
    results.write_all(tmp_path / 'needle', both)
    again = results.read_all(tmp_path / 'needle')
    assert again['depths.csv'] == both['depths.csv']
    assert [r['length'] for r in again['results.csv']] == [16, 16, 24, 24]
    assert results.read_all(tmp_path / 'lag')['depths.csv'] == []


def test_figures_are_drawn_of_what_there_is(tmp_path):
    tables = results.joined([needle_tables(), needle_tables(24), needle_tables(16, 'none')])
    plots.all_figures(tmp_path, tables, [])
    names = {p.stem for p in (tmp_path / 'figures').iterdir()}
    assert names == {'accuracy_by_length', 'accuracy_by_position', 'accuracy_by_depth',
                     'accuracy_by_depth_and_length', 'accuracy'}  # fmt: skip
    grid = heatmaps.depth_grid(tables['depths.csv'])
    rope, none = (axis for axis in grid.axes if axis.images)
    np.testing.assert_allclose(rope.images[0].get_array(), [[0.9, 0.9], [0.8, 0.8], [0.35, 0.35]])
    assert none.images[0].get_array().shape == (3, 1)
    assert [t.get_text() for t in rope.texts] == ['0.90', '0.90', '0.80', '0.80', '0.35', '0.35']
    schemes = ('rope', 'none', 'alibi', 'sinusoidal', 't5')
    many = results.joined(needle_tables(text=text) for text in schemes)
    assert sum(bool(axis.texts) for axis in heatmaps.depth_grid(many['depths.csv']).axes) == 5
    # Each panel by its own training length: what is past one is not past the other.
    longer = [row | {'train_length': 24} for row in tables['results.csv'] if row['region'] == 'all']
    both = heatmaps.accuracy_grid(tables['results.csv'] + longer).axes
    shapes = [axis.images[0].get_array().shape for axis in both if axis.texts]
    assert shapes == [(3, 2), (3, 2)]
    grid = heatmaps.accuracy_grid(tables['results.csv']).axes[0]
    schemes = [t.get_text() for t in grid.get_yticklabels()]
    assert schemes[-1] == 'best constant answer' and set(schemes[:-1]) == {'rope', 'none'}
    past = {r['length']: r['value'] for r in tables['results.csv']
            if r['scheme'] == 'rope' and r['region'] == 'past'}  # fmt: skip
    row = grid.images[0].get_array()[schemes.index('rope')]
    np.testing.assert_allclose(row[-1], past[24])
    curve = plots.depth_figure(tables['depths.csv']).axes[0]
    np.testing.assert_allclose(curve.lines[0].get_ydata(), [0.9, 0.8, 0.35])


def test_within_the_training_length_nothing_is_past():
    assert [r['region'] for r in rows(length=6)[0]] == ['all']


def test_nan_is_not_averaged_away():
    found, _ = rows(right=[0, 0, 10, 10, 10, 10, 10, 10, math.nan])
    assert all(math.isnan(r['value']) for r in found)


def test_csv_round_trip(tmp_path):
    path = tmp_path / 'results.csv'
    found, by_position = rows(text='alibi(slopes=(0.5, 0.25))')
    found = [row | {'optim.learning_rate': 0.1} for row in found]
    results.write(path, found)
    header = path.read_text().splitlines()[0]
    assert header == ('task,scheme,seed,train_length,length,intervention,region,metric,value,'
                      'baseline,count,optim.learning_rate')  # fmt: skip
    again = results.read(path)
    for a, b in zip(found, again, strict=True):
        assert {k: v for k, v in a.items() if k != 'value'} == {
            k: float(v) if k == 'optim.learning_rate' else v for k, v in b.items() if k != 'value'
        }
        assert a['value'] == pytest.approx(b['value'], rel=1e-5)
    assert results.label(again[0]) == 'alibi(slopes=(0.5, 0.25)), optim.learning_rate=0.1'
    results.write(path, by_position, results.POSITION_COLUMNS)
    assert len(results.read(path, ())) == 7


HEADER = ','.join(results.COLUMNS[:9]) + '\n'


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', "has no column 'task'"),
        ('task,scheme\n', "has no column 'seed'"),
        (HEADER + 'lag,rope,0,32,32,none,all,accuracy,x\n', "line 2: value='x'"),
        (HEADER + 'lag,rope,0\n', 'line 2: 9 fields expected'),
        (HEADER + 'a,' * 12 + '\n', 'line 2: 9 fields expected'),
        ('\xff\xfe', 'cannot read'),
    ],
)  # fmt: skip
def test_wrong_files_are_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / 'x.csv'
    path.write_bytes(text.encode('latin-1'))
    with pytest.raises(ValueError, match=message) as error:
        results.read(path)
    assert '\n' not in str(error.value)
    with pytest.raises(ValueError, match='cannot read .*No such file'):
        results.read(tmp_path / 'absent.csv')


def table(*values, scheme='rope', task='lag(k=3, vocab=16)'):
    return [
        {'task': task, 'scheme': scheme, 'seed': seed, 'train_length': 32, 'length': 64,
         'intervention': 'none', 'region': 'all', 'metric': 'accuracy', 'value': value,
         'baseline': 0.06}
        for seed, value in enumerate(values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ('ours', 'agrees'),
    [
        ((0.50, 0.54), 1),
        ((0.471,), 1),
        ((0.469,), 0),
        ((0.629,), 1),
        ((0.631,), 0),
        ((0.2, 0.9), 1),
    ],
)
def test_a_cell_agrees_within_three_hundredths_of_the_range(ours, agrees):
    references = [table(0.50, 0.55), table(0.60)]
    text, agree, compared = report.compare(table(*ours), references)
    assert (agree, compared) == (agrees, 1)
    assert ('agrees' if agrees else 'differs') in text
    assert '0.525 (0.500–0.600)' in text  # the first reference's mean, the range of all


def test_the_same_scheme_in_other_words_is_compared():
    ours = table(0.5, scheme='rope(theta=1000000.0)', task='lag')
    text, agree, compared = report.compare(ours, [table(0.5, scheme='rope(theta=1e6)')])
    assert (agree, compared) == (1, 1)
    text, _, compared = report.compare(ours, [table(0.5, scheme='something else')])
    assert compared == 0 and '1 reference cells were not run here' in text


def test_the_summary_shows_means_spreads_and_baselines():
    text = report.summary(table(0.5, 0.6) + table(0.9, 0.9, scheme='none'))
    lines = text.splitlines()
    assert lines[0].startswith('lag(k=3, vocab=16), trained at length 32: accuracy at length')
    assert lines[1].split() == ['scheme', '64']
    assert lines[3].split()[-1] == '0.060'
    assert lines[4].split() == ['rope', '0.550', '±0.050']
    assert lines[5].split() == ['none', '0.900', '±0.000']


def test_what_is_not_finite_is_in_the_table_and_not_in_the_mean():
    text = report.summary(table(0.5, math.nan, 0.7) + table(math.nan, math.nan, scheme='none'))
    assert text.splitlines()[4].split(maxsplit=1) == ['rope', '0.600 ±0.100 (1 not finite)']
    assert text.splitlines()[5].split(maxsplit=1) == ['none', 'not finite']
    nothing_scored = [row | {'count': 0} for row in table(math.nan)]
    assert report.summary(nothing_scored).splitlines()[4].split() == ['rope', '–']
