from dataclasses import replace

import pytest

from specmatrix.matrix.gates.effective import EffectiveGate, nearest_first
from specmatrix.matrix.gates.evidence import EVIDENCE, GPU_EVIDENCE
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.workloads.prepared_cell import prepare

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
# Together they demand every row of EVIDENCE.
CELLS = [
    CELL,
    "none.v1.nocache.c7.mixed_lengths.temperature.stop_token.abort_running",
    "standalone.s3.p4.m4.burst.mixed",
    "standalone.s3.v1.p16.tight.m4.burst.stop_string.abort_queued",
    "eagle3.s3.k2.n6.v2.ctx.length",
    "eagle3.s3.k2.n6.v2.stop_string",
    "eagle3.s3.k4.n8.v2.p16.burst",
    "eagle3.s5.v2.p16.pair.stream.abort_running",
    "none.v2.tight.burst.stream",
    "none.v2.session_retract.pair.stream.length",
    "eagle3.qwen3.s3.k4.n8.v2.p16.nocache.pair",
    "eagle3.tiers.v2.ramp.length",
    "eagle3.table.v1.ramp.length",
    "eagle3.flat.v2.ramp.length",
]
# The others show nothing by day that these and the pr cells do not.
DAILY = {CELL, "none.v2.session_retract.pair.stream.length", "eagle3.flat.v2.ramp.length"}
GATE = EffectiveGate()


@pytest.mark.parametrize(
    "cell_id", [cell if cell in DAILY else pytest.param(cell, marks=pytest.mark.nightly) for cell in CELLS]
)
def test_the_reference_engine_shows_all_evidence(measured, cell_id):
    outcome = GATE.judge(*measured(cell_id))
    assert (outcome.state, outcome.message) == (State.PASS, "")
    assert outcome.numbers["required"] > 5


def test_a_depth_that_earlier_cells_raised_to_its_end_need_not_rise(measured, with_evidence):
    prepared, run, baseline = measured("eagle3.flat.v2.ramp.length")
    still = with_evidence(run, {"adaptive.switched_up": 0})
    assert GATE.judge(prepared, still, baseline).state is State.FAIL
    for width, state in ((6, State.PASS), (5, State.FAIL)):
        deep = [replace(answer, round_widths=(width,) * len(answer.round_widths)) for answer in run.answers]
        assert GATE.judge(prepared, replace(still, answers=tuple(deep)), baseline).state is state


@pytest.mark.nightly
@pytest.mark.parametrize("row", EVIDENCE, ids=lambda row: f"{row.counter}{'+' if row.seen else '-'}")
def test_each_missing_piece_of_evidence_alone_turns_the_cell_red(measured, with_evidence, row):
    found = [measured(cell_id) for cell_id in CELLS]
    # Two ranks show what one does, and one row more; they run in their own processes.
    found.append((prepare(found[0][0].cell._replace(tp="2")), *found[0][1:]))
    prepared, run, baseline = next(one for one in found if row.when(one[0].cell, one[1]))
    turned = with_evidence(run, dict.fromkeys(row.counter.split("|"), 0 if row.seen else 1))
    outcome = EffectiveGate(evidence=(row,)).judge(prepared, turned, baseline)
    assert outcome.state is State.FAIL and row.why in outcome.message


def test_a_drafter_that_was_put_aside_is_red(measured):
    prepared, run, baseline = measured(CELL)
    aside = replace(run, readback={**run.readback, "drafter_error": "EAGLE3 read the host in propose"})
    outcome = GATE.judge(prepared, aside, baseline)
    assert outcome.state is State.FAIL
    assert outcome.message == "EAGLE3 read the host in propose"


def test_a_missing_counter_is_named_after_what_other_gates_see(measured, with_evidence):
    prepared, run, baseline = measured(CELL)
    missing = GATE.judge(prepared, with_evidence(run, {"decode.round": 0}), baseline)
    unreported = {counter: hits for counter, hits in run.evidence.items() if counter != "decode.round"}
    assert GATE.judge(prepared, replace(run, evidence=unreported), baseline) == missing
    other = GATE.judge(prepared, replace(run, resolved={**run.resolved, "topk": 3}), baseline)
    ledger, depth = (Outcome(name, State.FAIL, message="counter a is 1") for name in ("ledger", "adaptive"))
    (row,) = [row for row in EVIDENCE if row.counter == "decode.round" and row.seen and row.holds(run)]
    assert missing.message == f"counter decode.round is 0, expected more than 0: {row.why}"
    assert (missing.numbers["unseen"], missing.numbers["differences"]) == (1, 0)
    assert nearest_first([missing, ledger, depth]) == [ledger, depth, missing]
    assert nearest_first([other, ledger]) == [other, ledger] and other.state is State.FAIL


def test_an_engine_without_workers_is_judged_by_its_own_options(measured):
    prepared, run, baseline = measured(CELL)
    alone = replace(run, readback={key: value for key, value in run.readback.items() if key != "workers"})
    outcome = GATE.judge(prepared, alone, baseline)
    assert (outcome.state, outcome.message, outcome.numbers["workers"]) == (State.PASS, "", 0)


