"""What training covers of a longer sequence, and the curves that a scheme draws."""

import numpy as np
import pytest

from posjax.coverage import coverage
from posjax.hull import TOLERANCE, outside
from posjax.kernel import kernel
from posjax.scheme import Dims
from tests.test_laws import TEXTS

DIMS = Dims(width=16, heads=2, head_dim=8, layers=2)
TRAINED, ASKED = 16, 64


def parts(text, trained=TRAINED, asked=ASKED, dims=DIMS):
    found = coverage(text, dims, trained, asked)
    return {part.what: part for part in found.parts}


def test_a_rotation_meets_the_arc_that_its_trained_angles_filled():
    found = parts('rope', dims=DIMS._replace(layers=1))
    assert found.keys() == {'keys in view', 'pair 0', 'pair 1', 'pair 2', 'pair 3'}
    for pair in range(4):
        theta = 1e4 ** (-2 * pair / 8)
        arc, turn = (TRAINED - 1) * theta, 2 * np.pi
        angle = np.arange(ASKED) * theta
        got = np.array(found[f'pair {pair}'].met)
        if arc > turn:
            assert got.all()
            continue
        # Never met: in the gap that the trained arc leaves, further in than the tolerance's reach.
        gap = (angle % turn > arc) & (angle > arc)
        np.testing.assert_array_equal(got[gap & (angle > 1.3 * arc) & (angle % turn < 6)], 0)
        np.testing.assert_array_equal(got[~gap], 1)
        assert found[f'pair {pair}'].unit == 'turns'
        np.testing.assert_allclose(found[f'pair {pair}'].trained, (0, arc / turn), rtol=1e-4)
        np.testing.assert_allclose(found[f'pair {pair}'].asked, (0, angle[-1] / turn), rtol=1e-4)


def test_rows_of_a_table_that_training_never_reads():
    found = parts('learned(max_length=70)')
    assert found.keys() == {'keys in view', f'learned/table rows {TRAINED}–{ASKED - 1}'}
    rows = found[f'learned/table rows {TRAINED}–{ASKED - 1}']
    np.testing.assert_array_equal(rows.met, np.arange(ASKED) < TRAINED)
    assert rows.over == 'position' and rows.asked == (0, (ASKED - TRAINED) * DIMS.width)


def test_buckets_that_no_trained_distance_reached():
    # 8 buckets up to 32: 0 1 2 3 exactly, then boundaries at 4 2^(3/4), 4 2^(6/4), 4 2^(9/4).
    found = parts('t5(num_buckets=8, max_distance=32)')
    rows = found['t5/table rows 7']
    np.testing.assert_array_equal(rows.met, np.arange(ASKED) < np.ceil(4 * 8 ** (3 / 4)))
    assert rows.over == 'distance' and rows.layers == (0, 1)


def test_biases_beyond_their_trained_range_in_each_head():
    found = coverage('alibi(slopes=(0.5, 0.25))', DIMS, TRAINED, ASKED).parts
    biases = [part for part in found if part.what == 'bias']
    assert [part.heads for part in biases] == [(0,), (1,)]
    for part, slope in zip(biases, (0.5, 0.25), strict=True):
        assert part.trained == (-slope * 15, 0) and part.asked == (-slope * 63, 0)
        # The mean distance is 5, and the farthest 10 from it: a tenth of that is one step more.
        np.testing.assert_array_equal(part.met, np.arange(ASKED) < TRAINED + 1)


def test_a_window_keeps_everything_within_what_was_met():
    found = coverage('window(size=8)|alibi', DIMS, TRAINED, ASKED).parts
    assert all(part.unmet == 0 for part in found)
    assert {part.what for part in found} == {'keys in view', 'bias'}
    met = np.array(found[0].met)
    assert np.isnan(met[8:]).all() and not np.isnan(met[:8]).any()


def test_without_a_scheme_only_the_number_of_keys_is_new():
    (part,) = coverage('none', DIMS, TRAINED, ASKED).parts
    assert part.what == 'keys in view' and part.unmet == 1
    assert part.trained == (1, TRAINED) and part.asked == (ASKED, ASKED)


