"""Trains and evaluates what a config describes.

python train.py --config configs/quickstart.py
python train.py --config configs/blog.py --config.seeds=8 --workdir runs/blog8
"""

from absl import flags
from ml_collections import config_flags

from posjax import command

_CONFIG = config_flags.DEFINE_config_file('config', None, 'A file of configs/; required.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Where results go; runs/<config name> by default.')
_COMPARE = flags.DEFINE_list('compare', None, 'CSV files of published results to compare with.')
_SHARD = flags.DEFINE_string('shard', None, 'i/n: one of n jobs that share the groups of a sweep.')

if __name__ == '__main__':
    command.main(lambda: command.train(_CONFIG, _WORKDIR.value, _COMPARE.value, _SHARD.value))
