"""posjax: a laboratory bench for position in attention.

parse, Scheme, scheme, Context     what a scheme is, and how to add one (scheme.py)
chain                              schemes applied in order
apply, init, Model                 the transformer (model.py)
wavelengths                        of a rotary head, in positions
coverage                           what a longer sequence asks that training never met
kernel                             score against distance, of any scheme
load                               a trained run, for analysis
"""

from posjax import schemes, tasks
from posjax.analysis import LoadedRun, load
from posjax.coverage import coverage
from posjax.kernel import kernel
from posjax.model import Model, apply, init
from posjax.scheme import Context, Dims, Scheme, chain, parse, scheme
from posjax.schemes.rope import wavelengths

__all__ = [
    'Context', 'Dims', 'LoadedRun', 'Model', 'Scheme', 'apply', 'chain', 'coverage', 'init',
    'kernel', 'load', 'parse', 'scheme', 'schemes', 'tasks', 'wavelengths',
]  # fmt: skip
