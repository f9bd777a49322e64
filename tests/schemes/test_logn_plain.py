"""Scores times the logarithm of the length."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import parse
from tests.cases import context

# Alone, in bfloat16, it is 17 % off at 24 tokens, as NoPE is with Wq ln(24) times as large: scores
# that large turn roundings into other choices. Rotated scores are smaller.
EXAMPLES = ['rope|logn_plain']


@pytest.mark.parametrize('length', [1, 2, 5, 100_000])
@pytest.mark.parametrize('causal', [True, False])
def test_golden(length, causal):
    tokens = min(length, 5)
    rng = np.random.default_rng(length)
    q, k, v = rng.normal(size=(3, 1, tokens, 2, 4))
    ctx = context(np.arange(tokens), length=length, head_dim=4)
    got, _ = attend(
        parse('logn_plain'), {}, *map(jnp.float32, (q, k, v)), ctx._replace(causal=causal)
    )
    expected = np.zeros((tokens, 2, 4))
    for i in range(tokens):
        for h in range(2):
            seen = range(i + 1 if causal else tokens)
            # exp(ln(n) s) is n^s.
            p = {j: length ** (q[0, i, h] @ k[0, j, h] / math.sqrt(4)) for j in seen}
            expected[i, h] = sum(p[j] * v[0, j, h] for j in seen) / sum(p.values())
    assert expected.dtype == np.float64
    # Scores up to 60 in float32.
    np.testing.assert_allclose(got[0], expected, atol=5e-5)


def test_it_is_logn_with_a_training_length_of_e():
    q = jnp.float32(np.random.default_rng(0).normal(size=(1, 3, 2, 4)))
    ctx = context([0, 1, 2], length=77)
    plain, _ = parse('logn_plain').qk({}, q, q, ctx)
    other, _ = parse(f'logn(train_length={math.e!r})').qk({}, q, q, ctx)
    np.testing.assert_allclose(plain, other, rtol=1e-6)
