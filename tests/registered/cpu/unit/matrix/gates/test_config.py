from dataclasses import replace

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates import config as gate
from specmatrix.matrix.gates.config import ConfigGate, explicit
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.golden.flags import golden_flags
from specmatrix.matrix.golden.outcomes import REFUSED
from specmatrix.matrix.golden.review import expected, golden_table
from specmatrix.matrix.workloads.prepared_cell import prepare

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
REFUSED_CELL = prepare(Cell.from_id("standalone.s1.k2.n16.pair"))
REWRITTEN = "standalone.s3.k1.n6"
UNCACHED = "eagle3.qwen3.s3.pair"
GATE = ConfigGate()


def without(name):
    """The golden file without a field's entries."""
    return {field: rows for field, rows in golden_table().items() if field != name}


def saying(name, outcome):
    """The golden file with one outcome of a field for every start."""
    return {**golden_table(), name: ((outcome, (lambda cell: True,)),)}


@pytest.mark.parametrize(
    "cell_id",
    [CELL, REWRITTEN, UNCACHED, "eagle3.flat.v2.ramp.length", "ngram.k2.n6.pair", "nextn.deepseek.s2.v2.mixed_lengths"],
)
def test_the_reviewed_resolution_passes(measured, cell_id):
    outcome = GATE.judge(*measured(cell_id))
    assert (outcome.state, outcome.message) == (State.PASS, "")
    rewrites = int(cell_id in (REWRITTEN, UNCACHED, "eagle3.flat.v2.ramp.length"))
    assert outcome.numbers["rewrites"] == rewrites and outcome.numbers["fields"] > 20


def test_a_start_outside_the_lock_file_is_reviewed_too(measured):
    assert GATE.judge(*measured("eagle3.s2.k2.n6.v2.p64.c7.pair")).state is State.PASS


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"max_running_requests": 7}, "max_running_requests is '7, reported as 48: speculation defaults"),
        ({"topk": 1}, "speculative_eagle_topk was set to 4, but the engine runs 1 and reports no rewrite"),
        ({"radix_cache": False}, "disable_radix_cache was set to False, but the engine runs True and reports no"),
        ({"chunked_prefill_size": 64}, "chunked_prefill_size was set to -1, but the engine runs 64 and reports no"),
        ({"reasons": []}, "max_running_requests is '48'; the golden table expects '48: speculation defaults"),
        (
            {"rewrites": [{"field": "page_size", "asked": 16, "got": 1, "reason": "r"}]},
            "the engine reports the rewrites [{'field': 'page_size', 'asked': 16, 'got': 1, 'reason': 'r'}]; predicted",
        ),
        ({"lag": 0}, "lag is 0, but the rest of the configuration implies 1"),
        ({"num_pages": 767}, "num_pages is 767, but the rest of the configuration implies 768"),
        ({"window_pages": 1}, "window_pages is 1, but the rest of the configuration implies 0"),
        ({"adaptive_slots": [{"candidate_steps": [3]}]}, "speculative_adaptive was set to False, but the engine runs"),
        ({"ngram": {"match_type": "PROB"}}, "ngram is 'match_type PROB'; the golden table expects 'none'"),
        ({"window": 48}, "window_pages is 0, but the rest of the configuration implies 768"),
    ],
)
def test_one_other_value_fails(measured, change, sentence):
    prepared, run, baseline = measured(CELL)
    outcome = GATE.judge(prepared, replace(run, resolved={**run.resolved, **change}), baseline)
    assert outcome.state is State.FAIL and outcome.message.startswith(sentence)


def test_the_resolved_values_must_resolve_to_themselves(measured, monkeypatch):
    prepared, run, baseline = measured(CELL)
    resolved = explicit(prepared.predicted)

    def judged(change):
        monkeypatch.setattr(gate, "explicit", lambda first: replace(resolved, **change))
        outcome = GATE.judge(prepared, run, baseline)
        return outcome.state, outcome.message

    assert judged({}) == (State.PASS, "")
    assert judged({"random_seed": 3}) == (
        State.FAIL,
        "random_seed is 17, but 3 when the resolved values are set by flags",
    )
    state, message = judged({"speculative_adaptive": True})
    assert state is State.FAIL and message.startswith("rewrites is [], but [{'field': 'speculative_adaptive'")
    assert judged({"page_size": 0}) == (
        State.FAIL,
        "the resolved values are refused when they are set by flags: page_size must be between 1 and 256 tokens, got 0",
    )


