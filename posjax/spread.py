"""Which devices have which sequences of a batch, where several share one run.

What trains and evaluates one run knows no devices: it calls such a function on the rows of a batch,
and sweep.py, which does, hands one in.
"""

from collections.abc import Callable
from typing import Any

Spread = Callable[[Any], Any]


def alone(rows):
    """All sequences are on one device."""
    return rows
