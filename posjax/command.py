"""What train.py and eval.py share: flags in, one clear line and an exit code out.

Exit codes: 0 done; 1 some run failed in training; 2 the command or its files are wrong; 3 the
machine would not (a full disk, too little memory); 4 another process of the same command ended;
130 and 143 stopped by SIGINT and SIGTERM.
"""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import jax
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

from posjax import compiled, experiment, hosts, report, results, signals
from posjax import config as config_lib
from posjax.checkpoint import CheckpointError, SaveError
from posjax.config import ConfigError
from posjax.text import split, suggest

_HOSTS = flags.DEFINE_string(
    'hosts', None, 'One of several processes: auto (TPU pods, Slurm, MPI), or ADDRESS:PORT,i/n.'
)
_COMPILED = flags.DEFINE_string(
    'compiled', None, 'A folder that keeps compiled programs for the next time; none by default.'
)


def main(command: Callable[[], int]) -> None:
    """Runs a command; a mistake of the user's is one line on stderr and exit code 2."""
    # One CPU device per core, before JAX starts: the run axis is split over devices.
    jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
    # Orbax narrates every save, and tells of errors in a page; what it raises is told below.
    absl_logging.set_verbosity(absl_logging.FATAL)
    sys.unraisablehook = _unraisable
    own, handler = logging.getLogger('posjax'), logging.StreamHandler()
    handler.setFormatter(logging.Formatter('warning: %(message)s'))
    own.addHandler(handler)
    own.setLevel(logging.WARNING)

    def guarded(argv):
        if len(argv) > 1:
            raise ConfigError(f'unexpected argument {argv[1]!r}; flags are written --name=value')
        if _HOSTS.value is not None:
            _join(_HOSTS.value)
        if _COMPILED.value:
            compiled.keep(Path(_COMPILED.value))
        return command()

    try:
        app.run(guarded, flags_parser=_parse)
    except SaveError as error:
        _end(error, 3)
    except hosts.OtherFailed as error:
        _end(error, 4)
    except (ConfigError, CheckpointError) as error:
        _end(error, 2)
    except OSError as error:
        _end(f'{error.filename or "system"}: {error.strerror}', 3)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and 'RESOURCE_EXHAUSTED' not in str(error):
            if hosts.several():
                _end(f'{_line(error, 0)}; another process may have ended: start all of them again, '
                     'and they go on from what is saved', 4)  # fmt: skip
            raise
        _end('out of memory; set train.microbatch or model.block, or lower eval.batch', 3)
    except KeyboardInterrupt:
        _end('stopped by SIGINT', 128 + signal.SIGINT)
    except signals.Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(128 + stop.number)


def _unraisable(what) -> None:
    # TensorStore's threads report to an event loop that Orbax closes when a save fails.
    if str(what.exc_value) != 'Event loop is closed':
        sys.__unraisablehook__(what)


def _end(error, code) -> None:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(code)


def _join(text: str) -> None:
    try:
        hosts.join(text)
    except ValueError as error:
        raise ConfigError(f'--hosts={error}') from None


def train(
    config_flag: flags.FlagHolder, workdir: str | None, compare: list[str] | None, shard: str | None
) -> int:
    """train.py."""
    if not flags.FLAGS['config'].present:
        raise ConfigError('--config is missing, as in --config configs/quickstart.py')
    file = Path(flags.FLAGS['config'].config_filename.partition(':')[0])
    config = _checked(config_flag.value, file)
    path = _folder(workdir, Path('runs') / file.stem)
    references = _references(config.compare if compare is None else compare)
    part = _shard(shard)
    with signals.noted() as asked:
        rows, failed = experiment.train(config, path, asked=asked, shard=part)
    _show(rows, references, f'results, checkpoints and figures: {path}')
    return 1 if failed else 0


def evaluate(workdir, lengths, words, sequences, compare) -> int:
    """eval.py."""
    path = _folder(workdir)
    try:
        numbers = None if lengths is None else [int(length) for length in lengths]
    except ValueError:
        raise ConfigError(f'--lengths={",".join(lengths)} should be whole numbers, as in '
                          '--lengths 32,64') from None  # fmt: skip
    chosen = None if words is None else split(words)
    references = _references(compare or ())
    with signals.noted(patience=0):  # nothing is lost, and no file is left in part
        rows, failed = experiment.evaluate(path, numbers, chosen, sequences)
    _show(rows, references, f'results and figures: {path / "eval"}')
    return 1 if failed else 0


def _parse(argv):
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        # Of a config file that raises, ml_collections shows the whole trace.
        in_file = 'whilst parsing config file' in str(error)
        raise ConfigError(_line(error, -1 if in_file else 0)) from None
    except (AttributeError, KeyError) as error:  # ml_collections: an override of no known field
        if 'get_config' in str(error):
            raise ConfigError('--config: the file has no function get_config()') from None
        wrong = re.search(r'\w+', str(error)).group()
        known = config_lib.flatten(config_lib.default())
        near = next((a for a in argv if wrong in a and a.startswith('--config.')), wrong)
        name = near.removeprefix('--config.').partition('=')[0]
        raise ConfigError(f'config has no field {name}{suggest(name, known)}') from None
    except Exception as error:  # a config file is code, and can raise anything
        raise ConfigError(f'--config cannot be loaded: {_line(error, -1)}') from None


def _line(error, which) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[which] if lines else type(error).__name__


def _checked(config, file: Path) -> ConfigDict:
    if isinstance(config, ConfigDict):
        config_lib.check(config)
        for name, value in config_flags.get_override_values(flags.FLAGS['config']).items():
            if config_lib.flatten(config.sweep).get(name):
                raise ConfigError(f'--config.{name}={value!r} has no effect, since '
                                  f'config.sweep.{name} names alternatives; set that')  # fmt: skip
        return config
    # ml_collections waits with what went wrong until a field is read.
    problem = (
        'no such file' if not file.exists()
        else 'this is a folder' if file.is_dir()
        else 'it cannot be read' if not os.access(file, os.R_OK)
        else 'get_config() should return posjax.config.default(), changed as you like'
    )  # fmt: skip
    raise ConfigError(f'--config {file} cannot be loaded: {problem}')


def _folder(workdir: str | None, default: Path | None = None) -> Path:
    if workdir or (workdir is None and default):
        return Path(workdir or default)
    raise ConfigError('--workdir is missing, as in --workdir runs/blog')


def _shard(text: str | None) -> tuple[int, int]:
    found = re.fullmatch(r'(\d+)/(\d+)', text or '0/1')
    if text == '' or not found or not int(found[1]) < int(found[2]):
        raise ConfigError(f'--shard={text!r} should be i/n with i from 0 to n - 1, as in 0/4')
    return int(found[1]), int(found[2])


def _references(paths) -> list[list[results.Row]]:
    """Published tables, read before anything runs."""
    return hosts.shared(lambda: [results.read(Path(path)) for path in paths])


def _show(rows, references, where: str) -> None:
    if hosts.first():
        print('\n' + report.summary(rows))
        if references:
            print('\n' + report.compare(rows, references)[0])
        print('\n' + where)
