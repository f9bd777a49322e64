"""Configs: what can be set, and how it is stored; plan.py says what it means.

A config file's `get_config()` starts from `default()` and changes what it needs. Anything wrong
with it is a ConfigError of one line.
"""

import json
from typing import Any

from ml_collections import ConfigDict

from posjax.text import coerce, suggest

# Fields that a workdir's runs do not depend on: they may differ when a command is run again.
HARMLESS = ('eval', 'compare', 'mesh', 'checkpoint', 'train.chunk')

# More would only be noticed when the list of runs has filled the memory.
MOST_SEEDS = 10_000

# What may be swept: every field that describes a run, in this order.
SWEPT = ('task', 'scheme', 'model', 'train.length', 'train.batch', 'train.steps', 'optim')


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
    c.model.attention = 'plain'  # or 'fused': the GPU's own kernel, where exact for the scheme

    c.train = ConfigDict()
    c.train.length = 32  # tokens
    c.train.lengths = ()  # tokens, where they differ: equal shares of a batch, up to train.length
    c.train.batch = 64  # sequences per step
    c.train.microbatch = 0  # of a batch, sequences at a time, to bound memory; 0 takes all at once
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
        if not any(is_within(name, field) for field in HARMLESS)
        and _tuples(value) != _tuples(usual[name])
    }


def is_within(name: str, field: str) -> bool:
    """Whether a dotted name is a field, or lies in that group of fields."""
    return name == field or name.startswith(field + '.')


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _sweep_fields(config) -> ConfigDict:
    """The tree of what may be swept, () at every leaf, so that overrides find their field."""
    tree: dict = {}
    for name in flatten(config):
        if any(is_within(name, field) for field in SWEPT):
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
