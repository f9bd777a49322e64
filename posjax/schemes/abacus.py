"""Positions of digits within their number."""

import dataclasses

import jax
import jax.numpy as jnp

from posjax.scheme import Scheme, scheme


def place_in_number(tokens_BT, pos_BT, digits: int) -> jax.Array:
    """1, 2, 3, ... along each run of digits (tokens below `digits`), 0 elsewhere; int32 (B, T).

    A run also ends where `pos_BT` does not rise: at padding, and where a new sequence begins.
    Padding behind tokens repeats their position number, and is no digit whatever stands there.
    """
    repeats_BT = jnp.pad(pos_BT[:, 1:] == pos_BT[:, :-1], ((0, 0), (1, 0))) & (pos_BT > 0)
    digit_BT = (tokens_BT < digits) & ~repeats_BT
    before_BT = jnp.pad(digit_BT[:, :-1], ((0, 0), (1, 0)))
    rises_BT = jnp.pad(pos_BT[:, 1:] > pos_BT[:, :-1], ((0, 0), (1, 0)))
    goes_on_BT = digit_BT & before_BT & rises_BT
    place_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1])[None], goes_on_BT.shape)
    start_BT = jax.lax.cummax(jnp.where(goes_on_BT, 0, place_BT), axis=1)
    return jnp.where(digit_BT, place_BT - start_BT + 1, 0)


@scheme
class abacus(Scheme):
    """The position of each digit within its number (Abacus): digits of one place share it.

        t  ->  k + 1, k + 2, ... along each run of digits, and 0 at every other token,
               k drawn uniformly from 0, 1, ..., max_offset for a whole batch

    Chain it with the table that reads them: `learned(max_length=1024)|abacus` is the paper's Abacus
    with NoPE. Every scheme of the chain reads these numbers instead of the sequence's. Numbers have
    to be written with their last digit first for places to line up. As in the authors' code, other
    tokens read row 0 whatever the offset. That code draws in training only; here every key draws,
    and k is 0 without one: the same parameters asked under `max_offset=0` are its evaluation.

    Fields:
      digits: tokens 0, ..., digits - 1 are digits, >= 1.
      max_offset: the largest k, >= 0; the authors' code takes 99.

    Past the training length a place is known where training's offsets reached it; the table needs
    a row for each of 0, ..., max_offset + length, lest a sequence be one long number.
    """

    paper = 'McLeish et al. 2024, arXiv:2405.17399'
    relative = True
    beyond = 'places known up to max_offset further'

    digits: int = 10
    max_offset: int = 99

    def check(self):
        self.require('digits', self.digits >= 1, 'at least 1')
        self.require('max_offset', self.max_offset >= 0, 'at least 0')

    def reach(self, numbers):
        # A written number may be as long as the sequence; other tokens read row 0.
        return range(len(numbers) + self.max_offset + 1)

    def deterministic(self):
        return dataclasses.replace(self, max_offset=0)

    def positions(self, pos_BT, tokens_BT, length_B, key):
        place_BT = place_in_number(tokens_BT, pos_BT, self.digits)
        if key is None:
            return place_BT
        offset = jax.random.randint(key, (), 0, self.max_offset + 1)
        return jnp.where(place_BT > 0, place_BT + offset, 0)
