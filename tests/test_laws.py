"""Laws that every scheme obeys, over the whole registry, with random parameters.

They are tried on the texts in EXAMPLES of each scheme's own file, tests/schemes/test_<name>.py.
OTHER = {field: [values]} there names legal values of a field whose type alone does not tell one.
"""

import dataclasses
import functools
import importlib
import pkgutil
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.schemes
from posjax import interventions
from posjax import model as model_lib
from posjax.probe import View, is_random, responses
from posjax.scheme import Chain, Scheme, as_chain, chain, hooks, parse
from posjax.spec import is_spec, is_variadic
from tests import cases
from tests.cases import MODEL, apply, random_params

# Past four times the training length; no block size divides it.
TRAIN_LENGTH, LENGTH = 6, 25


def test_modules() -> dict:
    """{scheme name: the module tests/schemes/test_<name>.py}."""
    found = {}
    for module in pkgutil.iter_modules(tests.schemes.__path__):
        if module.name.startswith('test_'):
            name = module.name.removeprefix('test_')
            found[name] = importlib.import_module(f'tests.schemes.{module.name}')
    return found


test_modules.__test__ = False
MODULES = test_modules()
# Chains obey the laws as their parts do, whatever their biases read.
CHAINS = ['learned(max_length=40)|rope|logn(train_length=6)', 'rope|fox', 'rope|shaw', 'xpos|alibi']


def slowly(texts):
    """The first text always, the others where the slow tests are asked for."""
    return [texts[0], *(pytest.param(text, marks=pytest.mark.slow) for text in texts[1:])]


TEXTS = [text for module in MODULES.values() for text in slowly(module.EXAMPLES)]
every = pytest.mark.parametrize('text', TEXTS + slowly(CHAINS[:2]) + slowly(CHAINS[2:]))
each_alone = pytest.mark.parametrize('text', TEXTS)


ONE_LAYER = dataclasses.replace(MODEL, layers=1)


def model_of(scheme):
    """The tiny model, with two layers where the scheme has something of its own for each."""
    parts = as_chain(scheme).parts
    mixed = any(is_spec(f.type) for part in parts for f in dataclasses.fields(part))
    return MODEL if mixed or shapes(scheme, MODEL) != shapes(scheme, ONE_LAYER) else ONE_LAYER


def shapes(scheme, model=MODEL):
    """Shapes and dtypes of the scheme's parameters."""
    return jax.eval_shape(lambda: as_chain(scheme).init(jax.random.key(0), model.dims))


def parameters(scheme):
    return random_params(scheme, model_of(scheme))


def tokens():
    return cases.tokens(length=LENGTH)


def run(scheme, toks=None, **kwargs):
    """The tiny model on the tokens.

    Length and padding are always given for whole sequences, so that laws share one program.
    """
    toks = tokens() if toks is None else toks
    if toks.shape == (3, LENGTH):
        kwargs = {'valid_BT': jnp.ones((3, LENGTH), bool)} | kwargs
    kwargs = {'length': LENGTH} | kwargs
    return apply(model_of(scheme), parameters(scheme), toks, scheme, **kwargs)


@functools.lru_cache
def slopes(text, length=LENGTH):
    """Gradients, by the scheme's parameters and its numbers, of all that it does to random content.

    Without the network around it, which takes most of the time to compile.
    """
    scheme, model = as_chain(parse(text)), model_of(parse(text))

    def weighed(params, numbers, layer):
        view = View(length, tuple(range(length)), layer)
        parts = responses(numbers, params, None, model.dims, view)
        rng = np.random.default_rng(0)
        return sum((part * rng.normal(size=part.shape).astype(np.float32)).sum() for part in parts)

    def loss(params, numbers):
        return sum(weighed(params, numbers, layer) for layer in range(model.layers))

    numbers = jax.tree.map(jnp.float32, scheme)
    return jax.jit(jax.grad(loss, (0, 1)))(parameters(parse(text))['scheme'], numbers)


def derivative(text, block=0):
    """A function of the parameters: logits, and gradients of their mean square by parameters and by
    the scheme's numbers."""
    scheme = parse(text)
    model = dataclasses.replace(model_of(scheme), block=block)

    def loss(params, numbers):
        logits = model_lib.apply(model, params, tokens(), numbers, length=LENGTH).logits_BTC
        return (logits**2).mean(), logits

    compiled = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    return lambda params: compiled(params, jax.tree.map(jnp.float32, scheme))


