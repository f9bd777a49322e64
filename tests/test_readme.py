"""What the README says is so: its table of schemes, its examples, its configs."""

import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import configs
from configs import zoo
from posjax import plan
from posjax.interventions import Intervention
from posjax.scheme import Scheme, as_chain, parse
from posjax.spec import is_data
from posjax.taxonomy import explained, markdown

ROOT = Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text()
PYTHON = re.findall(r'```python\n(.*?)```', README, re.S)


def test_the_table_of_schemes_is_fresh():
    shown = re.search(r'<!-- schemes -->\n(.*?)\n<!-- /schemes -->', README, re.S).group(1)
    assert shown == markdown(), 'run python -m posjax.schemes and paste its table'


def test_the_example_scheme_trains(tmp_path):
    (example,) = [block for block in PYTHON if 'class half_life' in block]
    (command,) = re.findall(r'sweep.scheme="(.*?half_life.*?)"', README)
    (tmp_path / 'mine.py').write_text(example)
    script = f"""
import mine
from configs import quickstart
from posjax import config, experiment
c = quickstart.get_config()
c.sweep.scheme = {command}
c.seeds, c.train.steps, c.train.chunk, c.train.log_every = 1, 20, 20, 20
c.model.layers, c.eval.lengths, c.eval.sequences = 1, (32,), 8
c.eval.interventions = ('none',)
rows, failed = experiment.train(c, {str(tmp_path / 'w')!r})
assert failed == 0 and len({{r["scheme"] for r in rows}}) == 4
"""
    done = subprocess.run([sys.executable, '-c', script], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {'PYTHONPATH': f'{tmp_path}:{ROOT}'})  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Two numbers of one class are one program: rope, half_life, rope|half_life.
    assert '4 runs as 3 programs' in done.stdout


def test_the_pure_function_example_runs():
    (example,) = [block for block in PYTHON if 'rotate(' in block]
    scope = {}
    exec(example, scope)
    assert scope['q_BTHK'].shape == (2, 128, 4, 64)


@pytest.mark.parametrize('name', [m.name for m in pkgutil.iter_modules(configs.__path__)])
def test_every_config_describes_runs_and_tells_its_command(name):
    module = importlib.import_module(f'configs.{name}')
    assert plan.runs(module.get_config())
    assert f'python train.py --config configs/{name}.py' in module.__doc__


def test_the_zoo_has_every_scheme_that_its_tasks_can_be_learned_with():
    def names(scheme):
        specs = [getattr(scheme, f.name) for f in dataclasses.fields(scheme)]
        inner = [s for spec in specs for s in (spec if isinstance(spec, tuple) else [spec])]
        return {scheme.name()}.union(*(names(s) for s in inner if isinstance(s, Scheme)))

    found = set().union(*(names(p) for t in zoo.SCHEMES for p in as_chain(parse(t)).parts))
    assert found >= Scheme.registry.keys() - {'abacus'}


def test_files_named_in_the_readme_exist():
    for path in re.findall(r'\]\(([^)]+)\)', README):
        assert (ROOT / path).exists(), path


def test_the_coverage_shown_is_what_the_example_prints(tmp_path, monkeypatch, capsys):
    (example,) = [block for block in PYTHON if 'posjax.coverage' in block]
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    printed = capsys.readouterr().out.strip()
    assert textwrap.indent(printed, '    ', str.strip) in README
    assert {p.name for p in tmp_path.iterdir()} == {'coverage.png', 'kernel.png'}


def test_the_config_of_transformers_is_read_as_shown():
    (example,) = [block for block in PYTHON if 'from_hf' in block]
    names = {}
    exec(example, names)
    freq = np.asarray(names['inv_freq'])
    assert freq.shape == (32,) and freq[0] == 1
    np.testing.assert_allclose(freq[-1], 150000 ** (-62 / 64) / 32, rtol=1e-5)
    np.testing.assert_allclose(names['attention_factor'], 0.1 * np.log(32) + 1, rtol=1e-6)


def test_every_intervention_is_named():
    shown = README[README.index('## Past the window') : README.index('## Tasks')]
    for name in Intervention.registry.keys() - {'none'}:
        assert f'`{name}`' in shown, name


@pytest.mark.parametrize('name', sorted(Scheme.registry))
def test_every_scheme_is_explained_with_its_fields_and_defaults(name):
    cls = Scheme.registry[name]
    text = explained(cls)
    assert inspect.getdoc(cls) in text and cls.paper in text
    for field in dataclasses.fields(cls):
        default = '' if field.default is dataclasses.MISSING else f' = {field.default!r}'
        (line,) = [x for x in text.splitlines() if x.startswith(f'    {field.name}: ')]
        assert default in line and (', data' in line) == is_data(field.type)
