"""Shapes of graphs; on a CPU a padded round runs as it is and gives what a round without padding gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specmatrix.engine.build import graphs_for
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import StepPlan
from specmatrix.engine.device.cuda_graphs import CudaGraphs, GraphShape, pad_kv_len, padded
from tests.support.engines import RUNS, answer, engine

CPU = torch.device("cpu")


def test_batches_are_padded_to_powers_of_two_and_then_to_eights():
    assert [padded(n) for n in (1, 2, 3, 5, 8, 9, 16, 17, 160)] == [1, 2, 4, 8, 8, 16, 16, 24, 160]


def test_reach_comes_in_steps_of_which_at_most_a_fifth_is_waste():
    assert [pad_kv_len(n, 9999) for n in (1, 256, 257, 2048, 2049, 4097)] == [256, 256, 512, 2048, 2304, 4608]
    assert pad_kv_len(300, 333) == 333
    for bound in range(1500, 30000, 37):
        assert bound <= pad_kv_len(bound, 1 << 20) < 1.2 * bound


def test_what_a_round_is_given_is_padded_with_row_0():
    graphs = CudaGraphs(6, CPU, Counters())
    rows, generations = graphs.set_rows([3, 1, 2], [7, 8, 9])
    assert (rows.tolist(), generations.tolist()) == ([3, 1, 2, 0], [7, 8, 9, 0])
    again, _ = graphs.set_rows([5], [4])
    assert (again.tolist(), again.data_ptr()) == ([5], rows.data_ptr())
    assert graphs.set_rows([3, 1, 2], [7, 8, 9])[1].tolist() == [7, 8, 9, 0]


def test_shapes_are_kept_up_to_a_number():
    graphs = CudaGraphs(4, CPU, Counters(), kept=2)
    for padded_kv_len in (256, 512, 768):
        graphs.run(GraphShape(True, -1, 4, 1, padded_kv_len), StepPlan(False, (), True), dict)
    ((width, bundle),) = graphs.bundles
    assert (width, [shape.padded_kv_len for shape in bundle.graphs]) == (1, [512, 768]) and graphs.memory == (0, 0)
    assert (graphs.counters.counts["graph.eager"], graphs.counters.counts["graph.replayed"]) == (3, 0)


def test_an_engine_holds_no_more_than_requested():
    llm = engine("NONE", 1, cuda_graph_max_gb=3)
    assert "cuda_graph_max_gb" not in llm.readback() and graphs_for(llm.resolved, CPU, llm.loop.counters) is None
    executor = llm.loop.executor
    graphs = graphs_for(replace(llm.resolved, cuda_graph_max_bs=4), CPU, llm.loop.counters)
    executor.run.graphs = graphs
    assert llm.loop.executor.graphs.bundles.max_bytes == 3 << 30
    shown = llm.readback()
    assert (shown["cuda_graph_max_gb"], shown["cuda_graph_max_bs"]) == (3, 4)


@pytest.mark.parametrize(("algorithm", "topk"), [run for run in RUNS if run[0] not in ("NGRAM", "SUFFIX")])
def test_padding_changes_nothing(algorithm, topk):
    """Three requests, padded to four, whose drafts fit the spare slots."""
    options = {"kv_stamps": True, "strict_memory": 2, "enable_deterministic_inference": True, "max_running_requests": 3}
    expected = answer(engine(algorithm, topk, **options))
    llm = engine(algorithm, topk, **options)
    executor = llm.loop.executor
    executor.run.graphs = CudaGraphs(4, CPU, llm.loop.counters)
    assert answer(llm) == expected
    assert llm.counters["graph.eager"] == llm.counters["decode.round"]
    assert executor.relay.length[0] == 0
    assert llm.counters["stamp.checked"] and not llm.counters["stamp.wrong"]


@pytest.mark.parametrize("algorithm", [name for name, topk in RUNS if topk > 1 and name != "NGRAM"])
def test_padding_accepts_one_path_if_the_target_only_generates_token_0(algorithm):
    """Padding begins with a root of token 0 and drafts of no round; equal siblings would all be accepted, more than a
    path has nodes."""
    said = []
    for padding in (False, True):
        llm = engine(algorithm, 4, speculative_num_steps=2, enable_deterministic_inference=True)
        executor = llm.loop.executor
        likely = torch.zeros(executor.target.vocab_size).index_fill_(0, torch.tensor([0]), 1e4)
        logits = executor.target.logits
        executor.target.logits = lambda hidden, logits=logits, likely=likely: logits(hidden) + likely
        if padding:
            executor.run.graphs = CudaGraphs(4, CPU, llm.loop.counters)
        said.append(answer(llm))
    assert said[0] == said[1]


@pytest.mark.parametrize(("largest", "penalty", "batches"), [(2, 0.0, {1, 2}), (4, 1.0, set())])
def test_larger_batches_and_adjusted_logits_run_without_a_graph(largest, penalty, batches):
    llm = engine("NONE", 1)
    executor = llm.loop.executor
    executor.run.graphs = CudaGraphs(largest, CPU, llm.loop.counters)
    llm.generate(["a", "b", "c"], [SamplingParams(max_new_tokens=n, presence_penalty=penalty) for n in (3, 5, 7)])
    assert {shape.batch for _, bundle in executor.graphs.bundles for shape in bundle.graphs} == batches
    assert llm.counters["graph.eager"] == llm.counters["decode.round"] > 1
