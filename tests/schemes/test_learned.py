"""A learned table: its rows, and what lies past them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.scheme import Dims, parse
from tests.cases import MODEL, apply, context, random_params, tokens

EXAMPLES = ['learned(max_length=40)']


def test_golden():
    x = np.random.default_rng(0).normal(size=(1, 3, 4))
    rows = np.random.default_rng(1).normal(size=(6, 4))
    params = {'table': jnp.float32(rows)}
    got = parse('learned(max_length=6)').embed(params, jnp.float32(x), context([5, 0, 2]))
    np.testing.assert_allclose(got, x + rows[[5, 0, 2]], atol=1e-6)


def test_initial_rows_are_standard_normal():
    rows = parse('learned(max_length=500)').init(jax.random.key(0), Dims(64, 1, 64, 2))['table']
    assert rows.shape == (500, 64)
    assert abs(float(rows.mean())) < 0.02 and abs(float(rows.std()) - 1) < 0.02


def test_a_missing_row_is_an_error_before_anything_runs():
    scheme = parse('learned(max_length=4)')
    scheme.check_fit(MODEL.dims, range(4))
    with pytest.raises(ValueError, match=r'4 rows, none for position 4 of 5;.*max_length=5'):
        scheme.check_fit(MODEL.dims, range(5))


@pytest.mark.parametrize(
    'moved, most',
    [
        ('random_offset(max_offset=3)', 5),
        ('shift(by=2)', 6),
        ('shift(by=3)|shift(by=-2)', 7),
        ('interpolate(factor=2.0)', 15),
        ('abacus(max_offset=2)', 5),
        ('shift(by=1)|random_offset(max_offset=3)', 4),
        ('randomised(max_position=8)', 8),
    ],
)
def test_rows_are_missed_in_advance_wherever_positions_move_to(moved, most):
    for words in (f'learned(max_length=8)|{moved}', f'{moved}|learned(max_length=8)'):
        parse(words).check_fit(MODEL.dims, range(most))
        with pytest.raises(ValueError, match='8 rows, none for position 8|has 8 numbers for 9'):
            parse(words).check_fit(MODEL.dims, range(most + 1))
    with pytest.raises(ValueError, match='8 rows, none for position 8 of 9'):
        parse('learned(max_length=8)|randomised(max_position=9)').check_fit(MODEL.dims, range(2))


def test_there_is_no_row_before_the_first():
    for words in ('learned(max_length=8)|shift(by=-2)', 'shift(by=-2)|learned(max_length=8)'):
        with pytest.raises(ValueError, match='no row for position -2; shift positions to 0'):
            parse(words).check_fit(MODEL.dims, range(4))


@pytest.mark.parametrize('position', [4, 7, -1])
def test_a_missing_row_that_slips_through_is_nan_and_never_another_row(position):
    params, x = {'table': jnp.ones((4, 2))}, jnp.zeros((1, 1, 2))
    got = parse('learned(max_length=4)').embed(params, x, context([position]))
    assert np.isnan(got).all()


@pytest.mark.slow
def test_left_padding_does_not_move_rows():
    scheme = parse('learned(max_length=40)')
    params, seq = random_params(scheme), tokens(batch=1, length=5)
    padded = jnp.concatenate([jnp.zeros((1, 3), jnp.int32), seq], axis=1)
    valid = jnp.arange(8)[None] >= 3
    plain = apply(MODEL, params, seq, scheme).logits_BTC
    got = apply(MODEL, params, padded, scheme, valid_BT=valid).logits_BTC
    np.testing.assert_allclose(got[:, 3:], plain, atol=2e-5)