def test_rounds_on_a_gpu_must_be_replayed(measured, with_evidence):
    prepared, run, baseline = measured(CELL)
    on_gpu = replace(
        run,
        resolved={**run.resolved, "cuda_graph_max_bs": 48},
        readback={**run.readback, "cuda_graph_max_bs": 48},
    )
    seen = with_evidence(on_gpu, {"graph.replayed": 9, "graph.eager": 2, "decode.round": 16})
    assert GATE.judge(prepared, seen, baseline).state is State.PASS
    unseen = with_evidence(on_gpu, {"graph.replayed": 0, "graph.eager": 16, "decode.round": 16})
    sentence = "repeated round shapes without logit rules must replay CUDA graphs"
    assert sentence in GATE.judge(prepared, unseen, baseline).message
    (row,) = [row for row in GPU_EVIDENCE if row.counter == "graph.replayed"]
    sampled, ruled = (prepared.cell._replace(sampling=value) for value in ("mixed", "rules"))
    assert row.when(sampled, unseen) and not row.when(ruled, unseen)
    assert not row.when(prepared.cell._replace(finish="stops"), unseen)
    few_slots = prepared.cell._replace(slots="4")
    assert row.when(prepared.cell._replace(batch="burst"), unseen), "all slots have a graph"
    assert row.when(few_slots, unseen) and not row.when(few_slots._replace(batch="burst"), unseen)
    few = with_evidence(on_gpu, {"graph.replayed": 0, "graph.eager": 15, "decode.round": 15})
    assert GATE.judge(prepared, few, baseline).state is State.PASS


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cell_id", "share"),
    [
        ("standalone.qwen3.s3.k2.n6.v2.p4.nocache.c7.tight.mixed_lengths", True),
        ("standalone.qwen3.s3.k2.n6.v2.p4.nocache.tight.mixed_lengths", False),
    ],
)
def test_windows_of_two_requests_are_in_tight_memory_where_prompts_come_in_chunks(measured, cell_id, share):
    prepared, run, baseline = measured(cell_id)
    assert GATE.judge(prepared, run, baseline).state is State.PASS
    demanded = {row.counter for row in EVIDENCE if row.seen and row.when(prepared.cell, run)}
    assert (share, share) == ("decode.batched" in demanded, "retract.done" in demanded)
    assert (run.evidence["retract.done"] > 0) == share and "window.slid" in demanded


def test_a_rewritten_prefix_cache_is_not_to_be_seen(measured, with_evidence):
    prepared, run, baseline = measured("eagle3.qwen3.s3.pair")
    assert prepared.cell.prefix_cache == "on" and GATE.judge(prepared, run, baseline).state is State.PASS
    outcome = GATE.judge(prepared, with_evidence(run, {"prefix.insert": 1}), baseline)
    assert outcome.state is State.FAIL and outcome.message.startswith("counter prefix.insert is 1, expected 0: ")


def test_a_different_running_value_fails(measured):
    prepared, run, baseline = measured(CELL)
    outcome = GATE.judge(prepared, replace(run, readback={**run.readback, "topk": 1}), baseline)
    assert (outcome.state, outcome.message) == (State.FAIL, "topk was resolved to 4, but the engine runs 1")
    assert (outcome.numbers["unseen"], outcome.numbers["differences"]) == (0, 1)
    assert outcome.numbers["keys"] == len(run.readback.keys() & run.resolved.keys()) > 20


def test_without_readback_or_counters_nothing_is_measured(measured):
    prepared, run, baseline = measured(CELL)
    blind = GATE.judge(prepared, replace(run, readback={}), baseline)
    assert (blind.state, blind.message) == (
        State.NOT_MEASURED,
        "the subject does not report algorithm of the running engine",
    )
    still = GATE.judge(prepared, replace(run, evidence=dict.fromkeys(run.evidence, 0)), baseline)
    assert (still.state, still.message) == (
        State.NOT_MEASURED,
        "all counters are zero, so there is no evidence of what ran",
    )


@pytest.mark.parametrize(
    ("worker", "name", "value"),
    [
        ("draft 0", "dtype", "bfloat16"),
        ("draft 0", "enable_deterministic_inference", False),
        ("KV pool 1", "page_size", 4),
    ],
)
def test_an_option_that_one_worker_lacks_is_named(measured, worker, name, value):
    prepared, run, baseline = measured(CELL)
    assert set(run.readback["workers"]) == {"target", "draft 0", "KV pool 0", "KV pool 1"}
    workers = {**run.readback["workers"], worker: {**run.readback["workers"][worker], name: value}}
    outcome = GATE.judge(prepared, replace(run, readback={**run.readback, "workers": workers}), baseline)
    expected = f"{name} was resolved to {run.resolved[name]!r}, but the {worker} runs {value!r}"
    assert (outcome.state, outcome.message) == (State.FAIL, expected)
    assert (outcome.numbers["differences"], outcome.numbers["workers"]) == (1, 4)


def test_an_option_that_one_rank_lacks_is_named(measured):
    prepared, run, baseline = measured(CELL)
    both = [dict(run.readback), dict(run.readback)]
    same = replace(run, readback={**run.readback, "ranks": both})
    assert GATE.judge(prepared, same, baseline).state is State.PASS
    other = replace(run, readback={**run.readback, "ranks": [both[0], {**both[1], "strict_memory": 0}]})
    outcome = GATE.judge(prepared, other, baseline)
    assert outcome.message == "strict_memory was resolved to 1, but rank 1 runs 0"
    workers = {**run.readback["workers"], "target": {}}
    other = replace(run, readback={**run.readback, "ranks": [both[0], {**both[1], "workers": workers}]})
    text = f"the workers of rank 1 are {workers!r}, of rank 0 {run.readback['workers']!r}"
    assert GATE.judge(prepared, other, baseline).message == text
