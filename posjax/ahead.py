"""Compiling what comes next on another thread, while devices work on what is there."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class Ahead:
    """One thread that compiles, in order of being asked.

    Whoever needs a program in the meantime waits for it, or compiles it; so nothing depends on how
    far the thread has come, and an error of its own is left to them, who will meet it again.

    Args:
      active: False compiles nothing ahead.
    """

    def __init__(self, active: bool = True):
        self._thread = ThreadPoolExecutor(max_workers=1) if active else None
        self._asked: dict[str, list[Future]] = {}

    def __enter__(self) -> 'Ahead':
        return self

    def __exit__(self, *error) -> None:
        if self._thread:
            self._thread.shutdown(cancel_futures=True)

    def later(self, name: str, prepare: Callable, *args) -> None:
        """Calls `prepare(*args)` some time; `name` says for what."""
        if self._thread:
            self._asked.setdefault(name, []).append(self._thread.submit(_tried, prepare, *args))

    def drop(self, name: str) -> None:
        """Nothing is compiled for `name` from here on."""
        asked = self._asked.pop(name, [])
        wait([future for future in asked if not future.cancel()])


def _tried(prepare, *args):
    try:
        prepare(*args)
    except Exception:
        logging.getLogger(__name__).debug('not compiled ahead', exc_info=True)
