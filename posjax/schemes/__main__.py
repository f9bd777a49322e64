"""`python -m posjax.schemes` prints the taxonomy; with a name, explains that scheme."""

import inspect
import sys

from posjax.scheme import Scheme
from posjax.taxonomy import markdown
from posjax.text import suggest

if __name__ == '__main__':
    names = sys.argv[1:]
    unknown = [name for name in names if name not in Scheme.registry]
    if unknown:
        sys.exit(f'unknown scheme {unknown[0]!r}{suggest(unknown[0], Scheme.registry)}')
    for name in names:
        print(
            f'{name}\n\n{inspect.getdoc(Scheme.registry[name])}\n\n{Scheme.registry[name].paper}\n'
        )
    if not names:
        print(markdown())
