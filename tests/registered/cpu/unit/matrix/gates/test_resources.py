"""The gate of a GPU's resources, on what torch and the driver would count; and what records it, on a CPU."""

import gc
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from weakref import ref

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.device.cuda_graphs import GIB, CudaGraphs, GraphCache, GraphShape
from specmatrix.engine.device.staging import StepOutput
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.resources import ResourcesGate
from specmatrix.matrix.run.runner import reference_runner
from specmatrix.matrix.subjects.observations import GraphRound, Resources
from specmatrix.matrix.subjects.resource_log import ResourceRecorder
from specmatrix.matrix.zoo.registry import resolve_path

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
ONE, TWO = (True, -1, 2, 8, 256, False), (True, -1, 4, 8, 256, False)
START = GraphRound((), 0, 0)
EAGER, CAPTURED, REPLAYED = (0, 0), (1, 1), (0, 1)
FIRST = (START, GraphRound(ONE, *EAGER), GraphRound(TWO, *EAGER))
STEADY = (*FIRST, GraphRound(ONE, *CAPTURED), GraphRound(ONE, *REPLAYED))
SEEN = Resources(
    rounds=STEADY, captures=1, replays=2, edges=100, early=60, can_launch_early=True, started_bytes=10 << 20,
    budget_bytes=10 << 20, pool_bytes=4096, limit_gb=3, max_shapes=64, bypassed=0, oversized=0,
)  # fmt: skip


@pytest.fixture
def judged(measured):
    def judge(seen=SEEN, graphs=1, graph_bytes=4096):
        readback = {"graphs": graphs, "graph_bytes": graph_bytes}
        return measured(CELL).judge(ResourcesGate(), resources=seen, readback=readback)

    return judge


def test_the_gate_judges_engines_of_one_rank_on_a_gpu(measured):
    found, gate = measured(CELL), ResourcesGate()
    assert gate.applies(found.prepared.cell) and not gate.applies(Cell(tp="2"))
    record = reference_runner(0).run_cell(Cell.from_id("none.length"))
    assert record.gate("leaks") and record.gate("resources") is None
    assert found.verdict(gate) == "NOT MEASURED: the subject does not show what it takes of its GPU"
    silent = {name: value for name, value in found.run.readback.items() if name not in ("graphs", "graph_bytes")}
    none = replace(SEEN, rounds=FIRST, captures=0, replays=0, pool_bytes=0)
    assert found.verdict(gate, replace(found.run, readback=silent), resources=none) == "PASS"


def test_a_steady_state_passes_with_its_numbers(judged):
    outcome = judged()
    assert (outcome.gate, outcome.state) == ("resources", State.PASS)
    counts = {"rounds": 4, "shapes": 2, "captures": 1, "replays": 2, "unsteady": 0, "bypassed": 0, "oversized": 0}
    memory = {"started_mb": 10.0, "budget_mb": 10.0, "memory_ratio": 1.0, "graphs_mb": 0.0}
    assert outcome.numbers == {**counts, **memory, "edges": 100, "early_share": 0.6}
    renewed = replace(SEEN, rounds=(*STEADY, START, GraphRound(ONE, *EAGER), GraphRound(ONE, *CAPTURED)))
    assert judged(renewed).state is State.PASS


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rounds": (*STEADY, GraphRound(ONE, *CAPTURED))}, f"round 5 is number 4 of its shape {ONE} and had 1"),
        ({"rounds": (*STEADY, GraphRound(ONE, *EAGER))}, f"round 5 is number 4 of its shape {ONE} and had 0 captures"),
        ({"rounds": (*STEADY, GraphRound(TWO, *EAGER))}, f"round 5 is number 2 of its shape {TWO} and had 0 captures"),
        ({"rounds": (*STEADY, START, GraphRound(ONE, *REPLAYED))}, f"round 6 is number 1 of its shape {ONE} and had 0"),
        ({"bypassed": 3}, "3 rounds asked for no CUDA graph, although their batch and requests allow one"),
        ({"oversized": 2}, "2 rounds ran as CUDA graphs with more requests than cuda_graph_max_bs allows"),
        ({"started_bytes": 12 << 20}, "the start took 12.0 MiB of the GPU, but 10.0 MiB were budgeted for it; allowed"),
        ({"started_bytes": 5 << 20}, "the start took 5.0 MiB of the GPU, but 10.0 MiB were budgeted for it; allowed"),
        ({"pool_bytes": 8192}, "the engine reports 4096 bytes of CUDA graphs, torch's allocator 8192"),
        ({"captures": 0}, "the engine reports 1 CUDA graphs, but torch captured 0"),
        ({"early": 2}, "2 of 100 kernels in CUDA graphs start early, allowed: at least a share of 0.03"),
    ],
)
def test_what_is_lost_is_red(judged, changes, text):
    outcome = judged(replace(SEEN, **changes))
    assert outcome.state is State.FAIL and outcome.message.startswith(text)
    assert outcome.numbers["unsteady"] == int("rounds" in changes)


