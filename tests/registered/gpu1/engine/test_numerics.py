"""Production's numerics beyond cells: pools past 2^31 numbers, more shapes than caches hold, resource counts."""

from __future__ import annotations

import gc

import pytest
import torch

from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.batch import count, round_bias
from specmatrix.engine.device.cuda_graphs import KEPT
from specmatrix.engine.spec.drafter import shared_chain
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.resources import ResourcesGate
from specmatrix.matrix.run.requests import run_requests
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.workloads.prepared_cell import prepare
from tests.support.engines import PROMPT, answer, engine

MODES = [
    pytest.param({"dtype": dtype, "enable_deterministic_inference": steady}, id=f"{dtype}-{steady}")
    for dtype, steady in (("float32", True), ("bfloat16", True), ("bfloat16", False))
]
# Of 128 numbers a layer, so that a layer's offsets exceed 2^31 by far.
HUGE = 20_000_000


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize(("algorithm", "topk"), [("EAGLE3", 3), ("STANDALONE", 1)])
def test_pages_behind_two_to_the_31_numbers_hold_what_they_should(algorithm, topk, mode):
    asked = {"device": "cuda", "page_size": 256, "chunked_prefill_size": 8, **mode}
    small = engine(algorithm, topk, **asked, max_total_tokens=4096)
    expected = [answer(small) for _ in range(3)]
    del small
    llm = engine(algorithm, topk, **asked, max_total_tokens=HUGE)
    pool = llm.loop.executor.kv.full.pools[0]
    llm.loop.scheduler.ledger.groups[0].free.reverse()
    assert pool.rows[0].numel() > 2**31
    assert [answer(llm) for _ in range(3)] == expected
    end = pool.rows[0].shape[0] - len(pool.spare)
    assert pool.rows[0][end - 4096 : end].count_nonzero() > 0, "the last pages were used"


@pytest.mark.parametrize("mode", MODES)
def test_more_shapes_than_are_kept_stay_right_and_soon_steady(mode):
    llm = engine("EAGLE3", 1, device="cuda", **mode)
    prompt = llm.tokenizer.encode(PROMPT)
    asks = [SamplingParams(max_new_tokens=9, ignore_eos=True, top_logprobs_num=best) for best in range(KEPT + 6)]

    def tokens() -> list[tuple[int, ...]]:
        return [llm.generate([prompt], ask)[0].output_ids for ask in asks]

    first = tokens()
    assert len(set(first)) == 1
    graphs = llm.loop.executor.graphs
    assert [tokens() for _ in range(2)] == [first] * 2
    made = graphs.made
    assert tokens() == first and graphs.made == made
    assert max(bundle.count for _, bundle in graphs.bundles) == KEPT


@pytest.mark.parametrize("mode", MODES)
def test_graphs_survive_what_fills_the_tables_that_rounds_share(mode):
    llm = engine("EAGLE3", 1, device="cuda", **mode)
    expected = [answer(llm) for _ in range(3)][-1]
    device = torch.device("cuda")
    for size in range(1, 300):
        shared_chain(torch.zeros(size, 2 + size % 7, dtype=torch.int64, device=device))
        count(64 << size % 9, device)
        positions = torch.zeros(size, 1, dtype=torch.int64, device=device)
        round_bias(positions, size + 1, torch.float32)
    gc.collect()
    torch.cuda.empty_cache()
    waste = [torch.full((1 << 16,), -1, dtype=torch.int64, device=device) for _ in range(64)]
    assert answer(llm) == expected
    del waste


def test_what_the_gate_reads_is_there_and_says_what_the_engine_did():
    prepared, subject = prepare(Cell.from_id("eagle3.s3.k4.n8.v2.fast.mixed_lengths"), "gpu1"), ReferenceSubject()
    running = subject.start_engine(prepared.configuration)
    run = run_requests(running, prepared.requests, subject.profile.capabilities)
    seen = run.resources
    assert seen is not None and seen.captures > 0 and seen.edges > 0
    assert seen.replays == run.evidence["graph.replayed"] and seen.pool_bytes > 0
    assert ResourcesGate().judge(prepared, run, run).state is State.PASS
