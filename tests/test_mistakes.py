"""Every mistake is one line that says what, and what instead; exit code 2; nothing is written."""

import shutil

import pytest

from posjax import config as config_lib
from posjax import results
from posjax.workdir import Workdir

CONFIG = """
from posjax import config

def get_config():
    c = config.default()
    c.task, c.model.width = 'lag(k=1, vocab=4)', 8
    c.sweep.scheme = ('learned(max_length=16)', 'rope')
    c.eval.lengths = (8, 16)
    c.train.length = 8
    return c
"""
# Files of a folder, by the name that cases call them.
FILES = {
    'C.py': CONFIG,
    'syntax.py': 'def get_config(:\n',
    'empty.py': '',
    'nothing.py': 'def get_config():\n    pass\n',
    'raises.py': 'def get_config():\n    raise OverflowError("too\\nmuch")\n',
    'imports.py': 'import no_such_module\n',
    'foreign.py': 'from ml_collections import ConfigDict\nget_config = ConfigDict\n',
    'extra.py': CONFIG.replace('return', 'c.stepz = 3\n    return').replace(
        'c = config.default()', 'c = config.default(); c.unlock()'),
    'dict.py': CONFIG.replace('return c', 'c.eval.lengths = 8\n    return c'),
    'bool.py': CONFIG.replace('return c', 'c.train.steps = True\n    return c'),
    'empty.csv': '',
    'short.csv': ','.join(results.COLUMNS) + '\nlag,rope\n',
    'words.csv': ','.join(results.COLUMNS[:9]) + '\nlag,rope,0,8,8,none,all,accuracy,high\n',
    'file': 'a file',
}  # fmt: skip


@pytest.fixture(scope='module')
def places(tmp_path_factory):
    """Config files, tables, and workdirs: W of an experiment, and damaged ones."""
    folder = tmp_path_factory.mktemp('mistakes')
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / 'folder').mkdir()
    config = config_lib.default()
    config.task, config.eval.lengths, config.train.length = 'lag(k=1, vocab=4)', (8, 16), 8
    config.scheme = 'learned(max_length=16)'
    (folder / 'W').mkdir(exist_ok=True)
    Workdir(folder / 'W').claim(config)
    for name, text in {
        'torn': config_lib.to_json(config)[:99],
        'other': '{"modle": {"width": 3}}',
        'list': '[]',
        'binary': '\x00\x01',
        'typed': config_lib.to_json(config).replace('"width": 64', '"width": "wide"'),
        'evil': config_lib.to_json(config).replace('learned(', '../../etc('),
    }.items():
        (folder / name).mkdir()
        (folder / name / 'config.json').write_text(text)
    return folder


