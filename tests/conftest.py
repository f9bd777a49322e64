"""Two CPU devices, so that the run axis is really split; no silent promotion of ranks or dtypes."""

import os
from pathlib import Path

# Processes side by side: each keeps to one thread. Set before JAX starts.
os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' --xla_cpu_multi_thread_eigen=false'

import jax
import pytest
from hypothesis import settings

from tests.forked import Forks

# Machines are shared: how long an example takes says nothing.
settings.register_profile('posjax', deadline=None)
settings.load_profile('posjax')

jax.config.update('jax_num_cpu_devices', 2)
jax.config.update('jax_numpy_rank_promotion', 'raise')


def pytest_configure(config):
    """Most of a short run is compiling small programs once, which need not be fast, here and in the
    commands that tests run; the long ones try the programs that people run."""
    if 'not slow' in config.option.markexpr:
        os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'
        jax.config.update('jax_disable_most_optimizations', True)
        if jax.__version_info__ < (0, 11):  # XLA ends where it does not know a flag
            os.environ['XLA_FLAGS'] += (
                ' --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
            )


class Programs:
    """Drops compiled programs before they have used up the pieces of memory that Linux lends a
    process, of which each takes a hundred or more: LLVM crashes where there are none left."""

    def __init__(self):
        self._new = 0
        self._pieces, limit = Path('/proc/self/maps'), Path('/proc/sys/vm/max_map_count')
        self._most = int(limit.read_text()) // 2 if limit.exists() else None
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event, duration, **_):
        self._new += event == '/jax/core/compile/backend_compile_duration'

    def make_room(self):
        if self._most is None or self._new < 20:  # counting pieces takes a while, too
            return
        self._new = 0
        if self._pieces.read_bytes().count(b'\n') > self._most:
            jax.clear_caches()


@pytest.fixture(scope='session')
def programs():
    return Programs()


@pytest.fixture(autouse=True)
def room_for_programs(programs):
    yield
    programs.make_room()


@pytest.fixture(scope='session')
def forks(tmp_path_factory):
    """Starts commands in processes of their own; they share what they compile."""
    folder = tmp_path_factory.mktemp('forks')
    server = Forks(folder, cache=folder / 'compiled')
    yield server
    server.close()


@pytest.fixture(autouse=True)
def explicit_dtypes(request):
    """Strict, but where a test file says that optax runs: its own arithmetic promotes."""
    mode = 'standard' if getattr(request.module, 'OPTAX_RUNS', False) else 'strict'
    with jax.numpy_dtype_promotion(mode):
        yield
