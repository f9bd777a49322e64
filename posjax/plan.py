"""From a config to the runs that it describes, or one line on why it describes none."""

import collections
import dataclasses
import itertools
import typing
from typing import Any

from ml_collections import ConfigDict

import posjax.schemes  # noqa: F401  (fills the registry)
import posjax.tasks  # noqa: F401
from posjax.config import SWEPT, ConfigError, check, flatten, is_within
from posjax.interventions import parse as parse_intervention
from posjax.model import Model
from posjax.run import DECAYABLE, Optim, Run
from posjax.scheme import as_chain
from posjax.scheme import parse as parse_scheme
from posjax.tasks.task import parse as parse_task
from posjax.text import coerce, suggest


def runs(config: ConfigDict, fit: bool = True) -> list[Run]:
    """The runs a config describes: every combination of what is swept, each with every seed.

    Args:
      fit: also check that every run can be asked for every length of `config.eval`.

    Raises:
      ConfigError: one line, before anything runs.
    """
    check(config)
    found = []
    for point in points(config):
        for seed in range(config.seeds):
            found.append(_run(config, point, seed, fit))
    for described, count in collections.Counter(map(str, found)).items():
        if count > 1:
            raise ConfigError(f'sweep: the same run is asked for twice: {described}')
    for words in config.eval.interventions:
        objections = [objection(run, words) for run in found]
        if all(objections):
            raise ConfigError(f'config.eval.interventions: {objections[0]}')
    return found


def points(config: ConfigDict) -> list[dict[str, Any]]:
    """Combinations of what is swept, as {dotted field: value}, in order; [{}] for a single one."""
    swept = {name: values for name, values in _alternatives(config).items() if values}
    return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def swept(config: ConfigDict) -> list[str]:
    """Dotted names of swept fields that a result needs beside task, scheme, length and seed."""
    named = ('task', 'scheme', 'train.length')
    return [name for name, v in _alternatives(config).items() if v and name not in named]


def _alternatives(config) -> dict[str, tuple]:
    """What is swept, outermost first: ConfigDict itself sorts by name."""
    found = flatten(config.sweep)

    def place(name):
        return next(i for i, field in enumerate(SWEPT) if is_within(name, field))

    return {name: found[name] for name in sorted(found, key=place)}


def _run(config, point, seed, fit) -> Run:
    """One run, checked against its lengths and interventions."""
    values = flatten(config) | point
    part = {
        group: {
            k.removeprefix(group + '.'): v for k, v in values.items() if k.startswith(group + '.')
        }
        for group in ('model', 'train', 'optim')
    }
    try:
        task_, scheme_ = parse_task(values['task']), parse_scheme(values['scheme'])
        model = Model(tokens=task_.tokens, classes=task_.classes, **part['model'])
        optim = {
            name: tuple(v) if isinstance(v, list) else float(v) if isinstance(v, int)
            and Optim.__dataclass_fields__[name].type is float else v
            for name, v in part['optim'].items()
        }  # fmt: skip
        run = Run(task_, scheme_, model, Optim(**optim), seed,
                  *(part['train'][k] for k in ('length', 'batch', 'steps')),
                  tuple(part['train']['lengths']), part['train']['microbatch'])  # fmt: skip
        _check_sizes(run)
        at_once = 'microbatch' if run.microbatch else 'batch'
        if getattr(run, at_once) % config.mesh.data:
            raise ConfigError(f'config.train.{at_once}={getattr(run, at_once)} should be a '
                              f'multiple of config.mesh.data={config.mesh.data}')  # fmt: skip
        if model.attention == 'fused' and config.mesh.data > 1:
            raise ConfigError("config.model.attention='fused' is one kernel on one device; set "
                              f'config.mesh.data={config.mesh.data} to 1')  # fmt: skip
        for length in (run.length, *run.lengths):
            check_length(run, length)
        for words in config.eval.interventions:
            parse_intervention(words)
            if fit and objection(run, words) is None:
                for length in config.eval.lengths:
                    check_length(run, length, words)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return run


def objection(run: Run, intervention: str) -> str | None:
    """Why an intervention means nothing for a run, in one line; None if it means something.

    Such a pair is left out of an evaluation, as `yarn` of a scheme without rotations.
    """
    try:
        parse_intervention(intervention)(run.scheme, run.length, run.length)
    except ValueError as error:
        return str(error)
    return None


def check_length(run: Run, length: int, intervention: str = 'none') -> None:
    """Raises ValueError where a run cannot be asked for `length` tokens under an intervention."""
    if length < 1:
        raise ValueError(f'length {length} should be at least 1')
    run.task.check_length(length)
    asked = parse_intervention(intervention)(run.scheme, run.length, length)
    as_chain(asked).check_fit(run.model.dims, range(length))


def _check_sizes(run: Run) -> None:
    m, o = run.model, run.optim
    for field, value, least in (
        ('model.layers', m.layers, 1), ('model.heads', m.heads, 1), ('model.width', m.width, 1),
        ('model.mlp', m.mlp, 1), ('model.block', m.block, 0), ('train.length', run.length, 1),
        ('train.batch', run.batch, 1), ('train.microbatch', run.microbatch, 0),
        ('train.steps', run.steps, 1), ('optim.warmup', o.warmup, 0),
        ('optim.learning_rate', o.learning_rate, 0), ('optim.weight_decay', o.weight_decay, 0),
        ('optim.clip', o.clip, 0), ('optim.eps', o.eps, 0),
    ):  # fmt: skip
        if not value >= least:
            raise ConfigError(f'config.{field}={value} should be at least {least}')
    for field, value in (('optim.beta1', o.beta1), ('optim.beta2', o.beta2)):
        if not 0 <= value < 1:
            raise ConfigError(f'config.{field}={value} should be in [0, 1)')
    if run.microbatch and run.batch % run.microbatch:
        raise ConfigError(f'config.train.batch={run.batch} should be a multiple of '
                          f'config.train.microbatch={run.microbatch}')  # fmt: skip
    if run.lengths and (max(run.lengths) != run.length or run.batch % len(run.lengths)):
        raise ConfigError(
            f'config.train.lengths={run.lengths} should have config.train.length={run.length} as '
            f'the longest, and share out config.train.batch={run.batch} evenly'
        )
    if m.width % m.heads:
        raise ConfigError(f'config.model.width={m.width} should be a multiple of '
                          f'config.model.heads={m.heads}')  # fmt: skip
    for owner, part in (('model', m), ('optim', o)):
        for field in dataclasses.fields(part):
            if typing.get_origin(field.type) is typing.Literal:
                coerce(getattr(part, field.name), field.type, f'config.{owner}.{field.name}')
    for kind in o.decay:
        if kind not in DECAYABLE:
            raise ConfigError(f'config.optim.decay: {kind!r}{suggest(kind, DECAYABLE)}')