def test_random_positions_meet_in_training_what_a_longer_sequence_asks():
    plain, random = (
        coverage(text, DIMS, TRAINED, ASKED).parts
        for text in ('rope', 'rope|randomised(max_position=128)')
    )
    assert max(part.unmet for part in plain if part.unit == 'turns') > 0.5
    assert max(part.unmet for part in random if part.unit == 'turns') < 0.1


def test_layers_that_differ_are_told_apart():
    found = coverage('every(2, rope, alibi)', DIMS, TRAINED, ASKED).parts
    assert {part.layers for part in found if part.unit == 'turns'} == {(0,)}
    assert {part.layers for part in found if part.what == 'bias'} == {(1,)}


@pytest.mark.parametrize(
    'text', [TEXTS[0], *(pytest.param(t, marks=pytest.mark.slow) for t in TEXTS[1:]
                         if isinstance(t, str))]
)  # fmt: skip
def test_at_the_training_length_everything_was_met(text):
    found = coverage(text, DIMS, 12, 12)
    assert all(part.unmet == 0 for part in found.parts), str(found)
    assert len(found.figure().axes[0].get_yticks()) == len(found.parts)


def test_outside_is_beyond_the_hull_by_more_than_the_tolerance():
    line = np.linspace(0, 1, 5)[:, None]
    reach = TOLERANCE / 2  # the spread of 0..1 about its mean is a half
    asked = np.array([[-2 * reach], [-0.5 * reach], [0.3], [1 + 0.5 * reach], [1 + 2 * reach]])
    np.testing.assert_array_equal(outside(line, asked), [1, 0, 0, 0, 1])
    angle = np.linspace(0, np.pi, 50)
    arc = np.stack([np.cos(angle), np.sin(angle), np.zeros(50)], axis=1)
    asked = np.array([[0, 0.5, 0], [0, -0.5, 0], [0, 0.5, 0.3]])
    np.testing.assert_array_equal(outside(arc, asked), [0, 1, 1])


def test_kernel_draws_the_terms_of_the_score_in_float64():
    n = np.arange(40)
    rope = kernel('rope', DIMS, 40)
    cosines = np.cos(np.multiply.outer(1e4 ** (-np.arange(4) / 4), n))
    np.testing.assert_allclose(rope.group_GHS[:, 0], cosines, atol=1e-5)
    np.testing.assert_allclose(rope.alike_HS[1], cosines.mean(axis=0), atol=1e-5)
    assert rope.groups == ((0, 1), (2, 3), (4, 5), (6, 7)) and not rope.bias_HS.any()

    alibi = kernel('alibi(slopes=(0.5, 0.25))', DIMS, 40)
    np.testing.assert_array_equal(alibi.bias_HS, -np.multiply.outer([0.5, 0.25], n))
    np.testing.assert_allclose(alibi.alike_HS, 1, atol=1e-5)

    angle = np.multiply.outer(n, 1e4 ** (-np.arange(8) / 8))
    sinusoidal = kernel('sinusoidal', DIMS, 40)
    np.testing.assert_allclose(sinusoidal.embed_TD[:, ::2], np.sin(angle), atol=1e-5)
    np.testing.assert_allclose(sinusoidal.embed_TD[:, 1::2], np.cos(angle), atol=1e-5)
    for found, panels in ((rope, 2), (alibi, 1), (sinusoidal, 1)):
        drawn = [axis for axis in found.figure().axes if axis.get_label() != '<colorbar>']
        assert len(drawn) == panels


def test_mistakes_are_one_line():
    for call in (
        lambda: coverage('rope', DIMS, 0, 4),
        lambda: coverage('learned(max_length=8)', DIMS, 8, 9),
        lambda: coverage('rpoe', DIMS, 8, 9),
        lambda: kernel('rope', DIMS._replace(head_dim=3)),
        lambda: kernel('rope', DIMS, layer=2),
    ):
        with pytest.raises(ValueError, match='^[^\n]+$'):
            call()
