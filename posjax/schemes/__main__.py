"""`python -m posjax.schemes` prints the taxonomy; with names, explains those schemes."""

import sys

from posjax.scheme import Scheme
from posjax.taxonomy import explained, markdown
from posjax.text import suggest

if __name__ == '__main__':
    names = sys.argv[1:]
    unknown = [name for name in names if name not in Scheme.registry]
    if unknown:
        print(f'error: unknown scheme {unknown[0]!r}{suggest(unknown[0], Scheme.registry)}',
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
    print('\n\n'.join(explained(Scheme.registry[name]) for name in names) or markdown())
