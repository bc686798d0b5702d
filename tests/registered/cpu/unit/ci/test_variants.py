"""The cells that tell candidate causes apart, over engines with a known cause."""

from collections.abc import Callable, Generator, Sequence
from types import SimpleNamespace

import msgspec
import pytest

from specmatrix.ci.local import ShardJob
from specmatrix.ci.run_options import RunOptions
from specmatrix.ci.shrink import MAX_BESIDE, PASSES, causes, decided, runnable, variants
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import expect
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run.provenance import judged
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.groups import RedGroup, red_groups
from specmatrix.reports.schema import CellResult, Waiver


class MarkedRuns:
    """Judges cells by a predicate: the cause of a defect."""

    def __init__(self, is_red: Callable[[Cell], bool]) -> None:
        self.is_red, self.job, self.calls = is_red, ShardJob(RunOptions()), 0

    def __call__(self, cells: Sequence[Cell]) -> Generator[CellResult]:
        self.calls += 1
        for cell in cells:
            state = State.FAIL if self.is_red(cell) else State.PASS
            prepared = prepare(cell)
            engine = SimpleNamespace(resolved=prepared.predicted.as_dict(), start_hash="0" * 12)
            yield judged(prepared, [Outcome("lossless", state, message="wrong" * self.is_red(cell))], engine)


def left(is_red: Callable[[Cell], bool], *names: str) -> tuple[list[CellResult], tuple[tuple[str, ...], ...]]:
    runs = MarkedRuns(is_red)
    found = list(runs([Cell.from_id(name) for name in names]))
    found += decided(runs, found)
    red = [cell for cell in found if cell.state == "FAIL"]
    groups = red_groups(red, [cell for cell in found if cell.state == "PASS"])
    return found, groups[0].factors if groups else ()


def width(cell: Cell) -> int:
    return prepare(cell).predicted.topk


RED = "eagle3.s3.k4.n8.v2.p16.mixed_lengths"


@pytest.mark.parametrize(
    ("is_red", "cause"),
    [
        (lambda cell: cell.page_size != "1", ("page_size > 1",)),
        (lambda cell: cell.page_size == "16", ("page_size=16",)),
        (lambda cell: cell.batch == "mixed_lengths", ("batch=mixed_lengths",)),
        (lambda cell: cell.page_size != "1" and cell.batch != "single", ("page_size > 1", "batch != single")),
        (lambda one: one.algorithm == "eagle3" and one.spec_version == "v2", ("algorithm=eagle3", "spec_version=v2")),
    ],
)
def test_further_cells_leave_the_cause(is_red, cause: tuple[str, ...]):
    found, factors = left(is_red, RED, "none.qwen3")
    assert factors == (cause,)
    assert len({cell.id for cell in found}) == len(found)


def test_a_single_red_cell_is_decided_without_any_green_one():
    assert left(lambda cell: cell.batch != "single", RED)[1] == (("batch != single",),)


@pytest.mark.parametrize(("most", "seconds"), [(MAX_BESIDE, 60.0), (3, 60.0), (MAX_BESIDE, 0.0)])
def test_few_cells_run_beside_red_ones_and_none_when_time_is_up(most: int, seconds: float):
    runs = MarkedRuns(lambda cell: True)
    assert len(list(decided(runs, list(runs([Cell.from_id(RED)])), most, seconds))) == (most if seconds else 0)


def test_a_cell_that_takes_long_does_not_run_beside_a_red_one():
    runs = MarkedRuns(lambda cell: cell.batch != "single")
    ran = list(decided(runs, list(runs([Cell.from_id(RED)])), seconds=4.0))
    longer = list(decided(runs, list(runs([Cell.from_id(RED)])), seconds=60.0))
    assert {cell.id for cell in ran if Cell.of(cell.axes).seconds >= 1.0} == set()
    assert [cell.id for cell in longer if Cell.of(cell.axes).seconds >= 1.0] != []


def test_the_causes_of_a_run_are_those_of_its_red_cells_that_count():
    runs = MarkedRuns(lambda cell: cell.page_size != "1")
    found = list(runs([Cell.from_id(RED), Cell.from_id("none.qwen3")]))
    cause = causes(runs, found, "2026-01-01")[RED]
    assert cause.factors == (("page_size > 1",),) and cause.ran > cause.passing > 0
    waived = [msgspec.structs.replace(found[0], waived=Waiver("known", "2026-01-02")), found[1]]
    assert causes(runs, waived, "2026-01-01") == {} and RED in causes(runs, waived, "2026-01-03")
    assert causes(runs, [msgspec.structs.replace(found[0], state="INFRA"), found[1]], "2026-01-01") == {}


