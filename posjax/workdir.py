"""The folder of one experiment: what is in it, and how it gets there whole.

config.json            everything an evaluation needs; data, never executed
results.csv            accuracy by length, intervention and region (see results.py)
positions.csv          accuracy by position
depths.csv             accuracy by depth, of tasks that have depths
provenance.json        what every figure rests on (see provenance.py)
figures/*.png
groups/<name>/         runs that were trained as one program:
    metrics.jsonl      training metrics, one line per run and `train.log_every` steps
    checkpoints/       Orbax
    results.csv, positions.csv, depths.csv, evaluated.json
eval/                  what eval.py writes
"""

import contextlib
import fcntl
import json
import math
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from posjax import config as config_lib
from posjax.config import ConfigError

_TEMPORARY = '.{}.{}.tmp'


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file that is either the old one or the whole new one, whatever happens.

    Raises:
      OSError: the disk is full, or the folder cannot be written; with the file's name.
    """
    path = Path(path)
    # A name of its own: shards of a sweep write the same tables.
    temporary = path.with_name(_TEMPORARY.format(path.name, uuid.uuid4().hex[:8]))
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, 'wb') as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of writing know the file: the system's own, on a full disk, do not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class Workdir:
    """Paths and files of an experiment's folder."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def group(self, name: str) -> Path:
        return self.path / 'groups' / name

    def checkpoints(self, name: str) -> Path:
        return self.group(name) / 'checkpoints'

    @contextlib.contextmanager
    def locked(self, groups: Sequence[str] | None = None) -> Iterator[None]:
        """One process at a time; the operating system lifts the lock of a process that died.

        Args:
          groups: which alone are locked, so that shards may work side by side; all, by default.

        Raises:
          ConfigError: another process has it, or the folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            whole = fcntl.LOCK_EX if groups is None else fcntl.LOCK_SH
            self._lock(stack, '.lock', whole | fcntl.LOCK_NB)
            for name in groups or ():
                self._lock(stack, f'.lock-{name}', fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder in [self.path] if groups is None else map(self.group, groups):
                for leftover in folder.rglob(_TEMPORARY.format('*', '*')):
                    leftover.unlink()
            yield

    def _lock(self, stack: contextlib.ExitStack, name: str, kind: int) -> None:
        try:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            # NFS wants a file that can be read for a shared lock, and written for the other kind.
            file = stack.enter_context((self.path / name).open('a+'))
            fcntl.flock(file, kind)
        except BlockingIOError:
            raise ConfigError(f'workdir {self.path} is in use by another process; wait for it, '
                              'or name another --workdir') from None  # fmt: skip
        except OSError as error:
            raise ConfigError(f'workdir {self.path} cannot be used: {error.strerror}') from None

    def claim(self, config: ConfigDict) -> None:
        """Stores the config, or checks that the one that is there trains the same runs.

        Raises:
          ConfigError: the folder belongs to another experiment; names the first field.
        """
        with contextlib.ExitStack() as stack:
            # Shards start together: each waits until another has stored its config, or refused.
            self._lock(stack, '.lock-claim', fcntl.LOCK_EX)
            self._claim(config)

    def _claim(self, config: ConfigDict) -> None:
        if (self.path / 'config.json').exists():
            different = config_lib.differences(self.config(), config)
            if different:
                old, new = (
                    config_lib.flatten(c).get(min(different)) for c in (self.config(), config)
                )
                raise ConfigError(
                    f'workdir {self.path} holds another experiment: config.{min(different)} was '
                    f'{old!r}, is {new!r}; name another --workdir, or remove that one'
                )
        elif any((self.path / 'groups').glob('*')):
            raise ConfigError(f'workdir {self.path} has results but no config.json; name another')
        write_atomically(self.path / 'config.json', config_lib.to_json(config))

    def config(self) -> ConfigDict:
        """The stored config.

        Raises:
          ConfigError: there is none, or none that can be read.
        """
        path = self.path / 'config.json'
        try:
            return config_lib.from_json(path.read_text(encoding='utf-8', errors='replace'))
        except OSError:
            raise ConfigError(
                f'workdir {self.path} has no config.json; train first: '
                'python train.py --config configs/quickstart.py'
            ) from None
        except ConfigError as error:
            raise ConfigError(f'{path}: {error}') from None

    def append_metrics(self, group: str, records: Sequence[dict[str, Any]]) -> None:
        """Adds lines to a group's metrics, on disk when it returns."""
        path = self.group(group) / 'metrics.jsonl'
        with _naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, 'a', encoding='utf-8') as file:
                for record in records:
                    # JSON has no NaN: null says that a figure was not finite.
                    clean = {
                        k: None if isinstance(v, float) and not math.isfinite(v) else v
                        for k, v in record.items()
                    }
                    file.write(json.dumps(clean) + '\n')
                file.flush()
                os.fsync(file.fileno())

    def metrics(self, group: str) -> list[dict[str, Any]]:
        """A group's metrics; a last line torn by a crash is left out."""
        path = self.group(group) / 'metrics.jsonl'
        records = []
        for line in path.read_text(encoding='utf-8').split('\n') if path.exists() else ():
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        return records

    def truncate_metrics(self, group: str, step: int) -> None:
        """Drops what was logged after `step`, so that resuming logs every step once."""
        kept = [json.dumps(r) for r in self.metrics(group) if r['step'] <= step]
        write_atomically(self.group(group) / 'metrics.jsonl', ''.join(f'{r}\n' for r in kept))
