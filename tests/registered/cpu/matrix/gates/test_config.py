from dataclasses import replace

import pytest

from engine.core.errors import ConfigError
from matrix.cell import Cell
from matrix.gates.config import UNREVIEWED, ConfigGate, predicted_refusal
from matrix.gates.gate import State
from matrix.gates.golden import GOLDEN_FILE, golden_rows, golden_table, launch_id, placed
from matrix.lockfile import stage_cells

pytestmark = pytest.mark.register(est_seconds=5, tier="cpu", stage="pr")

CELL = "eagle3.s3.k4.n8.v2.p16.pair"
REFUSED = Cell.from_id("standalone.s1.k2.n16.pair")
REWRITTEN = "standalone.s3.k1.n6"
UNCACHED = "eagle3.qwen3.s3.pair"


@pytest.fixture(scope="session")
def gate():
    return ConfigGate(golden=golden_rows(map(Cell.from_id, (CELL, REFUSED.id, REWRITTEN, UNCACHED))))


def test_every_launch_of_the_lock_is_golden(data_regression, request):
    forced = request.config.getoption("force_regen")
    assert GOLDEN_FILE.is_file() or forced, f"{GOLDEN_FILE.name} is missing; run with --force-regen and review it"
    GOLDEN_FILE.parent.mkdir(exist_ok=True)
    data_regression.check(golden_rows(stage_cells("nightly")), fullpath=GOLDEN_FILE)


def test_the_golden_file_serves_the_gate(measured):
    assert ConfigGate(golden=golden_table()).judge(*measured(CELL)).state is State.PASS


@pytest.mark.parametrize("cell_id", [CELL, REWRITTEN, UNCACHED])
def test_the_reviewed_resolution_passes(measured, gate, cell_id):
    outcome = gate.judge(*measured(cell_id))
    assert (outcome.state, outcome.message) == (State.PASS, "")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"max_running_requests": 7}, "max_running_requests resolves to 7, the golden says 48"),
        ({"topk": 1}, "speculative_eagle_topk 4 was asked, 1 runs, and no rewrite says so"),
        ({"radix_cache": False}, "disable_radix_cache is False, but radix_cache False runs"),
        ({"chunked_prefill_size": 64}, "chunked_prefill_size None was asked, 64 runs"),
        ({"reasons": []}, "the reasons are [], the golden says"),
        ({"rewrites": [{"field": "page_size", "asked": 16, "got": 1, "reason": "r"}]}, "predicted were []"),
    ],
)
def test_one_other_value_fails(measured, gate, change, sentence):
    cell, run, baseline = measured(CELL)
    outcome = gate.judge(cell, replace(run, resolved={**run.resolved, **change}), baseline)
    assert outcome.state is State.FAIL and sentence in outcome.message


def test_a_gpu_changes_the_device_and_nothing_else(measured, gate):
    cell, run, baseline = measured(CELL)
    kept = [reason for reason in run.resolved["reasons"] if reason["field"] not in ("device", "dtype")]
    on_gpu = {**run.resolved, "device": "cuda", "reasons": kept}
    assert gate.judge(cell, replace(run, resolved=on_gpu), baseline).state is State.PASS
    other = replace(run, resolved={**on_gpu, "dtype": "bfloat16"})
    assert gate.judge(cell, other, baseline).message == "dtype resolves to 'bfloat16', the golden says 'float32'"
    assert placed({"refused": "no"}, on_gpu) == {"refused": "no"}


def test_a_hidden_rewrite_fails(measured, gate):
    cell, run, baseline = measured(REWRITTEN)
    outcome = gate.judge(cell, replace(run, resolved={**run.resolved, "rewrites": []}), baseline)
    assert outcome.state is State.FAIL and "no rewrite says so" in outcome.message


def test_a_locked_launch_without_a_golden_is_not_measured(measured):
    outcome = ConfigGate(golden={}).judge(*measured(CELL))
    assert outcome.state is State.NOT_MEASURED
    assert outcome.message == (
        "launch eagle3.s3.k4.n8.v2.p16 of the lock file has no golden in matrix/golden/resolved.yaml; run `python -m "
        "pytest tests/registered/cpu/matrix/gates/test_config.py --force-regen` and review its diff"
    )


def test_a_launch_outside_the_lock_is_compared_with_the_rules_and_says_so(measured):
    gate = ConfigGate(golden={}, locked=frozenset)
    cell, run, baseline = measured(CELL)
    outcome = gate.judge(cell, run, baseline)
    assert (outcome.state, outcome.numbers["unreviewed"]) == (State.PASS, UNREVIEWED)
    other = replace(run, resolved={**run.resolved, "max_running_requests": 7})
    assert gate.judge(cell, other, baseline).message == "max_running_requests resolves to 7, the golden says 48"
    refused = gate.judge_refusal(REFUSED, ConfigError(predicted_refusal(REFUSED)))
    assert (refused.state, refused.numbers["unreviewed"]) == (State.PASS, UNREVIEWED)
    assert gate.judge_refusal(REFUSED, None).state is State.FAIL


def test_a_reviewed_row_counts_outside_the_lock_too(measured, gate):
    alone = replace(gate, locked=frozenset)
    assert "unreviewed" not in alone.judge(*measured(CELL)).numbers


def test_a_refusal_must_be_the_predicted_one(gate):
    sentence = predicted_refusal(REFUSED)
    assert "speculative_num_draft_tokens 16" in sentence
    assert gate.judge_refusal(REFUSED, ConfigError(sentence)).state is State.PASS
    ran = gate.judge_refusal(REFUSED, None)
    assert (ran.state, ran.message) == (State.FAIL, "the engine ran it; tree-too-wide predicts a refusal")
    other = gate.judge_refusal(REFUSED, ConfigError("no"))
    assert other.state is State.FAIL and other.message.startswith(
        "the engine refused with 'no', tree-too-wide predicts"
    )
    unexpected = gate.judge_refusal(Cell.from_id(CELL), ConfigError("no"))
    assert (unexpected.state, unexpected.message) == (
        State.FAIL,
        "no constraint refuses this cell, but the engine says: no",
    )


def test_a_refusal_has_a_golden_too():
    error = ConfigError(predicted_refusal(REFUSED))
    locked = ConfigGate(golden={}, locked=lambda: frozenset({launch_id(REFUSED)}))
    assert locked.judge_refusal(REFUSED, error).state is State.NOT_MEASURED
    stale = ConfigGate(golden={launch_id(REFUSED): {"refused": "an older sentence"}}).judge_refusal(REFUSED, error)
    assert stale.state is State.FAIL and stale.message.startswith("the sentence of refusal is not the golden one")
