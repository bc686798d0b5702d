"""Rounds as CUDA graphs are replayed, never wait, and give the tokens of rounds without graphs."""

from __future__ import annotations

import gc

import pytest
import torch

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import padded
from tests.support.engines import PROMPT, RUNS, answer, engine, waits_for_nothing

pytestmark = pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
LINES = r"( [A-Z][^\n]*\n){1,2}#### [0-9]{3}"
ASKED = {"device": "cuda", "dtype": "float32", "kv_stamps": True, "enable_deterministic_inference": True}


@pytest.mark.parametrize("strict", [0, 2])
@pytest.mark.parametrize(("algorithm", "topk"), [run for run in RUNS if run[0] not in ("NGRAM", "SUFFIX")])
def test_replayed_rounds_are_the_rounds(algorithm, topk, strict):
    expected = answer(engine(algorithm, topk, disable_cuda_graph=True, **ASKED))
    llm = engine(algorithm, topk, strict_memory=strict, **ASKED)
    rounds = [answer(llm) for _ in range(4)]
    assert rounds == [expected] * 4
    counters, graphs = llm.counters, llm.loop.executor.graphs
    assert counters["graph.replayed"] > counters["graph.eager"] > 0
    assert counters["graph.replayed"] + counters["graph.eager"] == counters["decode.round"]
    assert counters["stamp.checked"] and not counters["stamp.wrong"]
    count, size = graphs.memory
    assert 0 < count <= sum(len(bundle.graphs) for _, bundle in graphs.bundles) and 0 < size < 1 << 30
    shown = llm.readback()
    assert (shown["graphs"], shown["graph_bytes"], shown["cuda_graph_max_bs"]) == (count, size, 4)
    assert shown["cuda_graph_max_gb"] == llm.resolved.cuda_graph_max_gb == 4
    assert int(llm.loop.executor.relay.length[0]) == 0


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_steady_round_waits_for_nothing(version):
    llm = engine("EAGLE3", 3, spec_version=version, **ASKED)
    for _ in range(3):
        answer(llm)
    waits_for_nothing(llm)
    before = llm.counters["graph.eager"]
    answer(llm)
    assert llm.counters["graph.eager"] == before


@pytest.mark.parametrize("masks", [{"disable_grammar_tables": True}, {}, {"speculative_constrained_drafts": True}])
@pytest.mark.parametrize(("version", "topk"), [("v1", 1), ("v2", 1), ("v2", 3)])
def test_a_round_with_a_grammar_is_one_graph_or_two_around_the_hosts_masks(version, topk, masks):
    def texts(llm):
        prompt = llm.tokenizer.encode(PROMPT)
        given = [SamplingParams(40, regex=LINES), SamplingParams(24), SamplingParams(40, 0.8, regex=LINES, seed=3)]
        return [one.output_ids for one in llm.generate([prompt, prompt[:-2], prompt[:-1]], given)]

    llm = engine("EAGLE3", topk, disable_cuda_graph=True, spec_version=version, **ASKED)
    expected, llm = texts(llm), engine("EAGLE3", topk, spec_version=version, strict_memory=1, **ASKED, **masks)
    assert [texts(llm) for _ in range(4)] == [expected] * 4
    counters, graphs = llm.counters, llm.loop.executor.graphs
    assert counters["graph.replayed"] > counters["graph.eager"] > 0 == counters["graph.waited"]
    parts = [len(one.parts) for _, bundle in graphs.bundles for shape, one in bundle.graphs.items() if one]
    assert (
        {3 if llm.resolved.disable_grammar_tables else 1} == set(parts)
        and counters["grammar.changed"]
        and counters["stamp.checked"]
    )
    waits_for_nothing(llm)
    assert texts(llm) == expected


def test_the_hosts_work_may_fail_in_a_capture_and_changes_no_token(monkeypatch):
    given = [SamplingParams(40, regex=LINES)] * 2
    asked = {**ASKED, "disable_grammar_tables": True}
    llm = engine("EAGLE3", 1, disable_cuda_graph=True, **asked)
    prompt = llm.tokenizer.encode(PROMPT)
    expected, llm = [one.output_ids for one in llm.generate([prompt, prompt[:-1]], given)], engine("EAGLE3", 1, **asked)
    graphs, write, failed = llm.loop.executor.graphs, llm.loop.executor.plain.masks._write, []

    def failing(*given: object) -> None:
        if graphs._parts and not failed:
            failed.append(1)
            raise RuntimeError("on the host")
        write(*given)

    monkeypatch.setattr(llm.loop.executor.plain.masks, "_write", failing)
    assert [[one.output_ids for one in llm.generate([prompt, prompt[:-1]], given)] for _ in range(3)] == [expected] * 3
    assert failed and graphs.made > 1


def test_graphs_beyond_the_limit_make_room():
    llm = engine("EAGLE3", 1, **ASKED)
    llm.loop.executor.graphs.bundles.kept = 2
    first = answer(llm)
    assert [answer(llm) for _ in range(3)] == [first] * 3
    assert [len(bundle.graphs) for _, bundle in llm.loop.executor.graphs.bundles] == [2]


