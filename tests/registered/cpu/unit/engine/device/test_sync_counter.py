"""torch's warnings of waits in a launch are counted for a replayed graph; all other warnings are re-issued.

torch's own words stand in for a GPU, which tests/registered/gpu1 has.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.device.cuda_graphs import CudaGraphs
from specmatrix.engine.device.sync_counter import WAITED, SyncCounter


@pytest.fixture
def graphs(monkeypatch):
    """Graphs of a device whose debug mode is set with torch's warning, the modes that it was set to, and the one watch
    around all launches."""
    made = CudaGraphs(2, torch.device("cpu"), Counters())
    made.modes, made.watch = [], SyncCounter(made)

    def set_mode(mode):
        made.modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 2)
    return made


def launch(graphs, waits: int, replayed: int = 1, made: int = 0) -> int:
    """How much `graph.waited` rises by one launch."""
    before = graphs.counters.counts["graph.waited"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        with graphs.watch:
            for _ in range(waits):
                warnings.warn(f"{WAITED} (Triggered internally)", UserWarning, stacklevel=1)
            graphs.counters.hit("graph.replayed", replayed)
            graphs.made += made
    return graphs.counters.counts["graph.waited"] - before


def test_waits_of_a_replayed_round_are_counted(graphs):
    assert [launch(graphs, waits) for waits in (0, 1, 3, 0)] == [0, 1, 3, 0]
    assert graphs.modes == ["warn", 2] * 4


def test_what_makes_a_graph_or_has_none_may_wait(graphs):
    assert launch(graphs, 2, made=1) == launch(graphs, 2, replayed=0) == 0


def test_other_warnings_are_passed_on_and_so_are_errors(graphs):
    with pytest.warns(RuntimeWarning, match="drafter disabled") as caught, SyncCounter(graphs):
        warnings.warn("drafter disabled", RuntimeWarning, stacklevel=1)
        warnings.warn(WAITED, UserWarning, stacklevel=1)
    assert [str(one.message) for one in caught if one.category is RuntimeWarning] == ["drafter disabled"]
    assert not [one for one in caught if WAITED in str(one.message)]
    with pytest.raises(ZeroDivisionError), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        with SyncCounter(graphs):
            _ = 1 / 0
    assert graphs.modes[-1] == 2
