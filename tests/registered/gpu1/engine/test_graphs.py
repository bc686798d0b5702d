"""Rounds as CUDA graphs: they are replayed, wait for nothing, and give the tokens of rounds without graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "cpu" / "engine"))
from launches import RUNS, answer, engine

pytestmark = [
    pytest.mark.register(est_seconds=20, tier="gpu1", stage="pr"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]
ASKED = {"device": "cuda", "dtype": "float32", "kv_stamps": True, "enable_deterministic_inference": True}


@pytest.mark.parametrize("strict", [0, 2])
@pytest.mark.parametrize(("algorithm", "topk"), [run for run in RUNS if run[0] != "NGRAM"])
def test_replayed_rounds_are_the_rounds(algorithm, topk, strict):
    expected = answer(engine(algorithm, topk, disable_cuda_graph=True, **ASKED))
    llm = engine(algorithm, topk, strict_memory=strict, **ASKED)
    rounds = [answer(llm) for _ in range(4)]
    assert rounds == [expected] * 4
    probes, graphs = llm.probes, llm.loop.executor.graphs
    assert probes["graph.replayed"] > probes["graph.eager"] > 0
    assert probes["graph.replayed"] + probes["graph.eager"] == probes["decode.round"]
    assert probes["stamp.checked"] and not probes["stamp.wrong"]
    count, size = graphs.memory
    assert 0 < count <= sum(len(bundle.graphs) for _, bundle in graphs.bundles) and 0 < size < 1 << 30
    shown = llm.readback()
    assert (shown["graphs"], shown["graph_bytes"], shown["cuda_graph_max_bs"]) == (count, size, 4)
    assert int(llm.loop.executor.relay.length[0]) == 0


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_steady_round_waits_for_nothing(version):
    llm = engine("EAGLE3", 3, spec_version=version, **ASKED)
    for _ in range(3):
        answer(llm)
    launch = llm.loop.executor.launch

    def strict(plan):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    llm.loop.executor.launch = strict
    before = llm.probes["graph.eager"]
    answer(llm)
    assert llm.probes["graph.eager"] == before


def test_graphs_beyond_the_limit_make_room():
    llm = engine("EAGLE3", 1, **ASKED)
    llm.loop.executor.graphs.bundles.kept = 2
    first = answer(llm)
    assert [answer(llm) for _ in range(3)] == [first] * 3
    assert [len(bundle.graphs) for _, bundle in llm.loop.executor.graphs.bundles] == [2]
