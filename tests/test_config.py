"""What a config means, and what it is refused for."""

import dataclasses

import pytest

from configs import blog, quickstart
from posjax import config as config_lib
from posjax import plan
from posjax.config import ConfigError, default
from posjax.run import Optim


def changed(**fields):
    """The default config with fields set, `__` for the dot; sweeps too."""
    c = default()
    for name, value in fields.items():
        *groups, last = name.split('__')
        target = c
        for group in groups:
            target = target[group]
        with target.ignore_type():
            target[last] = value
    return c


def test_defaults_describe_one_run():
    (run,) = plan.runs(default())
    assert (run.task.text, run.scheme.text, run.seed) == ('lag', 'rope', 0)
    assert run.optim == Optim()


def test_a_sweep_is_a_product_in_order_with_seeds_innermost():
    c = changed(sweep__scheme=('rope', 'none'), sweep__optim__learning_rate=(1e-3, 1), seeds=2)
    found = [(r.scheme.text, r.optim.learning_rate, r.seed) for r in plan.runs(c)]
    assert found == [(s, lr, i) for s in ('rope', 'none') for lr in (1e-3, 1.0) for i in (0, 1)]
    assert plan.swept(c) == ['optim.learning_rate']
    assert all(isinstance(lr, float) for _, lr, _ in found)


def test_the_founding_experiment_is_what_it_says():
    runs = plan.runs(blog.get_config())
    assert len(runs) == 28 and len({r.scheme.text for r in runs}) == 7
    run = runs[0]
    assert (run.model.layers, run.model.heads, run.model.width, run.model.mlp) == (2, 1, 64, 4)
    assert (run.batch, run.steps, run.length) == (64, 2000, 32)
    assert (run.optim.learning_rate, run.optim.weight_decay) == (1e-3, 0.01)
    assert len(run.optim.decay) == 5


@pytest.mark.parametrize('make', [default, blog.get_config, quickstart.get_config])
def test_json_round_trip_is_exact(make):
    config = make()
    again = config_lib.from_json(config_lib.to_json(config))
    assert config_lib.flatten(again) == config_lib.flatten(config)
    assert plan.runs(again) == plan.runs(config)
    assert config_lib.differences(config, again) == []


def test_fields_and_their_defaults_agree_with_the_classes():
    known = config_lib.flatten(default())
    for field in dataclasses.fields(Optim):
        assert known[f'optim.{field.name}'] == field.default


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        ({'scheme': 'ropee'}, "unknown scheme 'ropee'; did you mean 'rope'"),
        ({'task': 'lag(k=99)'}, 'scores nothing within 32 tokens'),
        ({'task': 'None'}, "task 'None': expected name"),
        ({'seeds': 0}, 'config.seeds=0 should be at least 1'),
        ({'seeds': True}, 'config.seeds=True should be an integer'),
        ({'seeds': 1.5}, 'config.seeds=1.5 should be an integer'),
        ({'train__steps': 0}, 'config.train.steps=0 should be at least 1'),
        ({'train__chunk': 30}, 'chunk=30 should be a multiple of config.train.log_every=20'),
        ({'model__heads': 3}, 'config.model.width=64 should be a multiple of config.model.heads=3'),
        (
            {'model__dtype': 'float16'},
            "dtype='float16'; .*known: bfloat16, float32|dtype='float16'",
        ),
        ({'optim__learning_rate': float('nan')}, 'learning_rate=nan should be a finite number'),
        ({'optim__learning_rate': -1.0}, 'learning_rate=-1.0 should be at least 0'),
        ({'optim__beta2': 1.0}, r'beta2=1.0 should be in \[0, 1\)'),
        ({'optim__decay': ('weight',)}, "decay: 'weight'; did you mean 'weights'"),
        ({'optim__schedule': 'cos'}, "schedule='cos'"),
        ({'eval__lengths': ()}, 'config.eval.lengths is empty'),
        ({'eval__lengths': (0,)}, 'length 0 should be at least 1'),
        ({'eval__lengths': 8}, r'config.eval.lengths=8 should be a tuple, as \(8,\)'),
        ({'sweep__optim__decay': ('norms',)}, r"decay='norms' should be a tuple, as \('norms',\)"),
        ({'eval__interventions': ('logm',)}, "unknown intervention 'logm'; did you mean 'logn'"),
        ({'eval__interventions': ()}, 'config.eval.interventions is empty'),
        ({'scheme': 'learned(max_length=100)'}, '100 rows, none for position 100 of 128;'),
        ({'scheme': 'alibi(slopes=(1, 2))'}, '2 slopes for 1 heads'),
        ({'mesh__batching': 'vmapp'}, "batching='vmapp'; did you mean 'vmap'"),
        ({'mesh__devices': -1}, 'devices=-1 should be 0'),
        ({'sweep__scheme': ('rope', 'rope(theta=1e4)')}, 'the same run is asked for twice'),
        ({'sweep__scheme': 'rope'}, "sweep.scheme='rope' should be a tuple"),
        ({'sweep__train__steps': (10, 'x')}, "sweep.train.steps='x' should be an integer"),
        ({'model__widht': 3}, "no field model.widht; did you mean 'model.width'"),
    ],
)
def test_refused_in_one_line(fields, message):
    with pytest.raises(ConfigError, match=message) as error:
        config = default()
        with config.unlocked():
            plan.runs(changed(**fields))
    assert '\n' not in str(error.value)


def test_stored_configs_are_data_of_this_version():
    with pytest.raises(ConfigError, match='no stored config'):
        config_lib.from_json('import os')
    with pytest.raises(ConfigError, match='no stored config'):
        config_lib.from_json('[1, 2]')
    with pytest.raises(ConfigError, match='unknown field modle'):
        config_lib.from_json('{"modle": 1}')


def test_differences_name_what_changes_the_runs():
    a = changed(optim__learning_rate=0.1, eval__lengths=(1, 2), train__chunk=20)
    assert config_lib.differences(default(), a) == ['optim.learning_rate']
