"""Evaluates the checkpoints of a workdir again: other lengths, other interventions.

python eval.py --workdir runs/blog --lengths 32,64,128,256 --interventions none,logn
"""

from absl import flags

from posjax import command

_WORKDIR = flags.DEFINE_string('workdir', None, 'A folder that train.py wrote; required.')
_LENGTHS = flags.DEFINE_list('lengths', None, 'Sequence lengths in tokens; as trained by default.')
_INTERVENTIONS = flags.DEFINE_string('interventions', None, 'Texts, separated by commas.')
_SEQUENCES = flags.DEFINE_integer('sequences', None, 'Fresh sequences at each length.')
_COMPARE = flags.DEFINE_list('compare', None, 'CSV files of published results to compare with.')

if __name__ == '__main__':
    command.main(lambda: command.evaluate(_WORKDIR.value, _LENGTHS.value, _INTERVENTIONS.value,
                                          _SEQUENCES.value, _COMPARE.value))  # fmt: skip