@functools.lru_cache
def derivative_and_rounding(text):
    """What `derivative` gives for all keys at once, and how far the last bit of parameters moves
    each array of it, as `close` measures: nothing can be known better than that."""
    whole, params, rng = derivative(text), parameters(parse(text)), np.random.default_rng(0)

    def nudged(x):
        x = np.asarray(x)
        return np.where(rng.random(x.shape) < 0.5, np.nextafter(x, x.dtype.type(np.inf)), x)

    def apart(a, b):
        return np.abs(a - b).max(initial=0) / max(1.0, np.abs(b).max(initial=0))

    at = whole(params)
    moved = [jax.tree.map(apart, whole(jax.tree.map(nudged, params)), at) for _ in range(2)]
    return at, jax.tree.map(max, *moved)


def close(a, b, rounding=1e-5):
    """Equal up to float32 rounding, measured against the largest value at hand."""
    a, b = np.asarray(a), np.asarray(b)
    np.testing.assert_allclose(a, b, rtol=0, atol=rounding * max(1.0, np.abs(b).max(initial=0)))


def test_every_scheme_has_a_test_file_with_examples_a_golden_and_a_docstring():
    assert MODULES.keys() == Scheme.registry.keys()
    for name, cls in Scheme.registry.items():
        assert any(n.startswith('test_golden') for n in vars(MODULES[name])), name
        assert any(name in text for text in MODULES[name].EXAMPLES), name
        assert cls.__doc__ and cls.paper and cls.beyond, name
        for field in dataclasses.fields(cls):
            assert f'{field.name}:' in cls.__doc__, (name, field.name)
        bases = [b for b in cls.__mro__[1:] if issubclass(b, Scheme)]
        assert bases == [Scheme], f'{name} inherits from another scheme'


@every
def test_text_and_object_are_one_thing(text):
    scheme = parse(text)
    assert parse(scheme.text) == scheme
    assert parse(scheme.text).text == scheme.text
    assert jax.tree.structure(parse(text)) == jax.tree.structure(scheme)
    hash(jax.tree.structure(scheme))


@every
def test_a_prefix_of_the_tokens_gives_a_prefix_of_the_logits(text):
    scheme, prefix = parse(text), 5
    whole, part = run(scheme).logits_BTC, run(scheme, tokens()[:, :prefix]).logits_BTC
    close(whole[:, :prefix], part)
    shorter = run(scheme, tokens()[:, :prefix], length=prefix).logits_BTC
    if not scheme.sees_length:
        close(part, shorter)
    else:
        assert np.abs(shorter - part).max() > 1e-4, 'sees_length is declared, and nothing sees it'


@every
def test_random_positions_follow_their_key_and_stay_within_reach(text):
    scheme, toks = as_chain(parse(text)), tokens()
    pos, length = jnp.arange(LENGTH)[None], jnp.full((1,), LENGTH)
    number = functools.partial(scheme.positions, pos, toks, length)
    drawn = [np.asarray(number(jax.random.key(seed))) for seed in (0, 0, *range(1, 9))]
    reach = scheme.reach(range(LENGTH))
    for numbers in (np.asarray(number(None)), *drawn):
        assert numbers.min() >= reach.start and numbers.max() < reach.stop
    np.testing.assert_array_equal(drawn[0], drawn[1])
    if is_random(scheme):
        assert any((other != drawn[0]).any() for other in drawn[2:])
        # Nothing later decides an earlier number, under a key as without one.
        head = scheme.positions(pos[:, :5], toks[:, :5], length, jax.random.key(0))
        np.testing.assert_array_equal(np.broadcast_to(drawn[0], (3, LENGTH))[:, :5],
                                      np.broadcast_to(head, (3, 5)))  # fmt: skip


