"""Commands in processes of their own, many for the price of one start.

Importing JAX takes seconds. `Forks` starts one process that has imported everything and computes
nothing; every command is a fork of it, which then starts JAX, and can be killed like any other.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Done(NamedTuple):
    """What a command left; `code` is negative for a signal that killed it, as in subprocess."""

    code: int
    out: str
    err: str


class Command:
    """A command that runs; its output is in two files."""

    def __init__(self, forks: 'Forks', folder: Path, pid: int):
        self._forks, self._folder, self.pid = forks, folder, pid

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def ended(self) -> bool:
        return (self._folder / 'code').exists()

    def out(self) -> str:
        return (self._folder / 'out').read_text()

    def wait(self, seconds: float = 120) -> Done:
        """Waits for its end."""
        code, deadline = self._folder / 'code', time.monotonic() + seconds
        while not code.exists():
            if time.monotonic() > deadline:
                self.kill(signal.SIGKILL)
                raise TimeoutError(f'no end within {seconds} s: {self.out()}')
            time.sleep(0.005)
        return Done(int(code.read_text()), self.out(), (self._folder / 'err').read_text())


class Forks:
    """The process that commands are forked off.

    Args:
      folder: takes their output.
      cache: takes what they compile, so that each program is compiled once.
    """

    def __init__(self, folder: Path, cache: Path):
        self._folder, self._count = folder, 0
        compiled = {
            'JAX_COMPILATION_CACHE_DIR': str(cache),
            'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
            'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
        }
        self._server = subprocess.Popen(
            [sys.executable, '-m', 'tests.forked'], cwd=ROOT, env=os.environ | compiled, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def close(self) -> None:
        self._server.stdin.close()
        self._server.wait(30)

    def start(self, script: str, *args, cwd=ROOT, setup: str = '') -> Command:
        """Starts `script` (of the repository's root) with arguments.

        Args:
          setup: Python that the new process runs first.
        """
        self._count += 1
        folder = self._folder / f'{self._count}'
        folder.mkdir(parents=True)
        request = {'script': str(ROOT / script), 'args': [str(a) for a in args], 'cwd': str(cwd),
                   'setup': setup, 'folder': str(folder)}  # fmt: skip
        self._server.stdin.write(json.dumps(request) + '\n')
        self._server.stdin.flush()
        return Command(self, folder, int(self._server.stdout.readline()))

    def run(self, *args, **kwargs) -> Done:
        return self.start(*args, **kwargs).wait()


def _serve() -> None:
    import runpy  # noqa: PLC0415

    import posjax  # noqa: F401, PLC0415
    from posjax import command  # noqa: F401, PLC0415

    # A reaper for each command writes down how it ended; nobody waits for the reapers.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        reader, writer = os.pipe()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                _become(request, runpy)
            os.write(writer, f'{pid}\n'.encode())
            _, status = os.waitpid(pid, 0)
            part = Path(request['folder'], 'code.part')
            part.write_text(str(os.waitstatus_to_exitcode(status)))
            part.rename(part.with_name('code'))
            os._exit(0)
        os.close(writer)
        sys.stdout.write(os.read(reader, 32).decode())
        sys.stdout.flush()
        os.close(reader)


def _become(request, runpy) -> None:
    for number, name in ((1, 'out'), (2, 'err')):
        os.dup2(os.open(Path(request['folder'], name), os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [request['script'], *request['args']]
    code = 1
    try:
        os.chdir(request['cwd'])
        exec(request['setup'], {})
        runpy.run_path(request['script'], run_name='__main__')
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == '__main__':
    _serve()
