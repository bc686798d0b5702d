"""The CPU tier: GPUs are hidden, and Triton's kernels run in its interpreter. Both settings are read when torch and
triton are first imported."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specmatrix import HOME

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TRITON_INTERPRET"] = "1"
# Runs where it is named: the nightly workflow does.
collect_ignore = ["nightly"]


def pytest_collection_finish() -> None:
    """What is loaded now stays, so the garbage collector need not look at it after every few tests."""
    gc.freeze()
    gc.set_threshold(20000, 20, 20)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT has its default handler, here and in child processes, as background jobs of a shell ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


CHECKPOINTS = HOME / "matrix" / "zoo" / "checkpoints"


@pytest.fixture(scope="session", autouse=True)
def single_thread() -> None:
    """Two compute threads on a shared machine with two cores mostly wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def zoo() -> Callable[[str], Path]:
    """The folder of a zoo checkpoint by its name."""
    return lambda name: CHECKPOINTS / name
