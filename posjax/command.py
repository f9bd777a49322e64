"""What train.py and eval.py share: flags in, one clear line and an exit code out.

Exit codes: 0 done; 1 some run failed while training; 2 the command or its files are wrong.
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import jax
from absl import app, flags, logging

from posjax import config as config_lib
from posjax import experiment, report, results
from posjax.checkpoint import CheckpointError
from posjax.config import ConfigError
from posjax.text import suggest
from posjax.workdir import Workdir


def main(command: Callable[[], int]) -> None:
    """Runs a command; a mistake of the user's is one line on stderr and exit code 2."""
    # One CPU device per core, before JAX starts: the run axis is split over devices.
    jax.config.update('jax_num_cpu_devices', os.cpu_count() or 1)
    logging.set_verbosity(logging.ERROR)  # Orbax narrates every save

    def guarded(argv):
        if len(argv) > 1:
            raise ConfigError(f'unexpected argument {argv[1]!r}; flags are written --name=value')
        return command()

    try:
        app.run(guarded, flags_parser=_parse)
    except (ConfigError, CheckpointError) as error:
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)


def train(config_flag: flags.FlagHolder, workdir: str | None, compare: list[str] | None) -> int:
    """train.py."""
    config = config_flag.value
    if config is None:
        raise ConfigError('--config is missing, as in --config configs/quickstart.py')
    file = flags.FLAGS['config'].config_filename.partition(':')[0]
    path = Path(workdir or Path('runs') / Path(file).stem)
    try:
        published = config.compare
    except OSError:  # ml_collections waits with this until a field is read
        raise ConfigError(f'--config {file} cannot be loaded: no such file') from None
    references = _references(published if compare is None else compare)
    rows, failed = experiment.train(config, path)
    _show(rows, references)
    print(f'\nresults, checkpoints and figures: {path}')
    if failed:
        print(f'warning: {failed} runs stopped being finite and were frozen at that step; see '
              f'failed_at in {path}/groups/*/evaluated.json', file=sys.stderr)  # fmt: skip
    return 1 if failed else 0


def evaluate(workdir, lengths, words, sequences, compare) -> int:
    """eval.py."""
    if workdir is None:
        raise ConfigError('--workdir is missing, as in --workdir runs/blog')
    stored = Workdir(workdir).config().eval
    try:
        numbers = stored.lengths if lengths is None else [int(length) for length in lengths]
    except ValueError:
        raise ConfigError(f'--lengths={",".join(lengths)} should be whole numbers, as in '
                          '--lengths 32,64') from None  # fmt: skip
    chosen = stored.interventions if words is None else _split(words)
    count = stored.sequences if sequences is None else sequences
    references = _references(compare or ())
    rows = experiment.evaluate(workdir, numbers, chosen, count)
    _show(rows, references)
    print(f'\nresults and figures: {Path(workdir) / "eval"}')
    return 0


def _parse(argv):
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        raise ConfigError(f'{str(error).splitlines()[0]}') from None
    except AttributeError as error:  # ml_collections: an override of a field that is not there
        wrong = re.search(r'\w+', str(error)).group()
        known = config_lib.flatten(config_lib.default())
        near = next((a for a in argv if wrong in a and a.startswith('--config.')), wrong)
        name = near.removeprefix('--config.').partition('=')[0]
        raise ConfigError(f'config has no field {name}{suggest(name, known)}') from None
    except (TypeError, ValueError) as error:
        raise ConfigError(' '.join(str(error).split())) from None
    except (FileNotFoundError, ImportError, SyntaxError) as error:
        raise ConfigError(f'--config cannot be loaded: {error}') from None


def _split(words: str) -> list[str]:
    """`none,shift(by=1),a` at commas outside parentheses."""
    return [word.strip() for word in re.split(r',(?![^(]*\))', words) if word.strip()]


def _references(paths) -> list[list[results.Row]]:
    """Published tables, read before anything runs."""
    try:
        return [results.read(Path(path)) for path in paths]
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _show(rows, references) -> None:
    print('\n' + report.summary(rows))
    if references:
        print('\n' + report.compare(rows, references)[0])
