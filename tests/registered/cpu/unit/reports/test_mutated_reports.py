"""2,000 seeded mutations of a report of real cells: every reader shows its content or refuses it in one sentence, and
no comparison is green if a line of JSON shows that a cell got worse."""

import json
from collections import Counter
from io import StringIO
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

import specmatrix.reports.store
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
from specmatrix.reports.schema import GateResult, ReportError
from specmatrix.reports.store import Report, ReportWriter, load
from tests.support.mutated_json import TOKENS, with_other_value

pytestmark = pytest.mark.register(est_seconds=8, stage="pr")

MUTATIONS = 2000
# One in so many is tried with every change.
SAMPLE = 5
REAL = ("dflash", "eagle", "ngram", "standalone.pair", "eagle3.tiers.v2.waves.length", "none.v2.length")
MOST = 500
# What shows how much a gate looked at, and what it must not find; written down again, apart from the code under test.
LOOKED = {
    "ledger": ("pages", "stamps", "verbs"),
    "lossless": ("tokens", "scored", "oracle_tokens"),
    "acceptance": ("emitted", "rounds"),
    "finish": ("requests",),
    "config": ("fields",),
    "effective": ("keys", "required"),
}
FOUND = {
    "ledger": ("leaked", "wrong_stamps"),
    "lossless": ("divergent", "first_divergence"),
    "acceptance": ("left",),
    "finish": ("faults",),
    "effective": ("differences", "unseen"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of real cells and of one cell that is red in every way."""
    runner = reference_runner(0)
    directory = tmp_path_factory.mktemp("whole")
    with ReportWriter(directory, run_header("cpu", "smoke", 0, GATES)) as writer:
        for name in REAL:
            writer.write(record := runner.run_cell(Cell.from_id(name)))
            assert record.state == "PASS", record
        red = type(record)(
            "red", "FAIL", record.start, record.axes, "specmatrix run --cells red", error="it broke",
            waived=None, gates=(
                GateResult("lossless", "FAIL", {"first_divergence": "q6, token 2"}, None, "4 of 5 differ"),
                GateResult("accuracy", "FAIL", {"accuracy": 0.5, "baseline": 0.75, "n": 4, "lost": 2, "won": 1,
                                                "outcomes": "1100"}, (0.1, 0.9), "worse"),
            ),
        )  # fmt: skip
        writer.write(red)
    runner.close()
    return directory / "report.jsonl"


def mutated(whole: bytes, number: int) -> bytes:
    """The report after mutation `number`: of bytes, of lines, or of values."""
    draw = Random(number)
    lines = whole.splitlines(keepends=True)
    kind = draw.choice(("bytes", "lines", "values", "values", "values", "less"))
    times = draw.choice((1, 1, 1, 3))
    if kind == "less":
        for at in draw.sample(range(len(lines)), times):
            lines[at] = with_less(lines[at], draw) + b"\n"
        return b"".join(lines)
    if kind == "values":
        for at in draw.sample(range(len(lines)), times):
            lines[at] = with_other_value(lines[at], draw) + b"\n"
        return b"".join(lines)
    for _ in range(times):
        at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        if kind == "lines":
            change = draw.randrange(5)
            if change == 0 and len(lines) > 2:
                del lines[at]
            elif change == 1:
                lines.insert(other, lines[at])
            elif change == 2:
                lines[at], lines[other] = lines[other], lines[at]
            elif change == 3:
                lines[at] = lines[at].rstrip(b"\n")
            else:
                lines.insert(at, draw.choice((b"\n", b"{}\n", b"\xff\n", b"[" * 100_000 + b"\n", b"null\n")))
        else:
            text = b"".join(lines)
            begin, length = draw.randrange(len(text)), draw.choice((0, 1, 1, 7, 300, len(text)))
            # The newline leaves something for the next time.
            lines = [text[:begin] + draw.choice((b"\n", draw.randbytes(3), *TOKENS[:-1])) + text[begin + length :]]
    return b"".join(lines)


def with_less(line: bytes, draw: Random) -> bytes:
    """A cell with less content or a contradiction, or a header of a different run; other lines are unchanged."""
    row = json.loads(line)
    if row["kind"] == "header":
        row[draw.choice(("zoo_hash", "data_hash"))] = "0123456789ab"
    if row["kind"] == "cell" and row.get("gates"):
        gate = draw.choice(row["gates"])
        numbers = gate.setdefault("numbers", {})
        names = [*LOOKED.get(gate["name"], ()), *FOUND.get(gate["name"], ())]
        name = draw.choice([each for each in names if each in numbers] or list(numbers) or ["none"])
        change = draw.randrange(5)
        if change == 0:
            row["evidence"] = {}
        elif change == 1:
            row["axes"][draw.choice(list(row["axes"]))] = "other"
        elif change == 2:
            numbers.pop(name, None)
        else:
            old = numbers.get(name)
            numbers[name] = old[:1] if isinstance(old, list) else "q6" if isinstance(old, str) else draw.choice((0, 1))
    return json.dumps(row).encode()


def cells_of(path: Path) -> dict[str, dict]:
    """The cell lines of a report by id, as JSON."""
    rows = map(json.loads, path.read_bytes().splitlines())
    return {row["id"]: row for row in rows if row["kind"] == "cell"}


def worse(base: dict[str, dict], head: dict[str, dict]) -> list[str]:
    """Cells that passed in base and show less in head."""
    return [name for name, cell in base.items() if cell["state"] == "PASS" and not as_good(cell, head.get(name))]


def as_good(old: dict, new: dict | None) -> bool:
    if new is None or new["state"] != "PASS" or any(new["axes"].get(k, v) != v for k, v in old["axes"].items()):
        return False
    if len(new.get("evidence", {})) < len(old.get("evidence", {})) / 2:
        return False
    gates = {gate["name"]: gate for gate in new["gates"]}
    for gate in old["gates"]:
        name, after = gate["name"], gates.get(gate["name"])
        if (
            after is None
            or after["state"] != "PASS"
            or any(after.get("numbers", {}).get(n) for n in FOUND.get(name, ()))
        ):
            return False
        if any(size(after, each) < size(gate, each) / 2 for each in set(LOOKED.get(name, ())) - {"verbs"}):
            return False
    return True


def size(gate: dict, amount: str) -> float:
    value = gate.get("numbers", {}).get(amount, 0)
    return len(value) if isinstance(value, list) else value if isinstance(value, int | float) else 0


def read(path: Path, base: Report) -> bool:
    """Show the report in every way, and compare it with `base` both ways; True if one comparison is green."""
    report = load(path)
    console = Console(file=StringIO(), width=80)
    run = view(report)
    texts = [run_markdown(run), run_page(run), json.dumps(run.summary.to_json(), allow_nan=False)]
    print_run(run, console)
    green = False
    for sides in ((base, report), (report, base)):
        comparison = compare(*sides)
        if comparison.verdict == "green":
            green = True
            found = worse(*(cells_of(side.path) for side in sides))
            assert not found, f"green although {found} got worse"
        texts += [comparison_markdown(comparison), comparison_page(comparison)]
        texts.append(json.dumps(comparison_record(comparison), allow_nan=False))
        print_comparison(comparison, console)
    frames = Runs({str(path): report}, {})
    for make in (frames.headers, frames.cells, frames.gates, frames.evidence, frames.starts):
        make()
    for text in (*texts, console.file.getvalue()):
        text.encode()
    return green


def raw(path: Path, base: Report, ends: Counter[str]) -> str:
    """What goes wrong other than a refusal in one sentence, "" if nothing; `ends` counts the valid outcomes."""
    try:
        ends["green" if read(path, base) else "red"] += 1
    except ReportError as refusal:
        text = str(refusal)
        ends["refused"] += 1
        good = str(path) in text and "\n" not in text and len(text) < len(str(path)) + MOST
        return "" if good else f"refused in the words {text[:200]!r}"
    except Exception as error:
        frame = error.__traceback__
        while frame.tb_next:
            frame = frame.tb_next
        return f"{type(error).__name__}: {str(error)[:200]} in {frame.tb_frame.f_code.co_qualname}:{frame.tb_lineno}"
    return ""


EVERY = pytest.param(range(MUTATIONS), marks=pytest.mark.nightly, id="every")


@pytest.mark.parametrize("numbers", [pytest.param(range(0, MUTATIONS, SAMPLE), id="sample"), EVERY])
def test_a_mutated_report_is_read_or_refused_in_one_sentence(
    whole: Path, tmp_path: Path, numbers: range, monkeypatch: pytest.MonkeyPatch
):
    base, text = load(whole), whole.read_bytes()
    wrong, ends = {}, Counter[str]()
    for number in numbers:
        path = tmp_path / "report.jsonl"
        path.write_bytes(mutated(text, number))
        # One in four is read as a large one, whose cells are decoded when they are used.
        monkeypatch.setattr(specmatrix.reports.store, "EAGER_BYTES", 1 if number % 4 == 0 else 10**9)
        if found := raw(path, base, ends):
            wrong[number] = found
    assert not wrong, "\n".join(f"mutation {number}: {found}" for number, found in wrong.items())
    # Otherwise the mutations prove less than they say.
    assert min(ends[end] for end in ("green", "red", "refused")) * 50 >= len(numbers), ends