def test_flags_that_do_something_else_than_reviewed_fail(measured):
    flags = golden_flags()
    words = "--speculative-draft-model-path llama-mini"
    outcome = ConfigGate(flags={"eagle3": {**flags["eagle3"], words: "runs"}}).judge(*measured(CELL))
    assert outcome.state is State.FAIL and "force-regen" in outcome.accept
    assert outcome.message == f"eagle3 with {words} {flags['eagle3'][words]!r}; the golden file expects 'runs'"


def test_a_reason_without_an_automatic_choice_fails(measured):
    prepared, run, baseline = measured(CELL)
    odd = [*run.resolved["reasons"], {"field": "random_seed_of_the_day", "value": 3, "because": "luck"}]
    outcome = GATE.judge(prepared, replace(run, resolved={**run.resolved, "reasons": odd}), baseline)
    assert outcome.message == "random_seed_of_the_day is '3: luck'; the golden table expects None"


@pytest.mark.parametrize(
    "cell_id",
    [
        "eagle3.qwen3.s3.pair",
        "none.qwen3.v1.nocache.c7.tight.pair",
        "eagle3.qwen3.tiers.v2.p4.nocache.c7.mixed_lengths",
    ],
)
def test_window_pages_are_worked_out_again(measured, cell_id):
    prepared, run, baseline = measured(cell_id)
    assert GATE.judge(prepared, run, baseline).state is State.PASS
    pages = run.resolved["window_pages"]
    outcome = GATE.judge(prepared, replace(run, resolved={**run.resolved, "window_pages": pages - 1}), baseline)
    assert outcome.message == f"window_pages is {pages - 1}, but the rest of the configuration implies {pages}"


def test_a_gpu_changes_the_device_and_nothing_else(measured):
    prepared, run, baseline = measured(CELL)
    kept = [reason for reason in run.resolved["reasons"] if reason["field"] not in ("device", "dtype")]
    on_gpu = {**run.resolved, "device": "cuda", "reasons": kept}
    gpu1 = prepare(prepared.cell, "gpu1")
    assert GATE.judge(gpu1, replace(run, resolved=on_gpu), baseline).state is State.PASS
    other = replace(run, resolved={**on_gpu, "dtype": "bfloat16"})
    assert GATE.judge(gpu1, other, baseline).message == (
        "dtype was set to float32, but the engine runs bfloat16 and reports no rewrite"
    )
    assert GATE.judge(prepared, replace(run, resolved=on_gpu), baseline).state is State.FAIL
    assert (
        GATE.judge(gpu1, run, baseline).message
        == "device was set to cuda, but the engine runs cpu and reports no rewrite"
    )
    assert expected(golden_table(), REFUSED_CELL.cell, gpu=True) == {REFUSED: REFUSED_CELL.predicted_refusal}


def test_a_run_that_was_predicted_to_be_refused_fails(measured):
    _, run, baseline = measured("eagle3.v2.pair")
    outcome = GATE.judge(prepare(Cell.from_id("eagle3.v2.sync.pair")), run, baseline)
    assert outcome.state is State.FAIL
    prediction = prepare(Cell.from_id("eagle3.v2.sync.pair")).predicted_refusal
    assert outcome.message == f"the engine started, but was predicted to refuse with {prediction!r}"


def test_a_hidden_rewrite_fails(measured):
    prepared, run, baseline = measured(REWRITTEN)
    outcome = GATE.judge(prepared, replace(run, resolved={**run.resolved, "rewrites": []}), baseline)
    text = "speculative_num_draft_tokens was set to 6, but the engine runs 4 and reports no rewrite"
    assert (outcome.state, outcome.message) == (State.FAIL, text)


