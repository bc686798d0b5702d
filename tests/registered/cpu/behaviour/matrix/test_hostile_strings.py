"""No string of a report, of its folder's name or of a history reaches a terminal, a CI or a path as more than text."""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from hashlib import sha256
from io import BufferedWriter
from operator import getitem
from pathlib import Path
from threading import Barrier
from typing import Any

import pandas
import pytest

from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.reports import schema, store
from specmatrix.reports.history import add, flaky, read
from specmatrix.reports.schema import CellRecord, GateResult, ReasonRecord, StartRecord, Token, Waiver, WaiverRule
from specmatrix.reports.store import ReportWriter
from tests.support.made_reports import made_header, write_report
from tests.support.mutated_json import places

HOSTILE = "../../x\x1b[31m\x9b\r\u202e\u2066\u2028\n::warning file=x::y\n ##[group]z##vso[task.x]\x07"
# What a terminal acts on, or shows in another order; a line that a CI takes for a command, or that began as one.
ACTIVE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
TURNING = re.compile("[\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COMMAND = re.compile(r"^\s*:(?!:error )|##\w*\[", re.MULTILINE)


def whole_report(folder: Path) -> Path:
    """A report in which nearly every text of a record has a value."""
    rule = WaiverRule("algorithm=ngram", "known", "2026-12-31", "lossless", issue="https://example.org/1")
    ask = schema.FailingRequest(
        "lossless", "r0", "prompt", "got", "wanted", 3, 1, (Token(5, "a"),), (Token(6, "b"),), 1, 1, ("verb",), note="n"
    )
    start = StartRecord(
        {"model_path": "m"}, {"dtype": "float32"}, "0" * 12, (ReasonRecord("topk", "1", "why"),),
        (schema.RewriteRecord("topk", "4", "1", "a reason"),),
    )  # fmt: skip
    red = GateResult("lossless", "FAIL", {"tokens": 9}, message="3 tokens differ", accept="specmatrix lock")
    cells: dict[str, dict[str, Any]] = {
        "eagle3.s3.k1.n4.v2": {"gates": (red,), "first_red": ask, "verb": "settle", "traceback": "x\n  y"},
        "none": {"state": "PASS", "gates": (GateResult("lossless", "PASS"),), "losses": ("its node was lost",)},
        "ngram": {"gates": (red,), "waived": Waiver("known", "2026-12-31", "https://example.org/1")},
        "standalone.s3": {"state": "UNSUPPORTED", "error": "no such engine"},
    }
    with ReportWriter(folder, made_header(waivers=(rule,), repository="https://example.org/o/n")) as writer:
        for cell, values in cells.items():
            said = {"id": cell, "state": "FAIL", "start": start, "repro": f"r {cell}", "gates": ()}
            said |= {"axes": Cell.from_id(cell).values, "evidence": {"rounds": 1}}
            writer.write(CellRecord(**(said | values)))
    return folder


def resealed(folder: Path, lines: list[Any]) -> Path:
    """A report of these lines, with the digest that another writer would give them."""
    *body, end = lines
    text = "".join(json.dumps(line) + "\n" for line in body)
    folder.mkdir(parents=True)
    end = {**end, "digest": sha256(text.encode()).hexdigest()}
    (folder / "report.jsonl").write_text(text + json.dumps(end) + "\n")
    return folder


def changed(lines: list[Any], *paths: tuple[int | str, ...]) -> list[Any]:
    """A copy of the lines with the hostile text in front of what is at some places."""
    found = json.loads(json.dumps(lines))
    for *holders, last in paths:
        holder = reduce(getitem, holders, found)
        holder[last] = HOSTILE + holder[last]
    return found


def run(capsys: pytest.CaptureFixture[str], *words: object) -> int:
    """The exit status of a command, whose output is text and nothing else."""
    status = main([str(word) for word in words])
    said = capsys.readouterr()
    assert status in (0, 1, 2), words
    for text in said:
        assert not ACTIVE.search(text) and not COMMAND.search(text), (words, text)
    return status


def check_files(folder: Path) -> None:
    """Names and texts of what commands wrote there are text too, and so is what a page's script or GitHub reads."""
    for file in filter(Path.is_file, folder.rglob("*")):
        text = "" if file.suffix == ".parquet" else file.read_text()
        assert not ACTIVE.search(str(file.relative_to(folder))) and not ACTIVE.search(text), file
        inside = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
        for data in [*inside, *([text] if file.name == "check.json" else [])]:
            assert not TURNING.search("".join(_texts(json.loads(data)))), file


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def test_every_string_of_a_report_is_refused_or_is_text(tmp_path, capsys):
    """Each alone, and those that are read all at once in every command that reads a report."""
    base, taken = whole_report(tmp_path / "whole"), []
    lines = [json.loads(line) for line in (base / "report.jsonl").read_text().splitlines()]
    for number, path in enumerate(at for at in places(lines) if isinstance(reduce(getitem, at, lines), str)):
        forged = resealed(tmp_path / "each" / str(number), changed(lines, path))
        # A report of an unknown tier or stage, or of a planted fault, is refused by some commands.
        if run(capsys, "compare", base, forged) != 2 and path[1] not in ("tier", "stage", "fault"):
            taken.append(path)
    forged = resealed(tmp_path / "forged", changed(lines, *taken))
    before, command = {*tmp_path.rglob("*")}, partial(run, capsys)
    out, history = tmp_path / "out", tmp_path / "history"
    assert command("compare", base, forged, "--out", out / "compare") == 1
    assert command("compare", forged, base, "--out", out / "back") == 1
    assert command("review", forged, "--out", out / "review", "--annotate") == 1
    command("review", forged, "--base", forged, "--out", out / "again")
    assert command("history", "add", base, forged, "--history", history) == 0
    assert command("history", "flaky", "--history", history) == 0
    assert command("run", "--rerun-failed", forged, "--out", out / "run") == 2
    assert command("merge", forged, "--out", out / "merged") == 2
    command("plan", "--durations", forged)
    assert all(
        path.is_relative_to(out) or path.parent == history for path in {*tmp_path.rglob("*")} - before - {history}
    )
    check_files(out)
    check_files(history)


@pytest.mark.parametrize("words", ["compare BASE PATH", "review PATH --annotate", "history add PATH --history H"])
def test_the_name_of_a_folder_is_text(words, tmp_path, capsys):
    """Of one that holds a report, and of one that holds none."""
    whole, empty = (tmp_path / str(number) / HOSTILE.replace("../../", "") for number in (1, 2))
    write_report(whole, {"none": {}})
    empty.mkdir(parents=True)
    given = {"BASE": write_report(tmp_path / "base", {"none": {}}), "H": tmp_path / "history"}
    for path in (whole, empty):
        run(capsys, *({**given, "PATH": path}.get(word, word) for word in words.split()))


def test_a_tier_that_is_a_path_chooses_no_base(tmp_path, capsys):
    """A report of a pull request brings its own base, on which everything is red already."""
    cells = {"a": {}, "b": {}}
    (tmp_path / "base").mkdir()
    evil = write_report(tmp_path / "artifact" / "evil", cells, red=("b",), tier="../artifact/evil")
    shutil.copy(evil / "report.jsonl", tmp_path / "artifact" / "evil-pr.jsonl.gz")
    words = ("review", evil, "--base", tmp_path / "base", "--out", tmp_path / "out", "--annotate")
    assert main([*map(str, words)]) == 1
    assert "\n::error title=no report of evil::a report of tier" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "check.json").read_text())["conclusion"] == "failure"


