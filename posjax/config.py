"""Configs: what can be set, what it means, and what is refused.

A config file's `get_config()` starts from `default()` and changes what it needs. `runs` turns a
config into the list of runs it describes; anything wrong with it is a ConfigError of one line.
"""

import collections
import itertools
import json
from typing import Any

from ml_collections import ConfigDict

import posjax.schemes  # noqa: F401  (fills the registry)
import posjax.tasks  # noqa: F401
from posjax.interventions import parse as parse_intervention
from posjax.model import Model
from posjax.run import DECAYABLE, Optim, Run
from posjax.scheme import as_chain
from posjax.scheme import parse as parse_scheme
from posjax.tasks.task import parse as parse_task
from posjax.text import coerce, suggest

# Fields that a workdir's runs do not depend on: they may differ when a command is run again.
HARMLESS = ('eval', 'compare', 'mesh', 'checkpoint', 'train.chunk')

# More would only be noticed when the list of runs has filled the memory.
MOST_SEEDS = 10_000

# What may be swept: every field that describes a run, in this order.
_SWEPT = ('task', 'scheme', 'model', 'train.length', 'train.batch', 'train.steps', 'optim')


class ConfigError(ValueError):
    """A config that cannot be run; one line with the field, its value and the remedy."""


def default() -> ConfigDict:
    """All fields with their defaults."""
    c = ConfigDict()
    c.task = 'lag'  # a text: see posjax/tasks
    c.scheme = 'rope'  # a text: see python -m posjax.schemes
    c.seeds = 1  # how many: 0, 1, ..., seeds - 1

    c.model = ConfigDict()
    c.model.layers = 2
    c.model.heads = 1
    c.model.width = 64  # heads x head dim
    c.model.mlp = 4  # hidden width of the MLP, as a multiple of width
    c.model.causal = True  # a token sees itself and earlier ones only
    c.model.dtype = 'float32'  # of what is multiplied, or 'bfloat16'; all else is float32
    c.model.precision = (
        'highest'  # of float32 products on TPU and GPU: 'default', 'high', 'highest'
    )
    c.model.block = 0  # queries attended to at a time, to bound memory; 0 takes all at once

    c.train = ConfigDict()
    c.train.length = 32  # tokens
    c.train.lengths = ()  # tokens, where they differ: equal shares of a batch, up to train.length
    c.train.batch = 64  # sequences per step
    c.train.steps = 2000
    c.train.chunk = 200  # steps between two looks at the host: progress, metrics, checkpoints
    c.train.log_every = 20  # steps averaged into one line of metrics; divides chunk

    c.start = ConfigDict()  # from parameters that are trained already, with a fresh optimiser
    c.start.workdir = ''  # that has them, for the same tasks and seeds; '' starts from none
    c.start.scheme = ''  # that they were trained under; '' is each run's own

    c.optim = ConfigDict()  # AdamW
    c.optim.learning_rate = 1e-3
    c.optim.weight_decay = 0.01
    c.optim.beta1 = 0.9
    c.optim.beta2 = 0.999
    c.optim.eps = 1e-8
    c.optim.clip = 0.0  # largest gradient norm of a run; 0 never clips
    c.optim.warmup = 0  # steps of linear warm-up
    c.optim.schedule = 'constant'  # after warm-up: 'constant', 'cosine' or 'linear' down to 0
    c.optim.decay = ('weights', 'embeddings')  # which kinds of parameters are decayed, of:
    # 'weights', 'embeddings', 'biases', 'norms', 'positions' (what schemes learn)

    c.eval = ConfigDict()
    c.eval.lengths = (32, 64, 128)  # tokens
    c.eval.interventions = ('none', 'logn')  # texts: see posjax/interventions
    c.eval.sequences = 256  # fresh ones, at each length
    c.eval.batch = 64  # sequences at a time, to bound memory

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 1000  # steps; the last step is always kept
    c.checkpoint.keep = 2  # how many

    c.mesh = ConfigDict()
    c.mesh.devices = 0  # how many there are for all runs; 0 takes all (on CPU: one per core)
    c.mesh.batching = 'auto'  # runs on one device: 'vmap' at once, 'map' one by one, 'auto'
    c.mesh.data = 1  # how many devices share the batch of a run
    c.mesh.parameters = 'copied'  # on those devices; or 'split', where a model needs it

    c.compare = ()  # CSV files of published results, to print beside one's own

    # A product of alternatives for any field above: c.sweep.scheme = ('none', 'rope'). () is none.
    c.sweep = _sweep_fields(c)
    return c


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
        return next(i for i, field in enumerate(_SWEPT) if _within(name, field))

    return {name: found[name] for name in sorted(found, key=place)}


