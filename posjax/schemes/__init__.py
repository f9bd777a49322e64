"""Every scheme, one file each; a file placed in this folder is found by itself.

from posjax.schemes import rope                the class (its name is its name in texts)
from posjax.schemes.rope import rotate         the pure functions beside it
python -m posjax.schemes                       the table of all of them
"""

import importlib
import pkgutil

from posjax.scheme import Scheme

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith('_'):
        importlib.import_module(f'{__name__}.{_module.name}')

# Classes take the place of the modules they are named after as attributes of this package.
globals().update(Scheme.registry)
__all__ = sorted(Scheme.registry)
