"""Seeded mutations of a report of real and of red cells. What a writer takes is shown in every way, and no comparison
with it is green where it says that a cell or the run got worse."""

import json
from collections import Counter
from io import StringIO
from pathlib import Path
from random import Random

import msgspec
import pytest
from msgspec import DecodeError
from msgspec.structs import replace
from rich.console import Console

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import run_header
from specmatrix.matrix.run.runner import reference_runner
from specmatrix.reports.compare import compare
from specmatrix.reports.compare.compare import comparison_record
from specmatrix.reports.frames import Runs
from specmatrix.reports.render.comparison import comparison_markdown, comparison_page
from specmatrix.reports.render.run import run_markdown, run_page, view
from specmatrix.reports.render.terminal import print_comparison, print_run
from specmatrix.reports.schema import CellResult, CounterDemand, GateResult, Header, ReportError, Waiver, WaiverRule
from specmatrix.reports.store import Report, ReportWriter, load
from tests.support.mutated_json import with_other_value

MUTATIONS = 2000
# One in so many is tried with every change.
SAMPLE = 32
REAL = ("dflash", "eagle", "ngram", "standalone.pair", "eagle3.tiers.v2.ramp.length", "none.v2.length")
MAX_TEXT = 500
# A waived cell, and the selector of its waiver.
WAIVED = ("waived", "topk=4 and algorithm=eagle")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of real cells and of cells that are red in every way."""
    runner = reference_runner(0)
    directory = tmp_path_factory.mktemp("whole")
    records = [runner.run_cell(Cell.from_id(name)) for name in REAL]
    runner.close()
    assert all(record.state == "PASS" for record in records), records
    hit = sorted({name for record in records for name, times in record.evidence.items() if times})
    known = WaiverRule(WAIVED[1], "known", "9999-12-31")
    header = replace(
        run_header("cpu", "smoke", 0, GATES), waivers=(known,), commit="1" * 40,
        counters=CounterDemand(tuple(hit), {"stamp.wrong": "slots hold their owner's KV"}, len(REAL)),
    )  # fmt: skip
    red = replace(
        records[-1], id="red", state="FAIL", evidence={}, error="it broke", gates=(
            GateResult("lossless", "FAIL", {"first_divergence": "q6, token 2"}, None, "4 of 5 differ"),
            GateResult("accuracy", "FAIL", {"accuracy": 0.5, "baseline": 0.75, "n": 4, "lost": 2, "won": 1,
                                            "outcomes": "1100"}, (0.1, 0.9), "worse"),
        ),
    )  # fmt: skip
    unknown = replace(red, id="unknown", state="NOT MEASURED", error="no answer", gates=())
    waived = replace(unknown, id=WAIVED[0], axes=unknown.axes | {"topk": "4", "algorithm": "eagle"},
                     waived=Waiver(known.reason, known.expiry))  # fmt: skip
    with ReportWriter(directory, header) as writer:
        for record in (*records, red, unknown, waived):
            writer.write(record)
    return directory / "report.jsonl"


def rewritten(whole: Path, folder: Path, draw: Random) -> Path:
    """The report as a writer takes it after its header or some of its cells say less, or have other values."""
    report = load(whole)
    rows = [msgspec.json.encode(row) for row in (report.header, *report)]
    change = draw.choice((with_less, with_other_value))
    for at in draw.sample(range(len(rows)), draw.choice((1, 1, 1, 3))):
        rows[at] = change(rows[at], draw)
    try:
        header, *cells = (msgspec.json.decode(row, type=Header if row is rows[0] else CellResult) for row in rows)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise ReportError("no record") from None
    with ReportWriter(folder, header) as writer:
        for cell in cells:
            writer.write(cell)
    return writer.path


def with_less(line: bytes, draw: Random) -> bytes:
    """A cell that shows less, contradicts itself or has no verdict, a header of another run or other rules; other lines
    stay."""
    row = json.loads(line)
    if row["kind"] == "header":
        change = draw.randrange(5)
        if change == 0:
            row[draw.choice(("zoo_hash", "data_hash"))] = "0123456789ab"
        elif change == 1:
            row["counters"]["hit"].append("nothing.hit")
        elif change == 2:
            row["counters"]["zero"][draw.choice(row["counters"]["hit"])] = "is not wanted"
        elif change == 3:
            row["counters"] = None
        else:
            row["waivers"][0]["cells"] = draw.choice(("topk=1", "((((", "algorithm=none or topk=2"))
    if row["kind"] == "cell" and (not row.get("gates") or draw.randrange(4) == 0):
        return with_other_state(row, draw)
    if row["kind"] == "cell" and row.get("gates"):
        gate = draw.choice(row["gates"])
        numbers = gate.setdefault("numbers", {})
        name = draw.choice(list(numbers) or ["none"])
        change = draw.randrange(7)
        if change == 0:
            row["evidence"] = {}
        elif change == 1:
            row["axes"]["batch"] = "other"
        elif change == 5 and row["axes"]:
            del row["axes"][draw.choice(list(row["axes"]))]
        elif change == 6:
            row["waived"] = {"reason": "known", "expiry": "9999-12-31"}
            row["state"], row["error"] = "FAIL", "it broke"
        elif change == 2:
            numbers.pop(name, None)
        else:
            old = numbers.get(name)
            numbers[name] = old[:1] if isinstance(old, list) else "q6" if isinstance(old, str) else draw.choice((0, 1))
    return json.dumps(row).encode()


def with_other_state(row: dict, draw: Random) -> bytes:
    """A cell that a machine lost, or that is red for the reason in its error."""
    row["state"], row["error"] = draw.choice((("INFRA", "exit code -9"), ("FAIL", "it broke"), ("NOT MEASURED", "x")))
    row["gates"], row["evidence"] = [], {}
    if draw.randrange(2):
        row["waived"] = {"reason": draw.choice(("known", "")), "expiry": "9999-12-31"}
    return json.dumps(row).encode()


def read(path: Path, base: Report) -> bool:
    """Show the report in every way, and compare it with `base` both ways; True if one comparison is green, as none is
    that lost a verdict."""
    report = load(path)
    console = Console(file=StringIO(), width=80)
    run = view(report)
    texts = [run_markdown(run), run_page(run), json.dumps(run.summary.to_json(), allow_nan=False)]
    print_run(run, console)
    green = False
    for sides in ((base, report), (report, base), (report, report)):
        comparison = compare(*sides)
        if comparison.verdict == "green":
            green |= base in sides
            old, new = sides
            for cell in old:
                after = new[cell.id]
                if cell.state == "PASS" and not after.waived:
                    gates = {gate.name for gate in after.gates}
                    assert after.state == "PASS" and gates.issuperset(gate.name for gate in cell.gates)
        texts += [comparison_markdown(comparison), comparison_page(comparison)]
        texts.append(json.dumps(comparison_record(comparison), allow_nan=False))
        print_comparison(comparison, console)
    frames = Runs({str(path): report})
    made = (frames.headers, frames.cells, frames.gates, frames.evidence, frames.starts)
    assert all(frame is not None for frame in made)
    for text in (*texts, console.file.getvalue()):
        text.encode()
    return green


def in_one_sentence(refusal: Exception, path: Path) -> bool:
    text = str(refusal)
    return "\n" not in text and len(text) < len(str(path)) + MAX_TEXT


EVERY = pytest.param(range(MUTATIONS), marks=pytest.mark.nightly, id="every")


@pytest.mark.parametrize("numbers", [pytest.param(range(0, MUTATIONS, SAMPLE), id="sample"), EVERY])
def test_what_a_writer_takes_is_shown_and_not_green_where_it_is_worse(whole: Path, tmp_path: Path, numbers: range):
    base = load(whole)
    ends = Counter[str]()
    for number in numbers:
        try:
            ends["green" if read(rewritten(whole, tmp_path, Random(number)), base) else "red"] += 1
        except ReportError as refusal:
            ends["refused"] += 1
            assert in_one_sentence(refusal, tmp_path), number
        except Exception as error:
            error.add_note(f"mutation {number}")
            raise
    # Otherwise the mutations prove less than they say.
    assert min(ends[end] for end in ("green", "red", "refused")) * 50 >= len(numbers), ends
