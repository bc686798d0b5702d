"""Counts host-device synchronisations during CUDA-graph replay; the expected count is zero.

torch reports each synchronising operation as a warning. Launches that create kernels, tables or graphs may synchronise.
"""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Final

import torch

from specmatrix.engine.device.cuda_graphs import CudaGraphs

# torch's texts for a synchronising operation, and for enabling the sync debug mode.
WAITED: Final = "called a synchronizing CUDA operation"
LISTENS: Final = "Synchronization debug mode"


class SyncCounter:
    """A reusable context around launches on a GPU. Other warnings of the launch are re-issued."""

    def __init__(self, graphs: CudaGraphs) -> None:
        self._graphs = graphs
        self._before = self._rounds()
        self._mode = 0
        self._listening = warnings.catch_warnings(record=True)
        self._caught: list[warnings.WarningMessage] = []

    def __enter__(self) -> None:
        self._before = self._rounds()
        self._listening = warnings.catch_warnings(record=True)
        caught = self._listening.__enter__()
        assert caught is not None
        self._caught = caught
        warnings.simplefilter("always")
        self._mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.cuda.set_sync_debug_mode(self._mode)
        self._listening.__exit__(kind, error, trace)
        waits = sum(WAITED in str(one.message) for one in self._caught)
        replayed, made = self._rounds()
        if (replayed, made) == (self._before[0] + 1, self._before[1]):
            self._graphs.counters.hit("graph.waited", waits)
        for one in self._caught:
            if not any(words in str(one.message) for words in (WAITED, LISTENS)):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)

    def _rounds(self) -> tuple[int, int]:
        """Number of rounds replayed, and of graphs captured, so far."""
        return self._graphs.counters.counts["graph.replayed"], self._graphs.made