def check(config: ConfigDict) -> None:
    """Raises ConfigError for an unknown field, a wrong type, or a value outside its meaning."""
    known, given = flatten(default()), flatten(config)
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f'config has no field {name}{suggest(name, known)}')
        where = f'config.{name}'
        try:
            field = name.removeprefix('sweep.')
            if field != name and not isinstance(value, tuple | list):
                raise ConfigError(f'{where}={value!r} should be a tuple of alternatives')
            for item in (value,) if field == name else value:
                if isinstance(known[field], tuple) and not isinstance(item, tuple | list):
                    raise ConfigError(f'{where}={item!r} should be a tuple, as ({item!r},)')
                coerce(item, _annotation(field, known[field]), where)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if missing := sorted(known.keys() - given.keys()):
        raise ConfigError(f'config lacks {missing[0]}; start from posjax.config.default()')
    positive = ('seeds', 'train.log_every', 'train.chunk', 'eval.sequences', 'eval.batch',
                'checkpoint.every', 'checkpoint.keep')  # fmt: skip
    for name in positive:
        if given[name] < 1:
            raise ConfigError(f'config.{name}={given[name]} should be at least 1')
    if given['seeds'] > MOST_SEEDS:
        raise ConfigError(f'config.seeds={given["seeds"]} should be at most {MOST_SEEDS}; split it '
                          'into several workdirs')  # fmt: skip
    for name in ('eval.lengths', 'eval.interventions'):
        if not given[name]:
            raise ConfigError(f'config.{name} is empty; name at least one')
    if given['mesh.devices'] < 0:
        raise ConfigError(f'config.mesh.devices={given["mesh.devices"]} should be 0 (all) or more')
    if given['mesh.data'] < 1:
        raise ConfigError(f'config.mesh.data={given["mesh.data"]} should be at least 1')
    for name, choices in (
        ('batching', ('auto', 'vmap', 'map')),
        ('parameters', ('copied', 'split')),
    ):
        value = given[f'mesh.{name}']
        if value not in choices:
            raise ConfigError(f'config.mesh.{name}={value!r}' + suggest(value, choices))
    if given['train.chunk'] % given['train.log_every']:
        raise ConfigError(
            f'config.train.chunk={given["train.chunk"]} should be a multiple of '
            f'config.train.log_every={given["train.log_every"]}'
        )


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
                  tuple(part['train']['lengths']))  # fmt: skip
        _check_sizes(run)
        if run.batch % config.mesh.data:
            raise ConfigError(f'config.train.batch={run.batch} should be a multiple of '
                              f'config.mesh.data={config.mesh.data}')  # fmt: skip
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
    as_chain(asked).check_fit(run.model.dims, length)


