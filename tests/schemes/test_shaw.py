"""Clipped relative vectors against the paper, equations 3 and 4, by loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import Dims, parse
from posjax.schemes.shaw import rows, total
from tests.cases import context

EXAMPLES = ['shaw(max_distance=3)', 'shaw(max_distance=2, values=False)']


def reference(q, k, v, keys, values, positions, max_distance, causal):
    """z_i = sum_j alpha_ij (v_j + a^V_ij), alpha_ij = softmax_j(q_i (k_j + a^K_ij) / sqrt(d_z))."""
    tokens, heads, d_z = q.shape
    z = np.zeros((tokens, heads, d_z))
    for h in range(heads):
        for i in range(tokens):
            visible = [j for j in range(tokens) if j <= i or not causal]
            at = [int(max(-max_distance, min(max_distance, positions[j] - positions[i])))
                  + max_distance for j in visible]  # fmt: skip
            e = np.array([q[i, h] @ (k[j, h] + keys[r]) for j, r in zip(visible, at, strict=True)])
            alpha = np.exp(e / np.sqrt(d_z))
            alpha /= alpha.sum()
            for weight, j, r in zip(alpha, visible, at, strict=True):
                z[i, h] += weight * (v[j, h] + values[r])
    return z


@pytest.mark.parametrize(
    ('max_distance', 'positions'),
    [
        (1, np.arange(7)),
        (3, np.arange(7)),
        (16, np.arange(5)),  # further than any two tokens
        (4, 99_990 + np.arange(9)),
        (3, np.array([0, 2, 3, 9, 100_000])),
    ],
)
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('with_values', [True, False])
def test_golden(max_distance, positions, causal, with_values):
    tokens, heads, dim = len(positions), 3, 6
    rng = np.random.default_rng(max_distance)
    q, k, v = rng.normal(size=(3, tokens, heads, dim))
    tables = rng.normal(size=(2, 2, 2 * max_distance + 1, dim))  # names, layers
    params = {'keys': jnp.float32(tables[0])}
    if with_values:
        params['values'] = jnp.float32(tables[1])
    scheme = parse(f'shaw(max_distance={max_distance}, values={with_values})')
    ctx = context(positions, head_dim=dim)._replace(layer=1)
    got, _ = attend(
        scheme, params, *(jnp.float32(x[None]) for x in (q, k, v)), ctx._replace(causal=causal)
    )
    values = tables[1, 1] * with_values
    expected = reference(q, k, v, tables[0, 1], values, positions, max_distance, causal)
    assert expected.dtype == np.float64
    np.testing.assert_allclose(got[0], expected, atol=2e-5)


def test_one_query_of_a_longer_sequence_sees_its_real_distances():
    last, far = context([2], [0, 1, 2]), context([100_000], [0, 99_999, 100_001])
    np.testing.assert_array_equal(rows(last, 2)[0, 0, 0], [0, 1, 2])
    np.testing.assert_array_equal(rows(far, 2)[0, 0, 0], [0, 1, 3])


def test_fractional_distances_take_the_nearest_row():
    got = rows(context([1.0], [-0.75, 0.25, 0.75, 1.4, 1.75]), 1)[0, 0, 0]
    np.testing.assert_array_equal(got, [0, 0, 1, 1, 2])


def test_weights_are_summed_by_row():
    weights = jnp.float32([[[[0.5, 0.25, 0.125, 0.125]]]])
    got = total(weights, jnp.int32([[[[0, 0, 2, 1]]]]), 4)
    np.testing.assert_array_equal(got[0, 0, 0], [0.75, 0.125, 0.125, 0])


def largest(function, *args):
    """Elements of the largest array that a function makes on its way."""
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return max(out.aval.size for eqn in jaxpr.eqns for out in eqn.outvars)


def test_no_array_of_queries_by_keys_by_head_dim():
    scheme, tokens, dim = parse('shaw(max_distance=2)'), 32, 64
    params = scheme.init(jax.random.key(0), Dims(dim, 1, dim, 1))
    q, ctx = jnp.ones((1, tokens, 1, dim)), context(np.arange(tokens), head_dim=dim)
    weights = jnp.ones((1, 1, tokens, tokens))
    # Indices of a gather and a scatter come with up to one number for each dimension.
    assert largest(lambda x: scheme.bias(params, x, x, ctx), q) <= 4 * tokens**2
    assert largest(lambda w: scheme.gather(params, w, ctx), weights) <= 4 * tokens**2


def test_initial_values_are_uniform_after_glorot():
    params = parse('shaw(max_distance=40)').init(jax.random.key(0), Dims(128, 2, 64, 3))
    assert params.keys() == {'keys', 'values'}
    bound = np.sqrt(6 / (81 + 64))
    for table in params.values():
        assert table.shape == (3, 81, 64)
        assert 0.99 * bound < np.abs(table).max() <= bound
    assert np.abs(params['keys'] - params['values']).max() > 0.1


def test_a_distance_that_tells_nothing_is_refused():
    with pytest.raises(ValueError, match='max_distance=0 should be at least 1'):
        parse('shaw(max_distance=0)')
