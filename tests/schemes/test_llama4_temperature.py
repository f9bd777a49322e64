"""Llama 4's temperature at every step."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from tests.cases import context

EXAMPLES = ['llama4_temperature(attn_scale=1.0, floor_scale=2)']


def factors(positions, words='llama4_temperature'):
    positions = jnp.asarray(positions)
    ones = jnp.ones((1, positions.size, 2, 4))
    q, k = parse(words).qk({}, ones, ones, context(positions))
    np.testing.assert_array_equal(k, ones)
    np.testing.assert_array_equal(q, jnp.broadcast_to(q[:, :, :1, :1], q.shape))
    return np.asarray(q)[0, :, 0, 0]


@pytest.mark.parametrize('floor_scale', [1, 3, 7, 8192])
@pytest.mark.parametrize('kind', [int, float])
def test_golden(floor_scale, kind):
    # Both sides of every one of the first steps, and of steps far out.
    steps = [*range(1, 60), 1000, 12_345, 100_000 // floor_scale]
    positions = [0] + [max(s * floor_scale + side, 0) for s in steps for side in (-2, -1, 0)]
    if kind is float:
        positions = [i for i in positions if i < 2**24]  # all of float32's integers
    expected = np.array([1 + 0.1 * math.log(1 + (i + 1) // floor_scale) for i in positions])
    assert expected.dtype == np.float64
    got = factors(np.array(positions, kind), f'llama4_temperature(floor_scale={floor_scale})')
    np.testing.assert_allclose(got, expected, rtol=3e-7)


def test_by_hand():
    positions = [0, 8190, 8191, 16382, 16383, 10**7]
    expected = [1, 1, 1.0693147, 1.0693147, 1.1098612, 1 + 0.1 * math.log(1221)]
    np.testing.assert_allclose(factors(positions), expected, rtol=3e-7)


def test_places_before_the_sequence_are_as_its_start():
    np.testing.assert_array_equal(factors([-1, -3, -9000]), 1)


def test_refused():
    with pytest.raises(ValueError, match='attn_scale=-0.1 should be at least 0'):
        parse('llama4_temperature(attn_scale=-0.1)')
    with pytest.raises(ValueError, match='floor_scale=0 should be at least 1'):
        parse('llama4_temperature(floor_scale=0)')