def _check_sizes(run: Run) -> None:
    m, o = run.model, run.optim
    for field, value, least in (
        ('model.layers', m.layers, 1), ('model.heads', m.heads, 1), ('model.width', m.width, 1),
        ('model.mlp', m.mlp, 1), ('model.block', m.block, 0), ('train.length', run.length, 1),
        ('train.batch', run.batch, 1), ('train.steps', run.steps, 1), ('optim.warmup', o.warmup, 0),
        ('optim.learning_rate', o.learning_rate, 0), ('optim.weight_decay', o.weight_decay, 0),
        ('optim.clip', o.clip, 0), ('optim.eps', o.eps, 0),
    ):  # fmt: skip
        if not value >= least:
            raise ConfigError(f'config.{field}={value} should be at least {least}')
    for field, value in (('optim.beta1', o.beta1), ('optim.beta2', o.beta2)):
        if not 0 <= value < 1:
            raise ConfigError(f'config.{field}={value} should be in [0, 1)')
    if run.lengths and (max(run.lengths) != run.length or run.batch % len(run.lengths)):
        raise ConfigError(
            f'config.train.lengths={run.lengths} should have config.train.length={run.length} as '
            f'the longest, and share out config.train.batch={run.batch} evenly'
        )
    if m.width % m.heads:
        raise ConfigError(f'config.model.width={m.width} should be a multiple of '
                          f'config.model.heads={m.heads}')  # fmt: skip
    for field, annotation, value in (
        ('model.dtype', Model.__dataclass_fields__['dtype'].type, m.dtype),
        ('model.precision', Model.__dataclass_fields__['precision'].type, m.precision),
        ('optim.schedule', Optim.__dataclass_fields__['schedule'].type, o.schedule),
    ):
        coerce(value, annotation, f'config.{field}')
    for kind in o.decay:
        if kind not in DECAYABLE:
            raise ConfigError(f'config.optim.decay: {kind!r}{suggest(kind, DECAYABLE)}')


def flatten(config, prefix='') -> dict[str, Any]:
    """{dotted name: value} of a nested config, in order."""
    flat = {}
    for name, value in config.items():
        inner = isinstance(value, ConfigDict | dict)
        flat |= flatten(value, f'{prefix}{name}.') if inner else {f'{prefix}{name}': value}
    return flat


def to_json(config: ConfigDict) -> str:
    """All fields as JSON text; `from_json` leads back."""
    return json.dumps(config.to_dict(), indent=2) + '\n'


def from_json(text: str) -> ConfigDict:
    """A config from the text `to_json` wrote; data only, nothing is executed.

    Raises:
      ConfigError: it is no config, or one of another version of posjax.
    """
    try:
        stored = flatten(json.loads(text))
    except (ValueError, AttributeError) as error:
        raise ConfigError(f'this is no stored config: {error}') from None
    config = default()
    for name, value in stored.items():
        if name not in flatten(config):
            raise ConfigError(f'stored config has an unknown field {name}; this is another version')
        *groups, last = name.split('.')
        target = config
        for part in groups:
            target = target[part]
        with target.ignore_type():
            target[last] = _tuples(value)
    check(config)
    return config


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """Dotted names of fields that differ and change what is trained."""
    a, b = relevant(old), relevant(new)
    return [name for name in a.keys() | b.keys() if a.get(name) != b.get(name)]


def relevant(config: ConfigDict) -> dict[str, Any]:
    """{dotted name: value} of the fields that the runs depend on, where they are not the default.

    So fields that later versions add change nothing for the workdirs of earlier ones.
    """
    usual = flatten(default())
    return {
        name: _tuples(value)
        for name, value in flatten(config).items()
        if not any(_within(name, field) for field in HARMLESS)
        and _tuples(value) != _tuples(usual[name])
    }


def _within(name: str, field: str) -> bool:
    """Whether a dotted name is a field, or lies in that group of fields."""
    return name == field or name.startswith(field + '.')


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _sweep_fields(config) -> ConfigDict:
    """The tree of what may be swept, () at every leaf, so that overrides find their field."""
    tree: dict = {}
    for name in flatten(config):
        if any(_within(name, field) for field in _SWEPT):
            *groups, last = name.split('.')
            inner = tree
            for part in groups:
                inner = inner.setdefault(part, {})
            inner[last] = ()
    return ConfigDict(tree)


def _annotation(name, value):
    """The type a field must have, from its default."""
    if name in ('eval.lengths', 'train.lengths'):
        return tuple[int, ...]
    return tuple[str, ...] if isinstance(value, tuple) else type(value)
