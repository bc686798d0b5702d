"""State of the process that an algorithm may change by accident, and that other code depends on."""

from __future__ import annotations

import gc
import os
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch

from specmatrix.engine.spec.torch_settings import TORCH_SETTINGS, Setting, read, restore

PROCESS_STATE: Final = (
    *TORCH_SETTINGS,
    Setting("the working directory", os.getcwd, os.chdir),
    Setting(
        "torch's random number generator",
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda state: torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
        shown=False,
    ),
    Setting(
        "numpy's random number generator",
        lambda: pickle.dumps(np.random.get_state()),
        lambda state: np.random.set_state(pickle.loads(state)),
        shown=False,
    ),
    Setting("Python's random number generator", random.getstate, random.setstate, shown=False),
)
# The driver of a device and a library may keep some files open after their first use.
MAX_LEFT_OPEN: Final = 8


@contextmanager
def restored_process_state() -> Iterator[list[str]]:
    """Restores PROCESS_STATE at the end; what had changed is then in the list, such as "changed the working directory
    from /home to /tmp", "left 24 more files open than before"."""
    found: list[str] = []
    gc.collect()  # files of earlier objects would be closed in between
    before, files = read(PROCESS_STATE), _open_files()
    try:
        yield found
    finally:
        left = _open_files() - files
        changed = restore(before, PROCESS_STATE)
        found += [changed] if changed is not None else []
        found += [f"left {left} more files open than before"] if left > MAX_LEFT_OPEN else []


def _open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())
