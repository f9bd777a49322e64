"""Named changes of the scheme at evaluation, by family; a file placed in this folder is found.

yarn(factor=4.0)|logn        one after the other
"""

import importlib
import pkgutil

from posjax.interventions.intervention import InOrder, Intervention, parse

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f'{__name__}.{_module.name}')

__all__ = ['InOrder', 'Intervention', 'parse']
