import pytest
from msgspec.structs import replace

from specmatrix.reports.compare.cell_state import PathChange
from specmatrix.reports.compare.paths import PathChanges, explanation, path_changes
from specmatrix.reports.schema import GateResult, ReasonRecord


def test_equal_cells_run_the_same_path(make_cell):
    assert path_changes(make_cell(), make_cell()) == ()


def test_derived_values_follow_silently(make_cell):
    resolved = {**(make_cell().start.resolved or {}), "lag": 0, "num_pages": 7, "reasons": [1], "rewrites": [2]}
    resolved |= {"model_path": "/elsewhere", "random_seed": 3}
    assert path_changes(make_cell(), make_cell(resolved=resolved)) == ()


def test_a_rewrite_explains_before_a_reason_does(make_cell, rewritten):
    assert explanation(rewritten(), "num_draft_tokens") == "a chain verifies steps + 1 tokens"
    reason = ReasonRecord("speculative_eagle_topk", 1, "the default")
    assert explanation(make_cell(reasons=(reason,)), "topk") == "the default"
    assert explanation(make_cell(reasons=(reason,)), "page_size") == "the engine gives no reason"


def test_what_runs_as_requested_needs_no_reason(make_cell):
    cell = make_cell(requested={"page_size": 1, "speculative_eagle_topk": 2}, reasons=())
    assert explanation(cell, "page_size") == "as the cell requests"
    assert explanation(cell, "topk") == "the engine gives no reason", "topk 4 runs where 2 was requested"
    refused = make_cell(requested={"page_size": None}, resolved=None, reasons=())
    assert explanation(refused, "page_size") == "the engine gives no reason"


def slot(batch: int, *steps: int, **others: float) -> dict[str, object]:
    return {"batch_from": batch, "candidate_steps": list(steps), "ema_alpha": 0.2, "up_hysteresis": 0.0, **others}


@pytest.mark.parametrize(
    ("base", "head", "old", "new"),
    [
        (
            [],
            [slot(1, 1, 3, 7), slot(8, 1, 3), slot(32, 1)],
            "none",
            "steps 1, 3, 7 from batch 1; 1, 3 from 8; 1 from 32",
        ),
        (
            [slot(1, 1, 3), slot(8, 1)],
            [slot(1, 1, 3), slot(8, 1, ema_alpha=0.5)],
            "steps 1, 3 from batch 1; 1 from 8 (ema_alpha 0.2)",
            "steps 1, 3 from batch 1; 1 from 8 (ema_alpha 0.5)",
        ),
        (
            [slot(1, 3)],
            [slot(1, 3, window=4)],
            "steps 3 from batch 1 (window absent)",
            "steps 3 from batch 1 (window 4)",
        ),
        ("off", [slot(1, 3)], "off", str([slot(1, 3)])),
        ([{"steps": 3}], [{"steps": 4}], "[{'steps': 3}]", "[{'steps': 4}]"),
    ],
)
def test_changed_slots_of_adaptive_steps_are_words(make_cell, base, head, old, new):
    reason = ReasonRecord("speculative_adaptive_config", None, "no file is named")
    sides = [make_cell("a", resolved={"adaptive_slots": slots}, reasons=(reason,)) for slots in (base, head)]
    assert path_changes(*sides) == (PathChange("adaptive_slots", old, new, "no file is named"),)


def test_a_crash_is_no_refusal(make_cell):
    crashed = make_cell("a", state="FAIL", error="LedgerError: no room", gates=(), resolved=None)
    (change,) = path_changes(make_cell("a"), crashed)
    assert (change.signature(), change.because) == ("engine start: runs -> fails", "LedgerError: no room")
    (change,) = path_changes(crashed, make_cell("a"))
    assert change.signature() == "engine start: fails -> runs"


def test_a_cell_that_the_machine_lost_has_no_path(make_cell):
    lost = make_cell("a", state="INFRA", requested={}, resolved=None, reasons=(), gates=())
    assert path_changes(make_cell("a"), lost) == path_changes(lost, make_cell("a")) == ()


def test_cells_of_two_starts_are_looked_through_once(make_cell, change_cell):
    base = make_cell("a")
    reason = (ReasonRecord("spec_version", "v1", "trees are held back"),)
    head = change_cell(base, resolved={**base.start.resolved, "spec_version": "v1"}, reasons=reason)
    paths = PathChanges()
    found = paths.of(base, head)
    assert found == path_changes(base, head)
    assert found == (PathChange("spec_version", "v2", "v1", "trees are held back"),)
    assert paths.of(replace(base, id="b"), replace(head, id="b")) is found


@pytest.mark.parametrize("what", ["resolved", "requested", "reasons", "state"])
def test_every_other_change_of_a_start_is_compared_in_full(make_cell, change_cell, what):
    base = make_cell("a")
    head = change_cell(base, resolved={**base.start.resolved, "spec_version": "v1"})
    changed = {
        "resolved": {**head.start.resolved, "page_size": 64},
        "requested": {**head.start.requested, "page_size": 64},
        "reasons": (ReasonRecord("spec_version", "v1", "other words"),),
        "state": "INFRA",
    }
    stopped = {"error": "no space on the machine"} if what == "state" else {}
    other = change_cell(head, **{what: changed[what]}, **stopped)
    paths = PathChanges()
    paths.of(base, head)
    assert paths.of(base, other) == path_changes(base, other) != path_changes(base, head)


def test_a_refusal_is_reported_with_the_words_of_its_own_cell(make_cell, change_cell):
    base = make_cell("a")
    paths = PathChanges()
    for words in ("too many tokens", "no such page"):
        gate = GateResult("config", "PASS", {"predicted": words})
        refused = change_cell(base, resolved=None, gates=(gate,))
        assert paths.of(base, refused) == (PathChange("engine start", "runs", "refused", words),)
