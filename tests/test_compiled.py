"""Compiled programs on disk."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from posjax import compiled


@pytest.fixture
def as_before():
    names = ('jax_compilation_cache_dir', 'jax_persistent_cache_min_compile_time_secs',
             'jax_persistent_cache_min_entry_size_bytes')  # fmt: skip
    values = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_programs_are_kept_for_the_owner_and_found_again(tmp_path, as_before):
    place = compiled.keep(tmp_path / 'programs')
    assert place.parent == tmp_path / 'programs' and jax.__version__ in place.name
    assert place.stat().st_mode & 0o077 == 0

    hits = []
    jax.monitoring.register_event_listener(
        lambda name, **_: hits.append(name) if name.endswith('cache_hits') else None
    )
    jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x))(jnp.ones((7, 7)))
    assert any(place.iterdir())
    jax.clear_caches()
    before = len(hits)
    jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x))(jnp.ones((7, 7)))
    assert len(hits) > before


def test_another_machine_has_another_folder(tmp_path, as_before, monkeypatch):
    one = compiled.keep(tmp_path)
    monkeypatch.setattr(compiled.platform, 'machine', lambda: 'other')
    assert compiled.keep(tmp_path) != one
