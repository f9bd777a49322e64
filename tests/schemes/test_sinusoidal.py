"""Sinusoids against the paper's formula."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from posjax.schemes.sinusoidal import table
from tests.cases import context

EXAMPLES = ['sinusoidal', 'sinusoidal(theta=50.0)']


def paper(pos, width, theta=1e4):
    """PE(pos, 2i) = sin(pos / theta^(2i/d)), PE(pos, 2i+1) = cos(the same), column by column."""
    out = np.empty((len(pos), width))
    for column in range(width):
        i = column // 2
        angle = np.asarray(pos, np.float64) / theta ** (2 * i / width)
        out[:, column] = np.cos(angle) if column % 2 else np.sin(angle)
    return out


@pytest.mark.parametrize('width', [1, 2, 5, 8, 64])
@pytest.mark.parametrize('theta', [1e4, 50.0])
def test_golden(width, theta):
    pos = np.array([0, 1, 2, 31, 127, 1000])
    np.testing.assert_allclose(table(jnp.asarray(pos), width, theta), paper(pos, width, theta), atol=2e-4)


def test_embed_adds_the_table_of_the_positions():
    x = jnp.ones((1, 3, 6))
    got = parse('sinusoidal').embed({}, x, context([4, 0, 9]))
    np.testing.assert_allclose(got[0], 1 + paper([4, 0, 9], 6), atol=1e-5)


def test_founding_products():
    rows = np.asarray(table(jnp.arange(6), 8))
    assert rows[2] @ rows[3] == pytest.approx(3.54, abs=0.005)
    assert rows[2] @ rows[5] == pytest.approx(1.96, abs=0.005)


def test_odd_width_ends_on_a_sine():
    np.testing.assert_allclose(
        table(jnp.asarray([1]), 5)[0], [0.841471, 0.540302, 0.025116, 0.999685, 0.000631], atol=1e-6
    )


def test_angles_at_a_hundred_thousand():
    pos = 100_000 + np.arange(4)
    # float32 rounds the frequency and the angle: half a unit in the last place of each, and of log.
    bound = 4 * 2**-24 * 1e5
    assert np.abs(table(jnp.asarray(pos), 64) - paper(pos, 64)).max() < bound
