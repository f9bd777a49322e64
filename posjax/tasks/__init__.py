"""Every task, one file each; a file placed in this folder is found by itself."""

import importlib
import pkgutil

from posjax.tasks.task import Task

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith('_'):
        importlib.import_module(f'{__name__}.{_module.name}')

globals().update(Task.registry)
__all__ = sorted(Task.registry)