def test_graphs_above_their_limit_are_red_and_old_gpus_have_no_early_launches(judged):
    much = replace(SEEN, pool_bytes=3 * GIB + 1)
    outcome = judged(much, graph_bytes=3 * GIB + 1)
    assert outcome.message == f"CUDA graphs take {3 * GIB + 1} bytes, above cuda_graph_max_gb 3"
    assert judged(replace(SEEN, pool_bytes=3 * GIB), graph_bytes=3 * GIB).state is State.PASS
    assert judged(replace(SEEN, early=0, can_launch_early=False)).state is State.PASS
    assert judged(replace(SEEN, early=0, edges=0, captures=0, rounds=(START,)), graphs=0).state is State.PASS


@pytest.mark.parametrize("kept", [1, 2, 3, 5])
def test_a_width_with_more_shapes_than_are_kept_has_the_graphs_that_the_engine_keeps(judged, kept):
    cache, draw, rounds = GraphCache[str](lambda bundle: 0, kept), Random(kept), [START]
    for _ in range(400):
        grammar = draw.random() < 0.3
        shape = GraphShape(True, -1, 1 << draw.randrange(4), draw.choice((5, 8)), draw.choice((256, 512)), 2 * grammar)
        bundle, due = cache.swap(shape.width), EAGER
        if cache.seen(shape):
            due = REPLAYED if bundle.graphs[shape] else CAPTURED
            cache.keep(shape, "a graph")
        rounds.append(GraphRound(tuple(shape), *(count * (1 + grammar) for count in due)))
    assert {one[1:] for one in rounds} >= {EAGER, CAPTURED, REPLAYED, *[(0, 2)] * (kept > 2)}
    assert judged(replace(SEEN, rounds=tuple(rounds), max_shapes=kept)).state is State.PASS
    wrong = judged(replace(SEEN, rounds=(*rounds, rounds[-1]._replace(captures=9)), max_shapes=kept))
    assert wrong.numbers["unsteady"] == 1 and "had 9 captures" in wrong.message
    assert judged(replace(SEEN, rounds=tuple(rounds), max_shapes=kept + 1)).state is State.FAIL


class RoundsExecutor:
    """An executor whose launches run rounds of the given shapes."""

    def __init__(self) -> None:
        self.graphs = CudaGraphs(4, torch.device("cpu"), Counters())

    def launch(self, plan: SimpleNamespace) -> object:
        if not plan.shape:
            return None
        return self.graphs.run(GraphShape(*plan.shape), plan, lambda: StepOutput(torch.zeros(1), torch.zeros(1)))


def test_rounds_are_recorded_and_nothing_is_kept_alive(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    chip = SimpleNamespace(major=9, shared_memory_per_block_optin=227 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
    config = replace(asked(Cell.from_id("none")), cuda_graph_max_bs=2, cuda_graph_max_gb=3)
    llm = LLM(asked(Cell.from_id("none")), resolve_path)
    executor = RoundsExecutor()
    llm.loop.executor, launched = executor, []
    recorder = ResourceRecorder(llm, config, resolve_path, 0)

    def run(shape=(), rows=1, prefill=False, adjusts=False):
        launched.append(SimpleNamespace(shape=shape, rows=[0] * rows, prefill=prefill, adjusts=adjusts))
        executor.launch(launched[-1])

    run(ONE), run(ONE), run(prefill=True), run(adjusts=True), run(rows=3)
    seen = recorder.read()
    assert seen.rounds == (START, GraphRound(ONE, 0, 0), GraphRound(ONE, 0, 0))
    assert (seen.captures, seen.replays, seen.bypassed, seen.limit_gb, seen.can_launch_early) == (0, 0, 0, 3, True)
    assert seen.budget_bytes > 30 << 20 and seen.pool_bytes == seen.started_bytes == 0
    run(rows=2), run(TWO, rows=3)
    assert (recorder.read().bypassed, recorder.read().oversized) == (1, 1)
    old = ref(executor.graphs)
    executor = RoundsExecutor()
    gc.disable()
    try:
        llm.loop.executor = executor
        recorder.attach(executor)
        assert old() is None, "the old executor's memory is given back at once"
    finally:
        gc.enable()
    assert recorder.read().rounds[-1] == START
