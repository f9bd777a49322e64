"""A window and the first tokens, with a ceiling of distances, against every pair of tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import parse
from tests.cases import context
from tests.schemes.test_rerope import scores64

EXAMPLES = [
    'lm_infinite(window=3, number=1)',
    'lm_infinite(window=4, number=2, scheme=p_rope(rotary_dim=6, theta=30.0))|logn(6)',
]


@pytest.mark.parametrize('shift', [0, 1000])
@pytest.mark.parametrize(('window', 'number'), [(1, 1), (3, 2), (4, 1), (20, 3)])
def test_golden(window, number, shift):
    """Positions may start anywhere: the first tokens are still the first."""
    places = np.arange(9)
    q, k, v = np.random.default_rng(window).normal(size=(3, 9, 6))
    s = scores64(q, k, places, lambda i, j: min(i - j, window), theta=30.0)
    out = np.zeros_like(v)
    for i in places:
        seen = [j for j in range(i + 1) if i - j < window or j < number]
        p = [np.exp(s[i, j]) for j in seen]
        out[i] = sum(p[n] * v[j] for n, j in enumerate(seen)) / sum(p)
    assert out.dtype == np.float64
    scheme = parse(f'lm_infinite({window}, {number}, scheme=rope(theta=30.0))')
    arrays = [jnp.float32(x)[None, :, None] for x in (q, k, v)]
    got, _ = attend(scheme, {}, *arrays, context(places + shift, head_dim=6))
    # Two angles of up to 1,000 radians in float32.
    np.testing.assert_allclose(got[0, :, 0], out, atol=3e-6 if not shift else 5e-4)