@pytest.mark.slow
@every
def test_no_gradient_flows_from_later_tokens(text):
    scheme = parse(text)
    params, toks = parameters(scheme), jnp.arange(9)[None]  # every token once

    def early(embedding):
        net = {**params['net'], 'embed': {'embedding': embedding}}
        out = apply(model_of(scheme), {**params, 'net': net}, toks, scheme)
        return (out.logits_BTC[:, :5] ** 2).sum()

    rows = np.abs(jax.jit(jax.grad(early))(params['net']['embed']['embedding'])).sum(axis=1)
    assert (rows[5:] == 0).all()
    assert (rows[:5] > 0).all()


@every
def test_past_the_training_length(text):
    scheme = parse(text)
    full, model = run(scheme).logits_BTC, dataclasses.replace(model_of(scheme), dtype='bfloat16')
    half = apply(model, parameters(scheme), tokens(), scheme, length=LENGTH).logits_BTC
    for out in (full, half):
        assert out.shape == (3, LENGTH, MODEL.classes) and out.dtype == jnp.float32
        assert np.isfinite(out).all()
    # Eight bits of mantissa through two layers: near, and not the same.
    assert 0 < np.abs(half - full).max() < 0.15 * np.abs(full).max()


@every
def test_relative_schemes_do_not_notice_a_shift_and_the_others_do(text):
    scheme = parse(text)
    moved = interventions.parse('shift(by=7)')(scheme, TRAIN_LENGTH, LENGTH)
    plain = run(scheme).logits_BTC
    shifted = apply(model_of(scheme), parameters(scheme), tokens(), moved, length=LENGTH).logits_BTC
    if scheme.relative:
        # Beyond rounding: rotations by position 1,000 lose three more bits than by position 9.
        close(plain, shifted, rounding=1e-4)
    else:
        assert np.abs(plain - shifted).max() > 1e-2


def other_values(scheme, field, value):
    """Another legal value of a field: by its type, or as OTHER of the scheme's test file says."""
    named = getattr(MODULES[scheme.name()], 'OTHER', {})
    if field.name in named:
        return [v for v in named[field.name] if v != value]
    if typing.get_origin(field.type) is typing.Literal:
        return [v for v in typing.get_args(field.type) if v != value]
    if is_spec(field.type) or is_variadic(field.type):
        return []  # their own fields are tried where they stand alone
    if field.type is bool:
        return [not value]
    if field.type is int:
        return [value + 1]
    if field.type is float:
        return [value * 1.7 + 0.1]
    return [tuple(v * 1.7 + 0.1 for v in value)] if value else [(0.3,) * MODEL.heads]


@each_alone
def test_no_dead_knobs(text):
    scheme = parse(text)
    if isinstance(scheme, Chain):
        return  # its parts are tried where they stand alone
    # Positions alone change nothing: let something read them.
    reader = parse('none' if hooks(type(scheme)) != ('positions',) else 'sinusoidal')
    before = run(chain(reader, scheme)).logits_BTC
    for field in dataclasses.fields(scheme):
        values = other_values(scheme, field, getattr(scheme, field.name))
        assert values or is_spec(field.type) or is_variadic(field.type), field.name
        for value in values:
            changed = dataclasses.replace(scheme, **{field.name: value})
            changed.check()
            if shapes(changed) != shapes(scheme):
                continue  # more or fewer parameters: alive
            after = run(chain(reader, changed)).logits_BTC
            assert np.abs(after - before).max() > 1e-5, f'{field.name}={value} changes nothing'


@every
def test_no_dead_parameters_and_no_dead_bias(text):
    scheme = parse(text)
    by_parameters, by_numbers = slopes(text)
    found = np.asarray(jax.tree.leaves(by_numbers))
    if not found.all():  # some numbers are for texts no longer than those of training
        found = found + np.asarray(jax.tree.leaves(slopes(text, TRAIN_LENGTH)[1]))
    assert np.isfinite(found).all() and found.all()
    for path, grad in jax.tree_util.tree_leaves_with_path(by_parameters):
        assert np.isfinite(grad).all() and np.abs(grad).max() > 0, jax.tree_util.keystr(path)
    if set(hooks(type(scheme))) - {'positions'}:
        bare = {'net': parameters(scheme)['net'], 'scheme': {}}
        nope = apply(model_of(scheme), bare, tokens(), parse('none'), length=LENGTH).logits_BTC
        assert np.abs(run(scheme).logits_BTC - nope).max() > 1e-3, 'the scheme is NoPE'


