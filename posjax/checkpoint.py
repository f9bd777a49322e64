"""Checkpoints that are whole or are not there. The only file that imports Orbax.

A step counts only when Orbax committed it and every array still has the digest it was saved with:
Orbax survives being killed, but neither notices flipped bits in array data nor a half-deleted step.
"""

import contextlib
import hashlib
import importlib
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

_ITEM = 'state'
_COMMITTED = 'commit_success.txt'  # what Orbax writes last


class CheckpointError(Exception):
    """A checkpoint that is missing, damaged, or of another shape; one line."""


class SaveError(CheckpointError):
    """A checkpoint that did not get to the disk; one line."""


class Saved(NamedTuple):
    """A checkpoint that verified.

    Attributes:
      step, tree: what was saved.
      digest: of its step, arrays and notes together, 32 hexadecimal digits.
      notes: what else was said when it was saved; JSON.
    """

    step: int
    tree: Any
    digest: str
    notes: Any


def committed(folder: Path) -> list[int]:
    """Steps in a folder of checkpoints that Orbax has committed, oldest first."""
    found = Path(folder).glob(f'*/{_COMMITTED}')
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdigit())


class Checkpoints:
    """The checkpoints of one group of runs, in a folder of their own.

    Trees are nested dicts, tuples and NamedTuples of numpy arrays. Use as a context manager: on
    leaving, a save still under way is completed, and an error in it is raised.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder = Path(folder).absolute()
        self._keep, self._pending = keep, None

    def __enter__(self) -> 'Checkpoints':
        return self

    def __exit__(self, *error) -> None:
        self.wait()

    def discard_unfinished(self) -> None:
        """Removes what a killed process left half-written or half-deleted; for the one writer."""
        for path in self.folder.glob('*'):
            if path.is_dir() and not (path / _COMMITTED).exists():
                shutil.rmtree(path)

    def save(self, step: int, tree: Any, notes: Any = None) -> str:
        """Saves in the background; returns the checkpoint's digest once the arrays are copied.

        Args:
          notes: JSON that is kept, and verified, with the arrays.

        Raises:
          SaveError: it, or the one before it, did not get to the disk.
        """
        self.wait()
        tree = jax.tree.map(np.asarray, tree)  # Orbax takes no numpy scalars
        digests = {name: _digest(leaf) for name, leaf in _named(tree).items()}
        # Orbax joins keys with dots, so that a key 'a.b' would overwrite the key 'b' within 'a'.
        if dotted := [name for name in digests if re.search(r"\['[^']*\.", name)]:
            raise SaveError(f'{dotted[0]}: no dots in names of parameters, please')
        metadata = {'digests': digests, 'notes': notes, 'digest': _seal(step, digests, notes)}
        try:
            with _alone():
                response = ocp.save_checkpointables_async(
                    self.folder / str(step), {_ITEM: tree}, custom_metadata=metadata, overwrite=True
                )
        except Exception as error:
            raise self._failed(step, error) from error
        self._pending = (step, response)
        return metadata['digest']

    def wait(self) -> None:
        """Returns when the last save is on disk, and what is too old gone.

        Raises:
          SaveError: it did not get there.
        """
        if self._pending is None:
            return
        (step, response), self._pending = self._pending, None
        try:
            response.result()
        except Exception as error:
            raise self._failed(step, error) from error
        # Newer ones, if there are any, are damaged: this one is trained from what came before them.
        for old in [s for s in self.steps() if s <= step][: -self._keep]:
            # What is deleted in part counts for nothing any more.
            (self.folder / str(old) / _COMMITTED).unlink()
            shutil.rmtree(self.folder / str(old))

    def _failed(self, step, error):
        return SaveError(
            f'checkpoint {step} in {self.folder} was not saved: {_first_line(error)}; earlier ones '
            'are untouched'
        )

    def load(self, abstract: Any) -> Saved | None:
        """The newest step that verifies; None where there is no checkpoint at all.

        Args:
          abstract: a tree of jax.ShapeDtypeStruct; its structure, shapes and dtypes must match.

        Raises:
          CheckpointError: there are checkpoints, and none of them is whole.
        """
        problems = []
        for step in reversed(self.steps()):
            try:
                return self._read(step, abstract)
            except CheckpointError as error:
                problems.append(str(error))
                logging.getLogger(__name__).warning('%s; trying an older one', error)
        if problems:
            raise CheckpointError(f'no whole checkpoint left in {self.folder}: {problems[0]}')
        return None

    def steps(self) -> list[int]:
        """Committed steps, oldest first."""
        return committed(self.folder)

    def _read(self, step, abstract):
        where, wanted = f'checkpoint {step} in {self.folder}', _named(abstract)
        try:
            text = (self.folder / str(step) / '_CHECKPOINT_METADATA').read_text()
            told = json.loads(text)['custom_metadata']
            digests, notes, digest = told['digests'], told['notes'], told['digest']
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f'{where} cannot be read: {_first_line(error)}') from error
        if digest != _seal(step, digests, notes):
            raise CheckpointError(f'{where} is damaged: its metadata are not what was saved')
        # Asked before loading: Orbax answers a tree of another structure with a misleading error.
        if different := wanted.keys() ^ digests.keys():
            raise CheckpointError(f'{where} does not match the config: {min(different)}')
        try:
            host = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), abstract)
            with _alone():
                tree = ocp.load_checkpointables(self.folder / str(step), {_ITEM: host})[_ITEM]
        except Exception as error:  # Orbax raises many kinds for damage; all mean the same here.
            raise CheckpointError(f'{where} cannot be read: {_first_line(error)}') from error
        got = _named(tree)
        for name in wanted:
            if (got[name].shape, got[name].dtype) != (wanted[name].shape, wanted[name].dtype):
                raise CheckpointError(
                    f'{where} does not match the config: {name} is '
                    f'{got[name].dtype}{got[name].shape}, expected '
                    f'{wanted[name].dtype}{wanted[name].shape}'
                )
            if _digest(got[name]) != digests[name]:
                raise CheckpointError(f'{where} is damaged: {name} is not what was saved')
        return Saved(step, tree, digest, notes)


@contextlib.contextmanager
def _alone():
    """Of several processes, one saves and loads: Orbax would wait for the others."""
    if jax.process_count() == 1:
        yield
        return
    context = ocp.Context()
    context.multiprocessing.primary_host = jax.process_index()
    context.multiprocessing.active_processes = {jax.process_index()}
    # Orbax 0.12 compares the folder of a save over all processes, whichever are active, and would
    # wait for them for ever. There is nothing to compare: one has the folder.
    saving = importlib.import_module('orbax.checkpoint.experimental.v1._src.saving.execution')
    compare = saving._check_directory_consistency
    saving._check_directory_consistency = lambda directory: None
    try:
        with context:
            yield
    finally:
        saving._check_directory_consistency = compare


def _named(tree) -> dict[str, Any]:
    return {jax.tree_util.keystr(k): v for k, v in jax.tree_util.tree_leaves_with_path(tree)}


def _digest(array) -> str:
    array = np.ascontiguousarray(array)
    hashed = hashlib.blake2b(f'{array.dtype}{array.shape}'.encode(), digest_size=16)
    hashed.update(array.tobytes())
    return hashed.hexdigest()


def _seal(step, digests, notes) -> str:
    text = json.dumps([step, digests, notes], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _first_line(error) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0]
    if len(line) < 240:
        return line
    # TensorStore says where it was at length, and somewhere in it what the system said.
    said = re.search(r"os_error_code='(\d+)'", line)
    if said:
        return f'{os.strerror(int(said[1]))} ({line[:100]} ...)'
    return f'{line[:100]} ... {line[-130:]}'
