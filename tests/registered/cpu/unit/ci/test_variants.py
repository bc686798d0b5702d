"""The cells that tell candidate causes apart, over engines with a known cause."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from specmatrix.ci.variants import PASSES, decided, runnable
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run.prepared_cell import prepare
from specmatrix.matrix.run.record import judged
from specmatrix.reports.groups import red_groups
from specmatrix.reports.schema import CellResult

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")


class MarkedRuns:
    """Judges cells by a predicate: the cause of a defect."""

    def __init__(self, is_red: Callable[[Cell], bool]) -> None:
        self.is_red, self.job, self.calls = is_red, SimpleNamespace(tier="cpu"), 0

    def __call__(self, cells: Sequence[Cell]) -> Iterator[CellResult]:
        self.calls += 1
        for cell in cells:
            state = State.FAIL if self.is_red(cell) else State.PASS
            yield judged(prepare(cell), [Outcome("lossless", state, message="wrong" * self.is_red(cell))])


def causes(is_red: Callable[[Cell], bool], *names: str) -> tuple[list[CellResult], tuple[tuple[str, ...], ...]]:
    runs = MarkedRuns(is_red)
    found = list(runs([Cell.from_id(name) for name in names]))
    found += decided(runs, found)
    red = [cell for cell in found if cell.state == "FAIL"]
    groups = red_groups(red, [cell for cell in found if cell.state == "PASS"])
    return found, groups[0].factors if groups else ()


RED = "eagle3.s3.k4.n8.v2.p16.ragged"


@pytest.mark.parametrize(
    ("is_red", "cause"),
    [
        (lambda cell: cell.page_size != "1", ("page_size=16",)),
        (lambda cell: cell.batch == "ragged", ("batch=ragged",)),
        (lambda cell: cell.page_size != "1" and cell.batch != "single", ("page_size=16", "batch=ragged")),
        (
            lambda cell: cell.algorithm == "eagle3" and cell.spec_version == "v2",
            ("algorithm=eagle3", "spec_version=v2"),
        ),
    ],
)
def test_further_cells_leave_the_cause(is_red, cause: tuple[str, ...]):
    found, factors = causes(is_red, RED, "none.qwen3")
    assert factors == (cause,)
    assert len({cell.id for cell in found}) == len(found)


def test_a_single_red_cell_is_decided_without_any_green_one():
    assert causes(lambda cell: cell.batch != "single", RED)[1] == (("batch=ragged",),)


def test_green_runs_run_no_further_cell():
    assert len(causes(lambda cell: False, RED)[0]) == 1


def test_a_single_candidate_is_tried_alone():
    """Each other axis takes its default once: six cells, all red."""
    whole, factors = causes(lambda cell: cell.page_size == "16", RED, "eagle3.s3.k4.n8.v2.ragged")
    assert factors == (("page_size=16",),) and len(whole) == 8


def test_a_candidate_that_is_not_the_cause_alone_gets_its_further_conditions():
    """Of the cells at first, all at batch=ragged and none else are red."""
    cells = ("eagle3.s3.k4.n8.v2.ragged", "standalone.s2.k4.n16", "none.length")
    found, factors = causes(lambda cell: cell.batch == "ragged" and cell.topk == "4", *cells)
    assert factors == (("topk=4", "batch=ragged"),) and len(found) < 25


def test_what_is_always_red_ends():
    runs = MarkedRuns(lambda cell: True)
    found = list(runs([Cell.from_id(RED)]))
    assert len(list(decided(runs, found))) < 30 and runs.calls <= 1 + PASSES


def test_only_cells_of_the_matrix_that_run_as_asked_are_tried():
    tried = [Cell.from_id(RED)._replace(draft_tokens=nodes) for nodes in ("4", "6")]
    assert list(runnable(tried)) == tried[1:]  # four nodes are redundant at three steps
    assert expect(tried[1]) == "runs"
