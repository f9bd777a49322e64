"""T5's buckets against exact arithmetic, and its bias against the definition."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from posjax.schemes.t5 import bucket_starts, buckets
from tests.cases import context

EXAMPLES = [
    't5(num_buckets=4, max_distance=8)',
    't5(num_buckets=8, max_distance=20, bidirectional=True)',
]
# One token more or less moves no boundary among the few distances of the laws; odd numbers of
# buckets serve one direction only.
OTHER = {'max_distance': [8, 20], 'num_buckets': [4, 8]}

SIZES = [
    (2, 2), (3, 2), (3, 5), (4, 3), (4, 8), (5, 7), (8, 5), (8, 16), (9, 100), (16, 9), (16, 64),
    (16, 128), (31, 127), (32, 17), (32, 128), (32, 256), (64, 33), (64, 20_000), (128, 1000),
]  # fmt: skip


def exact_bucket(n, num_buckets, max_distance):
    """The causal rule of the paper's code for one distance, with its logarithms as fractions."""
    n = max(n, 0)
    exact = num_buckets // 2
    if n < exact:
        return n
    steps, j = num_buckets - exact, 0
    ratio, whole = Fraction(n, exact), Fraction(max_distance, exact)
    # floor(log(ratio) / log(whole) * steps), clipped: j + 1 <= ... is whole^(j+1) <= ratio^steps.
    while j + 1 < steps and whole ** (j + 1) <= ratio**steps:
        j += 1
    return exact + j


@pytest.mark.parametrize(('num_buckets', 'max_distance'), SIZES)
def test_golden_buckets_at_every_boundary(num_buckets, max_distance):
    starts = bucket_starts(num_buckets, max_distance)
    assert len(starts) == num_buckets and starts[0] == 0 and starts[-1] <= max_distance
    near = {int(s) + d for s in starts for d in (-1, 0, 1)} | {
        max_distance,
        max_distance - 1,
        100_000,
    }
    n = np.array(sorted(near | {-1, -5}))
    expected = [exact_bucket(int(m), num_buckets, max_distance) for m in n]
    for given in (jnp.asarray(n, jnp.int32), jnp.asarray(n, jnp.float32)):
        got = buckets(given, num_buckets, max_distance)
        assert got.dtype == jnp.int32
        np.testing.assert_array_equal(got, expected)


def test_founding_buckets():
    n = [0, 1, 15, 16, 18, 19, 31, 32, 64, 112, 113, 127, 128, 10**6, -3]
    expected = [0, 1, 15, 16, 16, 17, 21, 21, 26, 30, 31, 31, 31, 31, 0]
    np.testing.assert_array_equal(buckets(jnp.asarray(n)), expected)
    # 8 = 2 (32 / 2)^(2/4) exactly: float32 logarithms land on either side of such boundaries.
    np.testing.assert_array_equal(bucket_starts(8, 64), [0, 1, 2, 3, 4, 8, 16, 32])
    # Every bucket is used, in order.
    assert sorted(set(np.asarray(buckets(jnp.arange(2000))).tolist())) == list(range(32))


@pytest.mark.parametrize(('num_buckets', 'max_distance'), [(4, 2), (8, 20), (32, 128), (34, 100)])
def test_golden_bidirectional(num_buckets, max_distance):
    n = np.arange(-200, 201)
    half = num_buckets // 2
    expected = [exact_bucket(abs(int(m)), half, max_distance) + (half if m < 0 else 0) for m in n]
    np.testing.assert_array_equal(
        buckets(jnp.asarray(n), num_buckets, max_distance, True), expected
    )


def test_logarithms_agree_away_from_boundaries():
    """The paper's code as written, in float64, where no rounding can matter."""
    for num_buckets, max_distance in SIZES[::3]:
        exact = num_buckets // 2
        starts = set(bucket_starts(num_buckets, max_distance).tolist())
        n = [
            m for m in range(exact, 3 * max_distance, max(1, max_distance // 50)) if m not in starts
        ]
        large = [
            min(num_buckets - 1,
                exact + int(math.log(m / exact) / math.log(max_distance / exact)
                            * (num_buckets - exact)))
            for m in n
        ]  # fmt: skip
        np.testing.assert_array_equal(buckets(jnp.asarray(n), num_buckets, max_distance), large)


def test_fractions_fall_where_the_integer_below_does():
    n = np.arange(0, 30)
    whole = buckets(jnp.asarray(n), 8, 20)
    np.testing.assert_array_equal(buckets(jnp.asarray(n + 0.75, jnp.float32), 8, 20), whole)


@pytest.mark.parametrize('heads', [1, 3])
def test_golden_bias(heads):
    scheme = parse('t5(num_buckets=6, max_distance=9)')
    table = np.random.default_rng(0).normal(size=(6, heads))
    pos = np.array([0, 1, 2, 4, 9, 31, 100_000])
    q = jnp.zeros((1, len(pos), heads, 8))
    got = scheme.bias({'table': jnp.float32(table)}, q, q, context(pos))
    expected = np.empty((1, heads, len(pos), len(pos)))
    for a, i in enumerate(pos):
        for b, j in enumerate(pos):
            expected[0, :, a, b] = table[exact_bucket(int(i - j), 6, 9)]
    assert expected.dtype == np.float64 and got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_a_late_query_reads_the_last_row_of_the_whole_bias():
    scheme = parse('t5(num_buckets=4, max_distance=8)')
    params = {'table': jnp.arange(8.0).reshape(4, 2)}
    q = jnp.zeros((1, 9, 2, 8))
    whole = scheme.bias(params, q, q, context(np.arange(9)))
    last = scheme.bias(params, q[:, :1], q, context([8], np.arange(9)))
    np.testing.assert_array_equal(last[:, :, 0], whole[:, :, -1])


def test_every_row_learns_when_its_bucket_is_met():
    scheme = parse('t5(num_buckets=8, max_distance=6, bidirectional=True)')
    q, ctx = jnp.zeros((1, 9, 2, 8)), context(np.arange(9))
    weights = jnp.float32(np.random.default_rng(0).normal(size=(1, 2, 9, 9)))

    def loss(table):
        return (scheme.bias({'table': table}, q, q, ctx) * weights).sum()

    grad = np.abs(jax.grad(loss)(jnp.zeros((8, 2)))).max(axis=1)
    # Row 4 would be distance 0 to the right, which is to the left already.
    assert grad[4] == 0 and (np.delete(grad, 4) > 0).all()


def test_initial_table():
    scheme = parse('t5(num_buckets=500, max_distance=1000)')
    table = scheme.init(jax.random.key(0), Dims(64, 8, 8, 2))['table']
    assert table.shape == (500, 8) and table.dtype == jnp.float32
    assert float(table.std()) == pytest.approx(64**-0.5, rel=0.05)


def test_settings_without_a_meaning_are_refused():
    for text, message in [
        ('t5(num_buckets=1)', 'num_buckets=1 should be at least 2'),
        ('t5(num_buckets=31, bidirectional=True)', 'num_buckets=31 should be even'),
        ('t5(num_buckets=2, bidirectional=True)', 'num_buckets=2 should be even and at least 4'),
        ('t5(max_distance=16)', 'max_distance=16 should be above 16'),
        ('t5(max_distance=8, bidirectional=True)', 'max_distance=8 should be above 8'),
    ]:
        with pytest.raises(ValueError, match=message):
            parse(text)