@pytest.mark.parametrize(("cell_id", "wrong", "count"), [(CELL, "rewritten", 0), (REWRITTEN, "runs", 1)])
def test_the_constraints_must_expect_the_rewrites(measured, cell_id, wrong, count):
    prepared, run, baseline = measured(cell_id)
    assert prepared.expectation != wrong
    outcome = GATE.judge(replace(prepared, expectation=wrong), run, baseline)
    text = f"the cell is expected to be {wrong}, but the engine reports {count} rewrites"
    assert (outcome.state, outcome.message, outcome.numbers["rewrites"]) == (State.FAIL, text, count)


def test_what_was_not_reviewed_is_not_measured(measured):
    outcome = ConfigGate(golden={}).judge(*measured(CELL))
    assert outcome.state is State.NOT_MEASURED and outcome.accept.endswith("matrix/golden --force-regen")
    outcome = ConfigGate(golden=without("spec_version")).judge(*measured(CELL))
    assert outcome.message == (
        "matrix/golden/resolved.yaml has no entry for spec_version in start eagle3.s3.k4.n8.v2.p16; run `python -m "
        "pytest tests/registered/cpu/unit/matrix/golden --force-regen` and review its diff"
    )


def test_a_different_reviewed_outcome_fails(measured):
    outcome = ConfigGate(golden=saying("spec_version", "v1: slower is safer")).judge(*measured(CELL))
    assert outcome.state is State.FAIL
    assert outcome.message == "spec_version is 'as asked'; the golden table expects 'v1: slower is safer'"
    assert outcome.accept.endswith("matrix/golden --force-regen")
    outcome = ConfigGate(golden=saying(REFUSED, "not today")).judge(*measured(CELL))
    assert outcome.message == "the golden table expects a refusal ('not today'), but the engine started"


def test_a_refusal_must_be_the_predicted_one():
    sentence = REFUSED_CELL.predicted_refusal
    assert "speculative_num_draft_tokens 16" in sentence
    assert GATE.judge_refusal(REFUSED_CELL, ConfigError(sentence)).state is State.PASS
    ran = GATE.judge_refusal(REFUSED_CELL, None)
    assert (ran.state, ran.message) == (State.FAIL, "the engine started; tree-too-wide predicts a refusal")
    other = GATE.judge_refusal(REFUSED_CELL, ConfigError("no"))
    assert other.numbers == ran.numbers == {"rules": "tree-too-wide", "predicted": sentence}
    text = f"the engine refused with 'no'; tree-too-wide predicts {sentence!r}"
    assert (other.state, other.message) == (State.FAIL, text)
    unexpected = GATE.judge_refusal(prepare(Cell.from_id(CELL)), ConfigError("no"))
    assert unexpected.numbers == {"rules": "", "predicted": ""}
    assert (unexpected.state, unexpected.message) == (
        State.FAIL,
        "no constraint predicts a refusal, but the engine refused to start: no",
    )


def test_a_refusal_has_a_golden_too():
    error = ConfigError(REFUSED_CELL.predicted_refusal)
    fresh = ConfigGate(golden={}).judge_refusal(REFUSED_CELL, error)
    assert fresh.state is State.NOT_MEASURED and f" has no entry for {REFUSED} in start " in fresh.message
    assert fresh.accept.endswith("matrix/golden --force-regen")
    stale = ConfigGate(golden=saying(REFUSED, "an older sentence")).judge_refusal(REFUSED_CELL, error)
    assert stale.state is State.FAIL and stale.numbers == GATE.judge_refusal(REFUSED_CELL, error).numbers
    assert stale.message == f"the refusal {str(error)!r} differs from the golden table's 'an older sentence'"
    runs = ConfigGate(golden=without(REFUSED)).judge_refusal(REFUSED_CELL, error)
    text = f"the refusal {str(error)!r} differs from the golden table's None"
    assert (runs.state, runs.message) == (State.FAIL, text) and runs.accept.endswith("matrix/golden --force-regen")
