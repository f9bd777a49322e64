"""Our numbers beside those of a published library, kept in tests/goldens with their scripts."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention import attend
from posjax.scheme import Context, as_chain, parse
from posjax.schemes.alibi import paper_slopes
from posjax.schemes.sinusoidal import table
from posjax.schemes.t5 import buckets

STORED = json.loads(
    (Path(__file__).parent / 'goldens' / 'attention_from_transformers.json').read_text()
)


@pytest.mark.parametrize('case', STORED['cases'], ids=lambda c: f'{c["model"]}-{c["scheme"]}')
def test_golden_attention_of_transformers_models(case):
    tokens, heads, size = STORED['tokens'], STORED['heads'], STORED['head_dim']
    q, k = (jnp.asarray(case[name], jnp.float32).reshape(1, tokens, heads, size) for name in 'qk')
    place = jnp.arange(tokens)
    ctx = Context(place[None], place[None], place, place, None, case['causal'],
                  jnp.full((1,), tokens), layer=0, heads=heads, scale=size**-0.5)  # fmt: skip
    params = {}
    if 'table' in case:
        params = {'t5': {'table': jnp.asarray(case['table'], jnp.float32).reshape(-1, heads)}}
    _, weights = attend(as_chain(parse(case['scheme'])), params, q, k, k, ctx)
    theirs = np.reshape(case['weights'], (1, heads, tokens, tokens))
    np.testing.assert_allclose(weights, theirs, atol=2e-6)
    # And it tells: without the scheme, or with the other pairing, they are not the same.
    _, plain = attend(as_chain(parse('none')), {}, q, k, k, ctx)
    assert np.abs(plain - theirs).max() > 0.01
    # (A rotary head of 2 dimensions has one pair, the same either way.)
    if "'half'" in case['scheme'] and 'rotary_dim=2' not in case['scheme']:
        other = parse(case['scheme'].replace("'half'", "'interleaved'"))
        _, wrong = attend(as_chain(other), {}, q, k, k, ctx)
        assert np.abs(wrong - theirs).max() > 0.01


@pytest.mark.parametrize('case', STORED['slopes'], ids=lambda c: str(c['heads']))
def test_golden_slopes_of_bloom_and_mpt(case):
    for name in ('bloom', 'mpt'):
        np.testing.assert_allclose(paper_slopes(case['heads']), case[name], rtol=1e-6)


@pytest.mark.parametrize('case', STORED['buckets'], ids=lambda c: str(list(c.values())[:3]))
def test_golden_buckets_of_t5(case):
    # Theirs is a function of key minus query; ours of query minus key.
    back = -jnp.arange(-600, 601).astype(jnp.float32)
    ours = buckets(back, case['num_buckets'], case['max_distance'], case['bidirectional'])
    np.testing.assert_array_equal(ours, case['buckets'])


def test_golden_sinusoids_of_marian():
    ours = table(jnp.arange(40), 10, layout='concatenated')
    np.testing.assert_allclose(ours, np.reshape(STORED['sinusoids'], (40, 10)), atol=4e-6)
