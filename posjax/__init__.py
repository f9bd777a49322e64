"""posjax: a laboratory bench for position in attention.

parse, Scheme, scheme, Context     what a scheme is, and how to add one (scheme.py)
chain                              schemes applied in order
apply, init, Model                 the transformer (model.py)
wavelengths                        of a rotary head, in positions
coverage                           what a longer sequence asks that training never met
kernel                             score against distance, of any scheme
from_hf, to_hf                     schemes from and to transformers' configs (interop.py)
convert                            weights between the pairings of rotary dims (convert.py)
load                               a trained run, for analysis
"""

from posjax import convert, schemes, tasks
from posjax.analysis import LoadedRun, load
from posjax.coverage import coverage
from posjax.interop import from_hf, to_hf
from posjax.kernel import kernel
from posjax.model import Model, apply, init
from posjax.scheme import Context, Dims, Scheme, chain, parse, scheme
from posjax.schemes.rope import wavelengths

__all__ = [
    'Context', 'Dims', 'LoadedRun', 'Model', 'Scheme', 'apply', 'chain', 'convert', 'coverage',
    'from_hf', 'init', 'kernel', 'load', 'parse', 'scheme', 'schemes', 'tasks', 'to_hf',
    'wavelengths',
]  # fmt: skip
