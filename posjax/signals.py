"""Being asked to stop: SIGTERM from a scheduler, SIGINT from a keyboard."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

Asked = Callable[[], int | None]

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
    """Training stopped because it was asked to, with its current step saved.

    Attributes:
      number: of the signal.
    """

    def __init__(self, number: int, where: str):
        self.number = number
        super().__init__(f'stopped by {signal.Signals(number).name} {where}')


@contextlib.contextmanager
def noted(patience: int = 1) -> Iterator[Asked]:
    """Inside, SIGTERM and SIGINT are only noted; more than `patience` of them end the process.

    Python runs its handlers between two of its own instructions, so not while XLA compiles or
    computes. A thread that reads the signals from a pipe is prompt whatever the main thread does.

    Yields:
      A function that gives the number of the first signal that came, or None.
    """
    came: list[int] = []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch():
        while number := os.read(reader, 1)[0]:
            if number not in _STOPPING:
                continue
            came.append(number)
            name = signal.Signals(number).name
            if len(came) > patience:
                end = f'\nstopped at once by {name}; the same command goes on from what is saved\n'
                os.write(2, end.encode())
                os._exit(128 + number)
            os.write(2, f'\n{name}: stopping after this chunk; again: at once\n'.encode())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    pipe_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # Python writes a signal's number to the pipe only where it has a handler for it.
    before = {number: signal.signal(number, lambda *_: None) for number in _STOPPING}
    try:
        yield lambda: came[0] if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(pipe_before)
        os.write(writer, b'\0')
        thread.join()
        os.close(reader)
        os.close(writer)
