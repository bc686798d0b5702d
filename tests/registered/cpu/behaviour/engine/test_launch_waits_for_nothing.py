"""A launch reads no tensor on the host; its uploads go through `engine.device.pinned_copy`, which does not wait.

On a GPU either would make the host wait for the device, so that nothing overlaps at lag 1; tests/registered/gpu1 has
the same runs under CUDA's own detector.
"""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode

from specmatrix.engine.api import LLM
from specmatrix.engine.device import batch as batches
from specmatrix.matrix.conformance.inspector import SyncDetector
from tests.support.engines import RUNS, answer, engine

# Each makes a tensor of the host's numbers, in memory that a GPU cannot read behind the host's back.
UPLOADS = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy)


class Uploads(TorchFunctionMode):
    """Records which function made a tensor from host values."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None) -> object:
        if func in UPLOADS:
            self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def watched(llm: LLM) -> list[str]:
    """Run requests with every kind of sampling; returns what made a launch wait."""
    launch, seen = llm.loop.executor.launch, []

    def spied(plan):
        with SyncDetector() as watch, Uploads() as uploads:
            handle = launch(plan)
        seen.extend([watch.seen] if watch.seen else [])
        seen.extend(uploads.seen)
        return handle

    llm.loop.executor.launch = spied
    answer(llm)
    return seen


@pytest.mark.parametrize(("algorithm", "topk"), RUNS)
def test_no_launch_waits(algorithm, topk):
    batches._index.cache_clear()
    batches._hidden_or_seen.cache_clear()
    assert watched(engine(algorithm, topk, kv_stamps=True)) == []


def test_a_read_and_an_upload_are_seen():
    llm = engine("NONE", 1)
    extend = llm.loop.executor.kv.extend
    llm.loop.executor.kv.extend = lambda rows: (extend(rows), torch.tensor([len(rows)]).item())
    assert set(watched(llm)) == {"Tensor.item", "tensor"}
