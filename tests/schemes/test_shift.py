"""Positions moved by a constant."""

import numpy as np

from posjax.scheme import parse

EXAMPLES = ['shift(by=3)', 'rope|shift(by=1000)', 'sinusoidal|shift(by=-2)']


def test_golden():
    pos = np.arange(4)[None]
    moved = parse('shift(by=3)').positions(pos, None, None, None)
    np.testing.assert_array_equal(moved, [[3, 4, 5, 6]])
    twice = parse('shift(by=3)|shift(by=-5)')
    np.testing.assert_array_equal(twice.positions(pos, None, None, None), pos - 2)
