"""Every score times one number."""

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import parse
from tests.cases import context

EXAMPLES = ['sharpen(factor=1.5)', 'rope|sharpen(factor=0.5)']


@pytest.mark.parametrize('factor', [0.5, 1.0, 1.874])
def test_golden(factor):
    q, k = np.random.default_rng(0).normal(size=(2, 5, 8))
    arrays = [jnp.float32(x)[None, :, None] for x in (q, k)]
    got = parse(f'sharpen(factor={factor})|alibi(slopes=0.5)').scores(
        {}, *arrays, context(np.arange(5), heads=1)
    )
    for i in range(5):
        for j in range(i + 1):  # biases are not multiplied
            expected = factor * (q[i] @ k[j]) / np.sqrt(8) - 0.5 * (i - j)
            assert float(got[0, 0, i, j]) == pytest.approx(expected, abs=1e-5)


def test_no_sharpness_is_refused():
    with pytest.raises(ValueError, match='scheme sharpen: factor=0.0 should be positive'):
        parse('sharpen(factor=0)')