@every
@pytest.mark.parametrize('first', slowly([20, 1, 23]))
def test_decoding_equals_prefilling(text, first):
    scheme, toks = parse(text), tokens()
    # Room for more tokens than come, a first part at once, then one by one.
    cache = model_lib.empty_cache(model_of(scheme), 3, LENGTH + 3)
    out = run(scheme, toks[:, :first], cache=cache, valid_BT=jnp.ones((3, first), bool))
    parts = [out.logits_BTC]
    for part in jnp.split(toks[:, first:], LENGTH - first, axis=1):
        out = run(scheme, part, cache=out.cache)
        parts.append(out.logits_BTC)
    close(jnp.concatenate(parts, axis=1), run(scheme).logits_BTC)


@pytest.mark.slow
@every
def test_a_right_padded_prompt_decodes_as_it_would_alone(text):
    # Padding ends a number (abacus): the prompt ends on a token that is part of none.
    scheme, toks = parse(text), tokens().at[:, 1].set(MODEL.tokens - 1)
    cache = model_lib.empty_cache(model_of(scheme), len(toks), LENGTH + 3)
    prompt = jnp.pad(toks[:, :2], ((0, 0), (0, 2)))
    valid = jnp.broadcast_to(jnp.arange(4)[None] < 2, prompt.shape)
    out = run(scheme, prompt, cache=cache, valid_BT=valid)
    parts = [out.logits_BTC[:, :2]]
    for part in jnp.split(toks[:, 2:], LENGTH - 2, axis=1):
        out = run(scheme, part, cache=out.cache)
        parts.append(out.logits_BTC)
    close(jnp.concatenate(parts, axis=1), run(scheme, toks).logits_BTC)


@every
@pytest.mark.parametrize('block', slowly([2, 4, 1, 9]))
def test_blockwise_equals_whole(text, block):
    scheme = parse(text)
    model = dataclasses.replace(model_of(scheme), block=block)
    by_blocks = apply(model, parameters(scheme), tokens(), scheme, length=LENGTH).logits_BTC
    close(by_blocks, run(scheme).logits_BTC)


@every
def test_pairwise_schemes_say_of_a_key_what_depends_on_no_other(text):
    scheme, dims, here = as_chain(parse(text)), MODEL.dims, slice(9, 14)
    params = parameters(scheme)['scheme']
    q, k = 2 * jax.random.normal(jax.random.key(0), (2, 1, LENGTH, dims.heads, dims.head_dim))
    ctx = cases.context(range(LENGTH), valid=np.arange(LENGTH) >= 3, heads=dims.heads,
                        head_dim=dims.head_dim)  # fmt: skip

    @jax.jit
    def said(k, k_pos_BS, k_index_S, valid_BS):
        """Scores, and what is seen, of queries after all of these keys."""
        at = ctx._replace(k_pos_BS=k_pos_BS, k_index_S=k_index_S, valid_BS=valid_BS)
        s_BHQS, seen = scheme.scores(params, q, k, at), scheme.mask(at)
        seen_BHQS = jnp.broadcast_to(True if seen is None else seen, s_BHQS.shape)
        return jnp.stack([s_BHQS, seen_BHQS.astype(jnp.float32)])[..., here.stop :, :]

    whole = said(k, ctx.k_pos_BS, ctx.k_index_S, ctx.valid_BS)[..., here]
    alone = said(k[:, here], ctx.k_pos_BS[:, here], ctx.k_index_S[here], ctx.valid_BS[:, here])
    if scheme.in_tiles:
        close(alone, whole)
    elif all('scores' not in hooks(type(part)) for part in scheme.parts):
        assert not np.allclose(alone, whole, atol=1e-3), 'pairwise, and not declared so'


@pytest.mark.slow
@every
@pytest.mark.parametrize('block', [4, 1, 9])
def test_gradients_blockwise_equal_whole(text, block):
    whole, rounding = derivative_and_rounding(text)
    by_blocks = derivative(text, block)(parameters(parse(text)))
    # Gradients are sums over queries, here in another order: one more rounding than elsewhere. The
    # last bit of a parameter does more where scores are sharp, as in the chain of lm_infinite: its
    # gradient by blocks is as near to the one in float64 as the whole one is.
    assert max(jax.tree.leaves(rounding)) < 2e-4
    jax.tree.map(lambda a, b, r: close(a, b, max(2e-5, r)), by_blocks, whole, rounding)


