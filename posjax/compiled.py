"""Compiled programs kept in a folder, so that a command run again compiles nothing.

Off unless asked for: what stands in that folder is machine code that JAX trusts, so nobody else may
write there, and programs of another version or another kind of machine may crash. Each therefore
has a subfolder of its own, which only its owner can open. Results are the same to the bit.
"""

import hashlib
import platform
from pathlib import Path

import jax


def keep(folder: Path) -> Path:
    """Keeps programs from now on, and finds those kept before; returns the subfolder.

    Raises:
      OSError: the folder cannot be made.
    """
    place = Path(folder).absolute() / f'jax-{jax.__version__}-{_machine()}'
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    jax.config.update('jax_compilation_cache_dir', str(place))
    # Small programs, too: compiling them is most of what a small sweep takes.
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    return place


def _machine() -> str:
    """A digest of what machine code depends on: the kind of processor and what it can do."""
    try:
        lines = set(Path('/proc/cpuinfo').read_text().splitlines())
        kind = sorted(line for line in lines if line.startswith(('model name', 'flags', 'Feat')))
    except OSError:
        kind = [platform.processor()]
    told = '\n'.join([platform.machine(), platform.system(), *kind])
    return hashlib.blake2b(told.encode(), digest_size=6).hexdigest()