def test_every_text_of_a_history_is_text(tmp_path, capsys):
    history = tmp_path / "history"
    for number, red in enumerate(((), ("ngram",))):
        created = f"2026-09-0{number + 1}T00:00:00+00:00"
        report = write_report(tmp_path / str(number), {"none": {}, "ngram": {}}, red=red, created=created)
        assert run(capsys, "history", "add", report, "--history", history) == 0
    for file in history.glob("*.parquet"):
        frame = pandas.read_parquet(file)
        texts = [name for name in frame.columns if name not in ("created", "state") and isinstance(frame[name][0], str)]
        frame[texts] = HOSTILE + frame[texts].where(frame[texts] != "", "")
        frame["red"] = frame["red"].where(frame["state"] != "PASS", "")
        frame.to_parquet(file)
    before = {*tmp_path.rglob("*")}
    assert run(capsys, "history", "flaky", "--history", history) == 0
    assert flaky(read(history)) and {*tmp_path.rglob("*")} == before


def test_four_writers_of_one_history_leave_every_run_whole(tmp_path, monkeypatch):
    """Each has written its table before the first one gives it its name."""
    history, ready = tmp_path / "history", Barrier(4)
    report = write_report(tmp_path / "report", {"none": {}})
    real = pandas.DataFrame.to_parquet
    monkeypatch.setattr(pandas.DataFrame, "to_parquet", lambda *given, **how: (real(*given, **how), ready.wait()))
    with ThreadPoolExecutor(4) as writers:
        done = [*writers.map(lambda _: add(report, history), range(4))]
    assert len({name for name, _ in done}) == 1
    assert read(history)["cell"].tolist() == ["none"] and not [*history.rglob("*.partial")]


@pytest.mark.parametrize("words", ["compare IN IN --out", "review IN --out"])
def test_whoever_writes_several_files_into_a_folder_is_alone_there(words, tmp_path, monkeypatch):
    given, out = {"IN": write_report(tmp_path / "in", {"none": {}})}, tmp_path / "out"
    real, named = store.publish, set[str]()

    def watched(file: BufferedWriter, path: Path) -> None:
        folder = os.open(out, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(folder)
        named.add(path.name)
        real(file, path)

    monkeypatch.setattr(store, "publish", watched)
    assert main([*(str(given.get(word, word)) for word in words.split()), str(out)]) in (0, 1)
    assert len(named) > 1 and named <= {path.name for path in out.rglob("*")}
