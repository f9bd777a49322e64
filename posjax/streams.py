"""Random streams: one per seed and purpose, so that no two uses ever share numbers."""

import jax

# Append only: the place in this list is part of every published result.
PURPOSES = ('init', 'data', 'positions', 'eval_data', 'eval_positions')


def stream(seed, purpose: str) -> jax.Array:
    """The key of a purpose under a seed (an int or a traced one); fold steps or lengths into it."""
    return jax.random.fold_in(jax.random.key(seed), PURPOSES.index(purpose))
