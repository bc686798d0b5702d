"""Python's cyclic collector around work that builds many records."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Python 3.12 keeps its immortal objects frozen, some hundred of them.
IMMORTAL: Final = 5000
MANY: Final = 100_000  # objects that are quickly gone through


@contextmanager
def paused() -> Iterator[None]:
    """Stops the cyclic collector; also a decorator.

    Records hold no cycles, and going through all of them again and again while they are built takes a fifth of the
    time of a large comparison. What was built becomes old at the end without being gone through.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            # Thawing would also free what the caller froze, so a caller that freezes pays one pass over the records.
            # Counting what is frozen is a pass over that.
            if gc.get_count()[0] > MANY and gc.get_freeze_count() < IMMORTAL:
                gc.freeze()
                gc.unfreeze()
            gc.enable()
