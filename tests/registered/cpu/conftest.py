"""The CPU tier: a GPU of this machine is no part of it, and Triton's kernels run in its interpreter.

Both are read when torch and triton are first imported.
"""

import os
import signal
from collections.abc import Iterator

import pytest

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TRITON_INTERPRET"] = "1"
# Runs where it is named: the nightly workflow does.
collect_ignore = ["nightly"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT has its default meaning, here and for processes that are started meanwhile: a shell's background job is
    born ignoring it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