TRAIN = [
    (['--config.optim.clip=1', '--config', 'C.py'], 'before a value'),
    ([], '--config is missing, as in'),
    (['--config'], 'config'),
    (['--config', 'absent.py'], 'absent.py cannot be loaded: no such file'),
    (['--config', 'folder'], 'this is a folder'),
    (['--config='], 'cannot be loaded'),
    (['--config', 'syntax.py'], 'cannot be loaded: invalid syntax'),
    (['--config', 'empty.py'], 'no function get_config()'),
    (['--config', 'nothing.py'], 'should return posjax.config.default()'),
    (['--config', 'raises.py'], 'raises.py: too'),
    (['--config', 'imports.py'], "No module named 'no_such_module'"),
    (['--config', 'foreign.py'], 'config lacks checkpoint.every; start from'),
    (['--config', 'extra.py'], "no field stepz; did you mean 'train.steps'|no field stepz"),
    (['--config', 'dict.py'], 'lengths'),
    (['--config', 'bool.py'], 'config.train.steps=True should be an integer'),
    (['--config', 'C.py:big'], 'positional argument'),
    (['--config', 'C.py', '--config.train.stepz=1'],
     "no field train.stepz; did you mean 'train.steps'"),
    (['--config', 'C.py', '--config.train.steps.x=1'], 'train.steps'),
    (['--config', 'C.py', '--config.trian.steps=1'], "did you mean 'train.steps'"),
    (['--config', 'C.py', '--config.train=1'], 'train'),
    (['--config', 'C.py', '--config.train.steps=1e3'], 'train.steps'),
    (['--config', 'C.py', '--config.train.steps=None'], 'train.steps'),
    (['--config', 'C.py', '--config.train.steps='], 'train.steps'),
    (['--config', 'C.py', '--config.train.steps=true'], 'train.steps'),
    (['--config', 'C.py', '--config.train.steps=99999999999'], 'at most 2147483647'),
    (['--config', 'C.py', '--config.train.steps=-1'], 'steps=-1 should be at least 1'),
    (['--config', 'C.py', '--config.seeds=20000'], 'config.seeds=20000 should be at most 10000'),
    (['--config', 'C.py', '--config.scheme=none'],
     "--config.scheme='none' has no effect, since config.sweep.scheme names alternatives"),
    (['--config', 'C.py', '--config.sweep.scheme=()', '--config.scheme=None'],
     "scheme 'None': expected name"),
    (['--config', 'C.py', '--config.sweep.scheme=()', '--config.scheme=ropee'],
     "unknown scheme 'ropee'; did you mean 'rope'"),
    (['--config', 'C.py', "--config.sweep.scheme=('rope'"], 'is not of the form name(field=value'),
    (['--config', 'C.py', "--config.sweep.scheme=('rope', 'rope()')"], 'asked for twice'),
    (['--config', 'C.py', "--config.sweep.scheme=('rope(theta=-1.0)',)"], 'should be positive'),
    (['--config', 'C.py', '--config.sweep.optim.beta1=(0.9, 2)'], 'beta1=2.0 should be in [0, 1)'),
    (['--config', 'C.py', '--config.task=lagg'], "unknown task 'lagg'; did you mean 'lag'"),
    (['--config', 'C.py', '--config.task=lag(k=0)'], 'k=0 should be at least 1'),
    (['--config', 'C.py', '--config.task=lag(vocab=2000000000)'], 'of memory'),
    (['--config', 'C.py', '--config.optim.learning_rate=nan'], 'learning_rate=nan'),
    (['--config', 'C.py', '--config.optim.learning_rate=fast'], 'learning_rate'),
    (['--config', 'C.py', '--config.optim.eps=1e-50'], 'float32 can hold'),
    (['--config', 'C.py', '--config.model.causal=maybe'], 'causal'),
    (['--config', 'C.py', '--config.model.causal', 'false'], "unexpected argument 'false'"),
    (['--config', 'C.py', '--config.model.dtype=bf16'], "did you mean 'bfloat16'"),
    (['--config', 'C.py', '--config.model.width=2000000000'], 'of memory'),
    (['--config', 'C.py', '--config.eval.lengths=8,17'], 'none for position 16'),
    (['--config', 'C.py', "--config.eval.lengths=(8, '16')"], 'eval.lengths'),
    (['--config', 'C.py', '--config.eval.lengths=()'], 'eval.lengths is empty'),
    (['--config', 'C.py', "--config.sweep.scheme=('rope',)", '--config.eval.lengths=(9000000,)'],
     'eval.lengths: 9000000 takes at least 82.9 PB|eval.lengths: 9000000 takes at least'),
    (['--config', 'C.py', "--config.sweep.scheme=('rope',)", '--config.train.length=900000'],
     'train.length=900000 takes at least'),
    (['--config', 'C.py', '--config.train.batch=2000000000'], 'of memory'),
    (['--config', 'C.py', "--config.eval.interventions=('logm',)"], "did you mean 'logn'"),
    (['--config', 'C.py', '--config.mesh.devices=64'], 'config.mesh.devices=64, but this machine'),
    (['--config', 'C.py', '--config.mesh.batching=pmap'], "known: auto, map, vmap"),
    (['--config', 'C.py', '--config.mesh.data=0'], 'config.mesh.data=0 should be at least 1'),
    (['--config', 'C.py', '--config.mesh.devices=1', '--config.mesh.data=4'],
     'config.mesh.data=4 should divide the number of devices, 1'),
    (['--config', 'C.py', '--config.mesh.devices=1', '--config.mesh.data=3'],
     'config.train.batch=64 should be a multiple of config.mesh.data=3'),
    (['--config', 'C.py', '--config.mesh.devices=2', '--config.mesh.data=2',
      '--config.train.microbatch=1'],
     'config.train.microbatch=1 should be a multiple of config.mesh.data=2'),
    (['--config', 'C.py', '--config.train.microbatch=48'],
     'config.train.batch=64 should be a multiple of config.train.microbatch=48'),
    (['--config', 'C.py', '--config.train.microbatch=-1'],
     'config.train.microbatch=-1 should be at least 0'),
    (['--config', 'C.py', '--config.mesh.parameters=cut'], 'known: copied, split'),
    (['--config', 'C.py', '--config.checkpoint.keep=0'], 'keep=0 should be at least 1'),
    (['--config', 'C.py', 'stray'], "unexpected argument 'stray'"),
    (['--config', 'C.py', '--compare', 'absent.csv'], 'cannot read absent.csv'),
    (['--config', 'C.py', '--compare', 'folder'], 'cannot read folder'),
    (['--config', 'C.py', '--compare', 'empty.csv'], "empty.csv has no column 'task'"),
    (['--config', 'C.py', '--compare', 'short.csv'], 'short.csv, line 2'),
    (['--config', 'C.py', '--compare', 'words.csv'], "line 2: value='high' is not a number"),
    (['--config', 'C.py', '--wrkdir', 'x'], 'wrkdir'),
    (['--config', 'C.py', '--workdir='], '--workdir is missing'),
    (['--config', 'C.py', '--workdir', 'file'], 'workdir file cannot be used'),
    (['--config', 'C.py', '--workdir', 'file/x'], 'workdir file/x cannot be used'),
    (['--config', 'C.py', '--workdir', 'W'], 'holds another experiment'),
    (['--config', 'C.py', '--workdir', 'torn'], 'torn/config.json: this is no stored config'),
]  # fmt: skip
EVAL = [
    ([], '--workdir is missing, as in'),
    (['--workdir', 'absent'], 'absent has no config.json; train first'),
    (['--workdir', 'file'], 'file has no config.json'),
    (['--workdir', 'folder'], 'folder has no config.json'),
    (['--workdir', 'torn'], 'torn/config.json: this is no stored config'),
    (['--workdir', 'other'], 'other/config.json: stored config has an unknown field modle.width'),
    (['--workdir', 'list'], 'this is no stored config'),
    (['--workdir', 'binary'], 'this is no stored config'),
    (['--workdir', 'typed'], "config.model.width='wide' should be an integer"),
    (['--workdir', 'evil'], 'scheme'),
    (['--workdir', 'W'], 'has no whole checkpoint of its last step; run train.py'),
    (['--workdir', 'W', '--lengths', '8,x'], '8,x should be whole numbers'),
    (['--workdir', 'W', '--lengths', ''], 'lengths'),
    (['--workdir', 'W', '--lengths', '0'], 'can be asked for lengths'),
    (['--workdir', 'W', '--lengths', '-8'], 'can be asked for lengths'),
    (['--workdir', 'W', '--lengths', '17'], 'can be asked for lengths'),
    (['--workdir', 'W', '--lengths', '99999999999'], 'at most 2147483647'),
    (['--workdir', 'W', '--interventions', 'logm'], "did you mean 'logn'"),
    (['--workdir', 'W', '--interventions', 'shift(by=1.5)'], 'by=1.5 should be an integer'),
    (['--workdir', 'W', '--interventions', 'shift(by=1'], 'not of the form'),
    (['--workdir', 'W', '--interventions', ','], 'eval.interventions is empty'),
    (['--workdir', 'W', '--sequences', '0'], 'config.eval.sequences=0'),
    (['--workdir', 'W', '--sequences', '1.5'], 'sequences'),
    (['--workdir', 'W', '--sequences', '2000000000'], 'of memory'),
    (['--workdir', 'W', 'stray'], "unexpected argument 'stray'"),
    (['--workdir', 'W', '--compare', 'absent.csv'], 'cannot read absent.csv'),
    (['--config', 'C.py'], 'config'),
]  # fmt: skip


@pytest.mark.xdist_group('faults')
@pytest.mark.parametrize(
    ('script', 'args', 'message'),
    [('train.py', *case) for case in TRAIN] + [('eval.py', *case) for case in EVAL],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    places, forks, tmp_path, script, args, message
):
    shutil.copytree(places, tmp_path / 'here')
    before = {p for p in (tmp_path / 'here').rglob('*') if '__pycache__' not in p.parts}
    done = forks.run(script, *args, cwd=tmp_path / 'here')
    assert done.code == 2, done
    (line,) = [line for line in done.err.splitlines() if line.strip()]
    assert line.startswith('error: ') and any(part in line for part in message.split('|')), line
    after = {p for p in (tmp_path / 'here').rglob('*') if '__pycache__' not in p.parts}
    assert {p for p in after - before if not p.name.startswith('.lock')} == set()