def test_at_the_edge_of_the_memory_an_engine_that_repeats_itself_captures_nothing_any_more():
    llm = engine("EAGLE3", 1, **ASKED)
    *_, expected = [answer(llm) for _ in range(3)]
    count, size = llm.loop.executor.graphs.memory
    assert count > 1
    tight = engine("EAGLE3", 1, **ASKED)
    graphs = tight.loop.executor.graphs
    graphs.bundles.max_bytes = size - 1
    assert [answer(tight) for _ in range(count + 3)] == [expected] * (count + 3)
    made = graphs.made
    assert [answer(tight) for _ in range(3)] == [expected] * 3
    assert graphs.made == made > 0 and graphs.memory[1] < size


def test_graphs_beyond_the_memory_are_dropped_and_run_without():
    expected = answer(engine("EAGLE3", 1, disable_cuda_graph=True, **ASKED))
    llm = engine("EAGLE3", 1, **ASKED)
    graphs = llm.loop.executor.graphs
    graphs.bundles.max_bytes = 0
    assert [answer(llm) for _ in range(6)] == [expected] * 6
    assert graphs.memory == (0, 0) and graphs.made == graphs.bundles.dropped == llm.counters["graph.replayed"] > 1
    made = graphs.made
    assert answer(llm) == expected
    assert llm.counters["graph.replayed"] == graphs.made == made
    assert llm.counters["graph.replayed"] + llm.counters["graph.eager"] == llm.counters["decode.round"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_change_of_depth_swaps_the_bundle(version):
    slots = '{"ema_alpha": 0.5, "update_interval": 2, "warmup_batches": 1, "1": {"candidate_steps": [1, 3, 5]}}'
    adaptive = {"speculative_adaptive": True, "speculative_adaptive_config": slots, "strict_memory": 1}
    expected = answer(engine("NONE", 1, disable_cuda_graph=True, **ASKED))
    llm = engine("EAGLE3", 1, spec_version=version, **ASKED, **adaptive)
    assert [answer(llm) for _ in range(12)] == [expected] * 12
    executor, rounds = llm.loop.executor, llm.loop.scheduler.steps.rounds
    reached = {(padded(batch), width) for batch, width in rounds}
    bundles = dict(executor.graphs.bundles)
    assert {(shape.batch, width) for width, bundle in bundles.items() for shape in bundle.graphs} == reached
    assert len({width for _, width in reached}) > 1 and len({bundle.pool for bundle in bundles.values()}) == len(
        bundles
    )
    shown = llm.readback()["graph_widths"]
    assert sum(shown.values()) == executor.graphs.memory[0] and set(shown) == {width for _, width in reached}
    counters = llm.counters
    assert counters["graph.replayed"] + counters["graph.eager"] == counters["decode.round"] == len(rounds)
    assert counters["graph.replayed"] > 0 == counters["graph.waited"]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_capture_that_breaks_off_changes_no_token(monkeypatch, error, version):
    expected = answer(engine("EAGLE3", 3, disable_cuda_graph=True, **ASKED))
    llm = engine("EAGLE3", 3, spec_version=version, strict_memory=2, **ASKED)
    broken = []
    absorb = llm.loop.executor.drafter.absorb

    def breaking(*given: object):
        state = absorb(*given)
        if torch.cuda.is_current_stream_capturing() and len(given[0].rows) == 4 and not broken:
            broken.append(llm.loop.executor.graphs.made)
            raise error("in a capture")
        return state

    monkeypatch.setattr(llm.loop.executor.drafter, "absorb", breaking)
    for _ in range(6):
        try:
            assert answer(llm) == expected
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
    assert len(broken) == 1 and llm.health == "ok"
    assert llm.loop.executor.graphs.made > 0 and llm.counters["graph.replayed"] > 0


def test_what_a_graph_that_is_there_waits_for_is_counted():
    llm = engine("EAGLE3", 1, strict_memory=1, **ASKED)
    for _ in range(3):
        answer(llm)
    assert llm.counters["graph.replayed"] > 0 == llm.counters["graph.waited"]
    extend, length = llm.loop.executor.kv.extend, llm.loop.executor.relay.length
    llm.loop.executor.kv.extend = lambda rows: (extend(rows), length.max().item())
    before = llm.counters["graph.replayed"]
    answer(llm)
    assert llm.counters["graph.waited"] == llm.counters["graph.replayed"] - before > 0
    assert torch.cuda.get_sync_debug_mode() == 0


def test_graphs_survive_memory_freed_elsewhere():
    """A model beside the engine, such as a compiled one, may clear cuBLAS's workspaces and free memory."""
    asked = ASKED | {"enable_deterministic_inference": False}
    before = engine("EAGLE3", 1, **asked)
    answer(before), answer(before)
    llm = engine("EAGLE3", 1, **asked)
    # Streams come from a ring, so a later engine may capture on the stream of one that is gone.
    llm.loop.executor.graphs._stream = before.loop.executor.graphs._stream
    expected = [answer(llm) for _ in range(2)][1]
    del before
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    assert answer(llm) == expected
