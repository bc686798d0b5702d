from dataclasses import replace

import pytest

from specmatrix.matrix.gates.config import EffectiveGate, nearest_first
from specmatrix.matrix.gates.evidence import EVIDENCE, GPU_EVIDENCE
from specmatrix.matrix.gates.gate import Outcome, State

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
GATE = EffectiveGate()
DETERMINISTIC = "enable_deterministic_inference"
OTHER_OPTIONS = [("draft 0", "dtype", "bfloat16"), ("draft 0", DETERMINISTIC, False), ("KV pool 1", "page_size", 4)]


@pytest.mark.parametrize("cell_id", [CELL, "none.v2.session_retract.pair.stream.length", "eagle3.flat.v2.ramp.length"])
def test_the_reference_engine_shows_all_evidence(measured, cell_id):
    assert measured(cell_id).verdict(GATE) == "PASS" and measured(cell_id).judge(GATE).numbers["required"] > 5


def test_a_depth_that_earlier_cells_raised_to_its_end_need_not_rise(measured):
    found, still = measured("eagle3.flat.v2.ramp.length"), {"adaptive.switched_up": 0}
    assert found.judge(GATE, evidence=still).state is State.FAIL
    for width, state in ((6, State.PASS), (5, State.FAIL)):
        deep = (replace(answer, round_widths=(width,) * len(answer.round_widths)) for answer in found.run.answers)
        assert found.judge(GATE, evidence=still, answers=tuple(deep)).state is state


def test_another_running_value_or_a_drafter_that_was_put_aside_is_red(measured):
    found, aside = measured(CELL), "EAGLE3 read the host in propose"
    assert found.verdict(GATE, readback={"drafter_error": aside}) == f"FAIL: {aside}"
    outcome = found.judge(GATE, readback={"topk": 1})
    assert (outcome.state, outcome.message) == (State.FAIL, "topk was resolved to 4, but the engine runs 1")
    assert (outcome.numbers["unseen"], outcome.numbers["differences"]) == (0, 1)
    assert outcome.numbers["keys"] == len(found.run.readback.keys() & found.run.resolved.keys()) > 20
    uncached = measured("eagle3.qwen3.s3.pair")
    assert uncached.prepared.cell.prefix_cache == "on" and uncached.verdict(GATE) == "PASS"
    verdict = uncached.verdict(GATE, evidence={"prefix.insert": 1})
    assert verdict.startswith("FAIL: counter prefix.insert is 1, expected 0: ")


def test_a_missing_counter_is_named_after_what_other_gates_see(measured):
    found = measured(CELL)
    missing = found.judge(GATE, evidence={"decode.round": 0})
    unreported = {counter: hits for counter, hits in found.run.evidence.items() if counter != "decode.round"}
    assert found.judge(GATE, replace(found.run, evidence=unreported)) == missing
    other = found.judge(GATE, resolved={"topk": 3})
    ledger, depth = (Outcome(name, State.FAIL, message="counter a is 1") for name in ("ledger", "adaptive"))
    (row,) = [row for row in EVIDENCE if row.counter == "decode.round" and not row.zero and row.holds(found.run)]
    assert missing.message == f"counter decode.round is 0, expected more than 0: {row.why}"
    assert (missing.numbers["unseen"], missing.numbers["differences"]) == (1, 0)
    assert nearest_first([missing, ledger, depth]) == [ledger, depth, missing]
    assert nearest_first([other, ledger]) == [other, ledger] and other.state is State.FAIL


def test_an_engine_without_workers_readback_or_counters_is_judged_by_what_it_shows(measured):
    found, run = measured(CELL), measured(CELL).run
    alone = found.judge(
        GATE, replace(run, readback={key: run.readback[key] for key in run.readback if key != "workers"})
    )
    assert (alone.state, alone.message, alone.numbers["workers"]) == (State.PASS, "", 0)
    for silent, text in (
        (replace(run, readback={}), "the subject does not report algorithm of the running engine"),
        (replace(run, evidence=dict.fromkeys(run.evidence, 0)), "all counters are zero, so there is no evidence of"),
    ):
        assert found.verdict(GATE, silent).startswith(f"NOT MEASURED: {text}")


def test_rounds_on_a_gpu_must_be_replayed(measured):
    found, cell = measured(CELL), measured(CELL).prepared.cell
    graphs = {"cuda_graph_max_bs": 48}
    on_gpu = replace(found.run, resolved=found.run.resolved | graphs, readback=found.run.readback | graphs)
    unseen = {"graph.replayed": 0, "graph.eager": 16, "decode.round": 16}
    for counted in (
        {"graph.replayed": 9, "graph.eager": 2, "decode.round": 16},
        unseen | {"graph.eager": 15, "decode.round": 15},
    ):
        assert found.verdict(GATE, on_gpu, evidence=counted) == "PASS"
    sentence = "repeated round shapes without logit rules must replay CUDA graphs"
    assert sentence in found.verdict(GATE, on_gpu, evidence=unseen)
    (row,) = [row for row in GPU_EVIDENCE if row.counter == "graph.replayed"]
    run = replace(on_gpu, evidence={**on_gpu.evidence, **unseen})
    # All slots have a graph.
    for axes, due in (
        ({"sampling": "mixed"}, True),
        ({"sampling": "rules"}, False),
        ({"finish": "stops"}, False),
        ({"batch": "burst"}, True),
        ({"slots": "4"}, True),
        ({"slots": "4", "batch": "burst"}, False),
    ):
        assert bool(row.applies(cell._replace(**axes), run)) is due, axes


@pytest.mark.parametrize(("worker", "name", "value"), OTHER_OPTIONS)
def test_an_option_that_one_worker_lacks_is_named(measured, worker, name, value):
    found, workers = measured(CELL), measured(CELL).run.readback["workers"]
    assert set(workers) == {"target", "draft 0", "KV pool 0", "KV pool 1"}
    outcome = found.judge(GATE, readback={"workers": {**workers, worker: {**workers[worker], name: value}}})
    expected = f"{name} was resolved to {found.run.resolved[name]!r}, but the {worker} runs {value!r}"
    assert (outcome.state, outcome.message) == (State.FAIL, expected)
    assert (outcome.numbers["differences"], outcome.numbers["workers"]) == (1, 4)


def test_an_option_that_one_rank_lacks_is_named(measured):
    found, own = measured(CELL), dict(measured(CELL).run.readback)
    workers = {**own["workers"], "target": {}}
    for other, verdict in (
        (own, "PASS"),
        ({**own, "strict_memory": 0}, "FAIL: strict_memory was resolved to 1, but rank 1 runs 0"),
        ({**own, "workers": workers}, f"FAIL: the workers of rank 1 are {workers!r}, of rank 0 {own['workers']!r}"),
    ):
        assert found.verdict(GATE, readback={"ranks": [own, other]}) == verdict