def test_green_runs_run_no_further_cell():
    assert len(left(lambda cell: False, RED)[0]) == 1


def test_two_axes_change_where_one_does_not_tell_candidates_apart():
    """Whatever changes alone, a tree has more than four nodes here, and a chain has not."""
    found, factors = left(lambda cell: width(cell) > 1 and cell.batch != "single", "eagle3.s3.k4.n8.v2.mixed_lengths")
    assert factors == (("topk > 1", "batch != single"),) and len(found) < 25
    deep = [cell.id for cell in found if cell.state == "PASS" and cell.axes["steps"] == "5"]
    assert deep and {Cell.from_id(name).topk for name in deep} == {"auto"}


def test_candidates_that_no_cell_tells_apart_end():
    """Every drafter of Mistral is standalone."""
    runs = MarkedRuns(lambda cell: cell.model == "mistral" and cell.algorithm != "none")
    found = list(runs([Cell.from_id(name) for name in ("standalone.mistral.pair", "none.mistral.pair")]))
    found += decided(runs, found)
    [group] = red_groups([cell for cell in found if cell.state == "FAIL"], [c for c in found if c.state == "PASS"])
    assert variants(group, {cell.id for cell in found}) == [] and runs.calls <= 1 + PASSES and len(found) < 25


def test_a_cell_of_which_the_candidates_say_the_same_is_not_run():
    found = list(MarkedRuns(lambda cell: cell.page_size != "1")([Cell.from_id("eagle3.s3.v2.p16.mixed_lengths")]))
    factors = (("page_size=16", "batch=mixed_lengths"), ("page_size > 4", "batch=mixed_lengths"))
    group = RedGroup(tuple(found), factors)
    cells = variants(group, {found[0].id})
    assert [(cell.page_size, cell.batch) for cell in cells] == [("64", "mixed_lengths")]


def test_only_cells_of_the_tier_are_tried():
    one, two = MarkedRuns(lambda cell: True)(map(Cell.from_id, ("none.mixed_lengths", "none.tp2.mixed_lengths")))
    factors = (("numerics=float32",), ("batch=mixed_lengths",))
    tried = variants(RedGroup((one,), factors), ())
    assert [(cell.numerics, cell.batch) for cell in tried] == [("float32", "single")]
    assert {cell.ranks for cell in variants(RedGroup((two,), factors), (), 2)} == {2}


def test_another_value_that_meets_the_candidate_too_tells_nothing():
    [cell] = MarkedRuns(lambda cell: True)([Cell.from_id("none.p16")])
    group = RedGroup((cell,), (("page_size > 4",),))
    assert [one.id for one in variants(group, {"none"})] == ["none.p4"]
    assert variants(group, {"none", "none.p4"}) == []


def test_a_single_candidate_is_tried_alone():
    """Four other axes take their defaults, all red; and three other page sizes are green."""
    whole, factors = left(lambda cell: cell.page_size == "16", RED, "eagle3.s3.k4.n8.v2.mixed_lengths")
    assert factors == (("page_size=16",),) and len(whole) == 2 + 4 + 3


def test_a_candidate_that_is_not_the_cause_alone_gets_its_further_conditions():
    """Of the cells at first, all at batch=mixed_lengths and none else are red."""
    cells = ("eagle3.s3.k4.n8.v2.mixed_lengths", "standalone.s2.k4.n16", "none.length")
    found, factors = left(lambda cell: cell.batch == "mixed_lengths" and cell.topk == "4", *cells)
    assert factors == (("topk=4", "batch=mixed_lengths"),) and len(found) < 25


def test_what_is_always_red_ends():
    runs = MarkedRuns(lambda cell: True)
    found = list(runs([Cell.from_id(RED)]))
    assert len(list(decided(runs, found))) < 30 and runs.calls <= 1 + PASSES


def test_only_cells_of_the_matrix_that_run_as_asked_are_tried():
    tried = [Cell.from_id(RED)._replace(draft_tokens=nodes) for nodes in ("4", "6")]
    assert list(runnable(tried)) == tried[1:]  # four nodes are redundant at three steps
    assert expect(tried[1]) == "runs"