@every
def test_left_padding_changes_nothing(text):
    scheme, pad = parse(text), 3
    padded = jnp.pad(tokens()[:, :-pad], ((0, 0), (pad, 0)))
    valid = jnp.broadcast_to(jnp.arange(LENGTH)[None] >= pad, padded.shape)
    got = run(scheme, padded, valid_BT=valid).logits_BTC
    close(got[:, pad:], run(scheme).logits_BTC[:, :-pad])
    assert np.isfinite(got).all()


@pytest.mark.slow
@every
@pytest.mark.parametrize('causal', [True, False])
def test_right_padding_changes_nothing(text, causal):
    scheme, length_B = parse(text), jnp.array([LENGTH, 4, 1])
    model = dataclasses.replace(model_of(scheme), causal=causal)
    try:
        scheme.check_fit(model.dims, range(LENGTH))
    except ValueError:
        pytest.skip('of causal attention alone')
    got = apply(model, parameters(scheme), tokens(), scheme, unpadded_B=length_B).logits_BTC
    assert np.isfinite(got).all()
    for row, length in enumerate(length_B):
        alone = apply(model, parameters(scheme), tokens()[row : row + 1, :length], scheme)
        close(got[row, :length], alone.logits_BTC[0])


@every
def test_chain_is_associative_with_identity(text):
    scheme, none, logn = parse(text), parse('none'), parse('logn(train_length=6)')
    assert chain(scheme, none) == chain(none, scheme) == chain(scheme) == scheme
    assert chain(chain(scheme, logn), none) == chain(scheme, chain(logn, none)) == scheme | logn


@every
@pytest.mark.parametrize('change', ['none', 'logn', 'shift(by=2)'])
def test_interventions_keep_the_parameter_tree(text, change):
    scheme = parse(text)
    changed = interventions.parse(change)(scheme, TRAIN_LENGTH, LENGTH)

    assert shapes(changed) == shapes(scheme)
    # Not only shapes: a part's initial values follow its name, not its place in the chain.
    a, b = (as_chain(s).init(jax.random.key(0), MODEL.dims) for s in (changed, scheme))
    jax.tree.map(np.testing.assert_array_equal, a, b)


@every
def test_equal_structure_compiles_once(text):
    scheme = parse(text)
    first = run(scheme).logits_BTC
    programs = apply._cache_size()
    other = jax.tree.map(lambda leaf: leaf * 1.5, scheme)
    second = apply(model_of(scheme), parameters(scheme), tokens(), other, length=LENGTH,
                   valid_BT=jnp.ones((3, LENGTH), bool)).logits_BTC  # fmt: skip
    run(parse(text))
    assert apply._cache_size() == programs
    if jax.tree.leaves(scheme):
        assert np.abs(first - second).max() > 1e-5


@pytest.mark.slow
@every
def test_numbers_can_be_a_vmap_axis_and_differentiated(text):
    scheme = parse(text)
    model, params, toks = model_of(scheme), parameters(scheme), tokens()
    if not jax.tree.leaves(scheme):
        return
    grid = jax.tree.map(lambda leaf: jnp.float32([leaf, 1.3 * leaf]), scheme)

    def one(s):
        return model_lib.apply(model, params, toks, s, length=LENGTH).logits_BTC

    for i, row in enumerate(jax.jit(jax.vmap(one))(grid)):
        alone = jax.tree.map(lambda leaf, i=i: float(leaf[i]), grid)
        close(row, apply(model, params, toks, alone, length=LENGTH).logits_BTC)


def test_a_chain_names_its_parts_once_each():
    params = parse('learned(max_length=4)|learned(max_length=4)').init(
        jax.random.key(0), MODEL.dims
    )
    assert params.keys() == {'learned', 'learned_2'}
    assert np.abs(params['learned']['table'] - params['learned_2']['table']).max() > 0.1
    assert isinstance(parse('rope|alibi'), Chain)
