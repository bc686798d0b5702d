from dataclasses import replace

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates import config as gate
from specmatrix.matrix.gates.config import ConfigGate, explicit
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.golden.outcomes import REFUSED, expected, golden_flags, golden_table
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
    [
        *(CELL, REWRITTEN, UNCACHED, "eagle3.flat.v2.ramp.length", "ngram.k2.n6.pair"),
        *("nextn.deepseek.s2.v2.mixed_lengths", "eagle3.s2.k2.n6.v2.p64.c7.pair"),  # the last is not in the lock file
    ],
)
def test_the_reviewed_resolution_passes(measured, cell_id):
    outcome = measured(cell_id).judge(GATE)
    assert (outcome.state, outcome.message) == (State.PASS, "") and outcome.numbers["fields"] > 20
    assert outcome.numbers["rewrites"] == int(cell_id in (REWRITTEN, UNCACHED, "eagle3.flat.v2.ramp.length"))


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
    assert measured(CELL).verdict(GATE, resolved=change).startswith(f"FAIL: {sentence}")


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "PASS"),
        ({"random_seed": 3}, "FAIL: random_seed is 17, but 3 when the resolved values are set by flags"),
        ({"speculative_adaptive": True}, "FAIL: rewrites is [], but [{'field': 'speculative_adaptive'"),
        ({"page_size": 0}, "FAIL: the resolved values are refused when they are set by flags: page_size must be"),
    ],
)
def test_the_resolved_values_must_resolve_to_themselves(measured, monkeypatch, change, verdict):
    resolved = explicit(measured(CELL).prepared.predicted)
    monkeypatch.setattr(gate, "explicit", lambda first: replace(resolved, **change))
    assert measured(CELL).verdict(GATE).startswith(verdict)


def test_flags_that_do_something_else_than_reviewed_fail(measured):
    flags, words = golden_flags(), "--speculative-draft-model-path llama-mini"
    outcome = measured(CELL).judge(ConfigGate(flags={"eagle3": {**flags["eagle3"], words: "runs"}}))
    assert outcome.state is State.FAIL and "force-regen" in outcome.accept
    assert outcome.message == f"eagle3 with {words} {flags['eagle3'][words]!r}; the golden file expects 'runs'"


def test_a_reason_without_an_automatic_choice_fails(measured):
    found = measured(CELL)
    odd = [*found.run.resolved["reasons"], {"field": "random_seed_of_the_day", "value": 3, "because": "luck"}]
    text = "FAIL: random_seed_of_the_day is '3: luck'; the golden table expects None"
    assert found.verdict(GATE, resolved={"reasons": odd}) == text


@pytest.mark.parametrize(
    "cell_id", [UNCACHED, "none.qwen3.v1.nocache.c7.tight.pair", "eagle3.qwen3.tiers.v2.p4.nocache.c7.mixed_lengths"]
)
def test_window_pages_are_worked_out_again(measured, cell_id):
    found, pages = measured(cell_id), measured(cell_id).run.resolved["window_pages"]
    assert found.verdict(GATE) == "PASS"
    text = f"FAIL: window_pages is {pages - 1}, but the rest of the configuration implies {pages}"
    assert found.verdict(GATE, resolved={"window_pages": pages - 1}) == text


def test_a_gpu_changes_the_device_and_nothing_else(measured):
    found, run = measured(CELL), measured(CELL).run
    kept = [reason for reason in run.resolved["reasons"] if reason["field"] not in ("device", "dtype")]
    cuda, half = {"device": "cuda", "reasons": kept}, {"dtype": "bfloat16"}
    gpu1 = found._replace(prepared=prepare(found.prepared.cell, "gpu1"))
    text = "FAIL: {} was set to {}, but the engine runs {} and reports no rewrite"
    assert gpu1.verdict(GATE, resolved=cuda) == "PASS" != found.verdict(GATE, resolved=cuda)
    assert gpu1.verdict(GATE, resolved=cuda | half) == text.format("dtype", "float32", "bfloat16")
    assert gpu1.verdict(GATE) == text.format("device", "cuda", "cpu")
    assert expected(golden_table(), REFUSED_CELL.cell, gpu=True) == {REFUSED: REFUSED_CELL.predicted_refusal}


