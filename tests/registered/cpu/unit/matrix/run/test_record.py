"""Records of cells that were not judged: what is asked of them in a tier, and what crashed."""

from dataclasses import replace

import pytest
from msgspec import structs

from specmatrix.errors import LedgerError
from specmatrix.matrix.cells.cell import GPU_LIMITS, Cell, asked
from specmatrix.matrix.run.prepared_cell import prepare
from specmatrix.matrix.run.record import BaselineError, crashed, judged, lost

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


def test_a_gpu_tier_requests_the_same_in_float32_on_a_gpu_and_limits_graphs_where_slots_are_few():
    cell = Cell.from_id("eagle3.s3.k4.n8.v2")
    assert asked(cell).device == asked(cell).dtype == "auto"
    assert asked(cell, 1) == replace(asked(cell), device="cuda", dtype="float32")
    few = cell._replace(slots="4")
    assert asked(few, 1) == replace(asked(few), device="cuda", dtype="float32", **GPU_LIMITS)
    ngram = Cell.from_id("ngram.m4")
    assert asked(ngram, 1).cuda_graph_max_bs == "auto" and asked(ngram, 1).cuda_graph_max_gb == 3
    found = judged(prepare(cell, "gpu1", 2), ())
    assert (found.state, found.expect) == ("NOT MEASURED", "runs")
    assert found.requested["device"] == "cuda"
    assert found.repro == f"specmatrix run --tier gpu1 --cells '{cell.id}' --seed 2 --out \"$(mktemp -d)\""
    assert (found.resolved, found.start.resolved_hash, found.gates) == (None, None, ())
    assert found.error == "no gate applied to this cell"


def raised(error: Exception) -> Exception:
    def drive() -> None:
        raise error

    try:
        drive()
    except Exception as caught:
        return caught
    raise AssertionError


def test_a_crash_is_identified_by_its_exception_and_not_by_the_names_of_its_frames():
    def _baseline() -> Exception:
        return raised(RuntimeError("a wire came loose"))

    prepared = prepare(Cell.from_id("eagle3.pair"))
    own = crashed(prepared, _baseline())
    assert own.state == "INFRA" and own.error is not None
    assert own.error.startswith("RuntimeError: a wire came loose, in drive (test_record.py:")
    baseline = crashed(prepared, BaselineError(raised(RuntimeError("a wire came loose"))))
    assert baseline.error is not None and baseline.error.startswith("baseline: RuntimeError: a wire came loose, in ")
    broken = crashed(prepared, BaselineError(raised(LedgerError("page 3 has two owners"))))
    assert broken.state == "FAIL" and crashed(prepared, raised(LedgerError("page 3"))).state == "FAIL"


def test_a_lost_cell_is_red_and_repeatable():
    found = lost(prepare(Cell.from_id("none.length"), "cpu", 4), "the power went")
    assert (found.state, found.gates, found.expect) == ("INFRA", (), "runs")
    assert found.repro == "specmatrix run --cells 'none.length' --seed 4 --out \"$(mktemp -d)\""
    assert found.error == "the cell has no result: the power went"


def test_a_lost_cell_is_the_cell_before_it_ran():
    prepared = prepare(Cell.from_id("eagle3.k4"), "cpu", 4)
    found = lost(prepared, "the power went")
    other = judged(prepared, ())
    assert structs.replace(found, state="NOT MEASURED", error=other.error) == other
    assert found.requested["speculative_eagle_topk"] == 4
