"""Sinusoids against the paper's formula."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from posjax.schemes.sinusoidal import table
from tests.cases import context

EXAMPLES = ['sinusoidal', "sinusoidal(theta=50.0, layout='tensor2tensor')"]


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
    np.testing.assert_allclose(
        table(jnp.asarray(pos), width, theta), paper(pos, width, theta), atol=2e-4
    )


@pytest.mark.parametrize('width', [1, 2, 5, 8, 64])
@pytest.mark.parametrize('theta', [1e4, 50.0])
def test_golden_concatenated(width, theta):
    pos = np.array([0, 1, 2, 31, 127, 1000])
    expected = paper(pos, width, theta)
    assert expected.dtype == np.float64
    expected = np.concatenate([expected[:, 0::2], expected[:, 1::2]], axis=1)
    got = table(jnp.asarray(pos), width, theta, 'concatenated')
    np.testing.assert_allclose(got, expected, atol=2e-4)


def authors_code(pos, width, theta):
    """tensor2tensor's timing signal, value by value: timescales from 1 up to theta itself."""
    out = np.zeros((len(pos), width))
    timescales = width // 2
    for row, t in enumerate(pos):
        for k in range(timescales):
            timescale = np.exp(k * np.log(theta) / max(timescales - 1, 1))
            out[row, k] = np.sin(t / timescale)
            out[row, timescales + k] = np.cos(t / timescale)
    return out


@pytest.mark.parametrize('width', [1, 2, 3, 5, 8, 64])
@pytest.mark.parametrize('theta', [1e4, 50.0])
def test_golden_tensor2tensor(width, theta):
    pos = np.array([0, 1, 2, 31, 127, 1000])
    expected = authors_code(pos, width, theta)
    assert expected.dtype == np.float64
    got = table(jnp.asarray(pos), width, theta, 'tensor2tensor')
    np.testing.assert_allclose(got, expected, atol=2e-4)


def test_tensor2tensor_spaces_frequencies_up_to_theta():
    # sin x = x for small x: the last sine at position 1 is the slowest frequency.
    row = np.asarray(table(jnp.asarray([1]), 8, 1e4, 'tensor2tensor'))[0]
    np.testing.assert_allclose(row[1:4], [1e4 ** (-1 / 3), 1e4 ** (-2 / 3), 1e-4], rtol=1e-3)
    other = np.asarray(table(jnp.asarray([1]), 8, 1e4, 'concatenated'))[0]
    np.testing.assert_allclose(other[1:4], [0.1, 0.01, 0.001], rtol=2e-3)


@pytest.mark.parametrize('layout', ['interleaved', 'concatenated', 'tensor2tensor'])
def test_each_layout_reaches_the_embedding(layout):
    x = jnp.ones((1, 3, 5))
    got = parse(f'sinusoidal(layout={layout!r})').embed({}, x, context([4, 0, 9]))
    np.testing.assert_allclose(got[0] - 1, table(jnp.asarray([4, 0, 9]), 5, 1e4, layout), atol=1e-6)


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
    spaced = table(jnp.asarray(pos), 64, 1e4, 'tensor2tensor')
    assert np.abs(spaced - authors_code(pos, 64, 1e4)).max() < bound
