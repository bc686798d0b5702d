"""What every test of the engine shares: one compute thread, and where the zoo's checkpoints lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

CHECKPOINTS = Path(__file__).parents[4] / "matrix" / "zoo" / "checkpoints"


@pytest.fixture(scope="session", autouse=True)
def single_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def zoo():
    """The folder of a zoo checkpoint by its name."""
    return lambda name: CHECKPOINTS / name