def test_a_run_that_was_predicted_to_be_refused_fails(measured):
    refused = prepare(Cell.from_id("eagle3.v2.sync.pair"))
    verdict = measured("eagle3.v2.pair")._replace(prepared=refused).verdict(GATE)
    assert verdict == f"FAIL: the engine started, but was predicted to refuse with {refused.predicted_refusal!r}"


def test_a_hidden_rewrite_fails(measured):
    text = "FAIL: speculative_num_draft_tokens was set to 6, but the engine runs 4 and reports no rewrite"
    assert measured(REWRITTEN).verdict(GATE, resolved={"rewrites": []}) == text


@pytest.mark.parametrize(("cell_id", "wrong", "count"), [(CELL, "rewritten", 0), (REWRITTEN, "runs", 1)])
def test_the_constraints_must_expect_the_rewrites(measured, cell_id, wrong, count):
    found = measured(cell_id)
    assert found.prepared.expectation != wrong
    outcome = found._replace(prepared=replace(found.prepared, expectation=wrong)).judge(GATE)
    text = f"the cell is expected to be {wrong}, but the engine reports {count} rewrites"
    assert (outcome.state, outcome.message, outcome.numbers["rewrites"]) == (State.FAIL, text, count)


def test_what_was_not_reviewed_is_not_measured(measured):
    outcome = measured(CELL).judge(ConfigGate(golden={}))
    assert outcome.state is State.NOT_MEASURED and outcome.accept.endswith("matrix/golden --force-regen")
    message = measured(CELL).judge(ConfigGate(golden=without("spec_version"))).message
    text = "matrix/golden/resolved.yaml has no entry for spec_version in start eagle3.s3.k4.n8.v2.p16; run `python -m "
    assert message.startswith(text) and message.endswith("matrix/golden --force-regen` and review its diff")


def test_a_different_reviewed_outcome_fails(measured):
    outcome = measured(CELL).judge(ConfigGate(golden=saying("spec_version", "v1: slower is safer")))
    text = "spec_version is 'as asked'; the golden table expects 'v1: slower is safer'"
    assert (outcome.state, outcome.message) == (State.FAIL, text)
    assert outcome.accept.endswith("matrix/golden --force-regen")
    verdict = measured(CELL).verdict(ConfigGate(golden=saying(REFUSED, "not today")))
    assert verdict == "FAIL: the golden table expects a refusal ('not today'), but the engine started"


def test_a_refusal_must_be_the_predicted_one():
    sentence, started = REFUSED_CELL.predicted_refusal, prepare(Cell.from_id(CELL))
    assert "speculative_num_draft_tokens 16" in sentence
    assert GATE.judge_refusal(REFUSED_CELL, ConfigError(sentence)).state is State.PASS
    for cell, error, text in (
        (REFUSED_CELL, None, "the engine started; tree-too-wide predicts a refusal"),
        (REFUSED_CELL, ConfigError("no"), f"the engine refused with 'no'; tree-too-wide predicts {sentence!r}"),
        (started, ConfigError("no"), "no constraint predicts a refusal, but the engine refused to start: no"),
    ):
        outcome = GATE.judge_refusal(cell, error)
        known = {"rules": "", "predicted": ""} if cell is started else {"rules": "tree-too-wide", "predicted": sentence}
        assert (outcome.state, outcome.message, outcome.numbers) == (State.FAIL, text, known)


def test_a_refusal_has_a_golden_too():
    error = ConfigError(REFUSED_CELL.predicted_refusal)
    fresh = ConfigGate(golden={}).judge_refusal(REFUSED_CELL, error)
    assert fresh.state is State.NOT_MEASURED and f" has no entry for {REFUSED} in start " in fresh.message
    stale, runs = (
        ConfigGate(golden=golden).judge_refusal(REFUSED_CELL, error)
        for golden in (saying(REFUSED, "an older sentence"), without(REFUSED))
    )
    assert stale.numbers == GATE.judge_refusal(REFUSED_CELL, error).numbers
    for outcome, known in ((stale, "'an older sentence'"), (runs, "None")):
        text = f"the refusal {str(error)!r} differs from the golden table's {known}"
        assert (outcome.state, outcome.message) == (State.FAIL, text)
    assert {outcome.accept.rpartition(" ")[2] for outcome in (fresh, stale, runs)} == {"--force-regen"}
