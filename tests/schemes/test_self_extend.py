"""Distances in groups, against a score for every pair of tokens."""

import numpy as np
import pytest

from tests.schemes.test_rerope import POSITIONS, scores, scores64

EXAMPLES = [
    'self_extend(group=2, window=3)',
    "self_extend(group=3, window=2, scheme=rope(theta=30.0, pairing='half'))|logn(6)",
]


@pytest.mark.parametrize('dim', [2, 6])
@pytest.mark.parametrize(('group', 'window'), [(2, 3), (3, 4), (4, 1), (5, 50)])
def test_golden(dim, group, window):
    def distance_of(i, j):
        if i - j < window:
            return i - j
        return (i // group + window - window // group) - j // group

    q, k = np.random.default_rng(dim).normal(size=(2, len(POSITIONS), dim))
    expected = scores64(q, k, POSITIONS, distance_of, theta=30.0)
    assert expected.dtype == np.float64
    text = f'self_extend(group={group}, window={window}, scheme=rope(theta=30.0))'
    np.testing.assert_allclose(scores(text, q, k, POSITIONS), expected, atol=3e-6)


def test_groups_of_one_are_rope():
    q, k = np.random.default_rng(0).normal(size=(2, len(POSITIONS), 8))
    np.testing.assert_array_equal(
        scores('self_extend(1, 3)', q, k, POSITIONS), scores('rope', q, k, POSITIONS)
    )
