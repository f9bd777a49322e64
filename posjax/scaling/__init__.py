"""Every way to change the frequencies of rotations for longer texts, by family.

    rope(scaling=yarn(factor=4.0, original_length=4096))

from posjax.scaling import yarn                the class (its name is its name in texts)
from posjax.scaling.by_parts import blended    the pure functions beside it
"""

import importlib
import pkgutil

from posjax.scaling.scaling import Scaling

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f'{__name__}.{_module.name}')

# Classes take the place of the modules they are named after as attributes of this package.
globals().update(Scaling.registry)
__all__ = sorted(Scaling.registry)
