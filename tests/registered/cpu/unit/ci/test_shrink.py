"""Shrinking a red cell, over engines with a known defect."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from specmatrix.ci.local import ShardJob
from specmatrix.ci.run_options import RunOptions
from specmatrix.ci.shrink import Shrunk, reduced
from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run.provenance import crashed, judged
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.subset import Subset
from specmatrix.reports.schema import CellResult, FailingRequest

RED = "eagle3.s3.k4.n8.v2.p16.mixed_lengths"
Defect = Callable[[Cell, Sequence[str], int], bool]


class ScriptedRuns:
    """Judges cells by a predicate on cell, names of requests and tokens; `other` gates are red everywhere."""

    def __init__(self, defect: Defect, blamed: str = "", token: int | None = None, crashes: bool = False) -> None:
        self.defect, self.blamed, self.token, self.crashes = defect, blamed, token, crashes
        self.job = ShardJob(RunOptions())

    def __call__(self, cells: Sequence[Cell], only: Subset | None = None) -> Iterator[CellResult]:
        for cell in cells:
            requests = (only or Subset())(cell, 0)
            names, tokens = [one.name for one in requests], max(one.max_new_tokens for one in requests)
            red, prepared = self.defect(cell, names, tokens), prepare(cell)
            if self.crashes:
                yield crashed(prepared, KeyError(cell.id) if red else ValueError("another error"))
                continue
            outcomes = [Outcome("effective", State.FAIL), Outcome("lossless", State.FAIL if red else State.PASS)]
            ask = FailingRequest("lossless", self.blamed, token=self.token) if self.blamed else None
            yield judged(prepared, outcomes, first_red=ask)


def shrunk(runs: ScriptedRuns, name: str = RED, gate: str = "lossless") -> Shrunk:
    [record] = runs([Cell.from_id(name)])
    best = Shrunk(runs, Cell.from_id(name), record, gate)
    assert [line.split(":")[0] for line in reduced(best)] == ["axes", "requests", "tokens"]
    return best


def test_only_the_values_that_matter_are_left():
    best = shrunk(ScriptedRuns(lambda cell, names, tokens: cell.page_size != "1" and cell.batch != "single"))
    assert best.cell.id == "none.p4.pair"
    best = shrunk(ScriptedRuns(lambda cell, names, tokens: cell.algorithm == "eagle3" and cell.topk == "4"))
    assert best.cell.id == "eagle3.s1.k4"


def test_values_that_stay_red_one_by_one_but_not_together_are_taken_one_by_one():
    best = shrunk(ScriptedRuns(lambda cell, names, tokens: cell.page_size == "16" or cell.batch == "mixed_lengths"))
    assert best.cell.id in ("none.p16", "none.mixed_lengths")


def test_the_blamed_request_alone_is_tried_first():
    runs = ScriptedRuns(lambda cell, names, tokens: cell.batch == "mixed_lengths" and "q7" in names, blamed="q7#2")
    best = shrunk(runs)
    assert (best.cell.id, best.only.requests) == ("none.mixed_lengths", ("q7",))


def test_requests_that_fail_together_are_found_by_halving():
    best = shrunk(ScriptedRuns(lambda cell, names, _: cell.batch == "mixed_lengths" and {"q5", "q10"} <= set(names)))
    assert best.only.requests == ("q5", "q10")


def test_tokens_double_from_the_first_wrong_one():
    best = shrunk(ScriptedRuns(lambda cell, names, tokens: tokens > 20, blamed="q5", token=6))
    assert best.only.tokens == 28
    assert shrunk(ScriptedRuns(lambda cell, names, tokens: tokens >= 96)).only.tokens is None


def test_another_gate_does_not_count_as_red():
    best = shrunk(ScriptedRuns(lambda cell, names, tokens: cell.id == RED))
    assert best.cell.id == RED and best.record.gate("effective").state == "FAIL"


def test_an_error_stays_of_its_kind():
    best = shrunk(ScriptedRuns(lambda cell, names, tokens: cell.page_size != "1", crashes=True), gate="")
    assert best.cell.id == "none.p4" and best.record.error.startswith("KeyError")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["algorithm=eagle3"], "cell id 'algorithm=eagle3' has an unknown part 'algorithm=eagle3'"),
        (["eagle3", "--gate", "lossles"], "gate 'lossles' is unknown; it must be one of "),
        (["eagle3", "--workers", "0"], "workers must be "),
        (["eagle3", "--fault", "none-such"], "fault 'none-such' is unknown in tier cpu"),
    ],
)
def test_bad_options_are_refused(words: list[str], sentence: str, capsys):
    assert main(["shrink", *words]) == 2
    assert sentence in capsys.readouterr().err
