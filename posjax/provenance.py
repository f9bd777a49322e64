"""Where a figure comes from: the code, the machine, the config and the checkpoint it rests on.

provenance.json in a workdir (and in its `eval` folder) says, for each group:

    runs          the task, scheme and seed of each run, and what else a sweep varies: a row of
                  results.csv belongs to the group that lists these
    failed_at     the step at which each run stopped being finite (counted from its first
                  parameters, wherever it started), -1 if it did not
    checkpoint    step and digest of the one that was evaluated; its sessions: the environments it
                  was trained in, each from which step on; and its start, if that was another
                  workdir's checkpoint
    config        digest of the config, without the fields that change no run
    eval          lengths, interventions and sequences
    environment   that it was evaluated in
    files         digests of the group's tables, which are evaluated again where they differ

Under equal environments, training is repeatable to the bit, interrupted or not. Under another
number of devices, say, it is equal within rounding only.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from posjax import config as config_lib
from posjax.checkpoint import Saved
from posjax.sweep import Machine

Environment = dict[str, Any]

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def environment(machine: Machine) -> Environment:
    """What decides about the last bit of a result, beside the config; JSON."""
    return {
        'code': _code(),
        'python': platform.python_version(),
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
        'system': f'{platform.system()} {platform.machine()}',
        'cpus': os.cpu_count(),
        'processes': jax.process_count(),
        **machine.describe(),
        'x64': jax.config.jax_enable_x64,
        'xla_flags': os.environ.get('XLA_FLAGS', ''),
    }


def of_config(config: ConfigDict) -> str:
    """Digest of the fields that a workdir's runs depend on."""
    return _digest(json.dumps(config_lib.relevant(config), sort_keys=True).encode())


def of_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Digests of files; one that is not there has an empty one."""
    return {
        name: _digest((folder / name).read_bytes()) if (folder / name).exists() else ''
        for name in names
    }


def sessions(found: Saved | None, now: Environment) -> list[dict[str, Any]]:
    """Environments that a checkpoint was trained in, with the present one where it is another."""
    before = found.notes['sessions'] if found else []
    if before and not differences(before[-1]['environment'], now):
        return before
    return [*before, {'from_step': found.step if found else 0, 'environment': now}]


def differences(old: Environment, new: Environment) -> list[str]:
    """`name was x, is y`, for everything in which two environments differ."""
    return [
        f'{name} was {old.get(name)!r}, is {new.get(name)!r}'
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _code() -> str:
    """Digest of posjax's own source files."""
    folder = Path(__file__).parent
    files = sorted(folder.rglob('*.py'))
    return _digest(b'\0'.join(
        part for f in files for part in (str(f.relative_to(folder)).encode(), f.read_bytes())
    ))  # fmt: skip


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
