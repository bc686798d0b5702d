"""The page of `docs/` about reports: the schema is complete, and the code of the part on pandas runs on a real run."""

import json
import re
import subprocess
import sys
from typing import get_args

import pytest
from matplotlib import pyplot
from msgspec.structs import fields, replace

import specmatrix
from specmatrix.reports import schema
from specmatrix.reports.store import ReportWriter, load

DOCS = specmatrix.HOME / "docs"
RECORDS = [
    found
    for found in vars(schema).values()
    if isinstance(found, type) and issubclass(found, schema.ReportRecord) and found is not schema.ReportRecord
]
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
PAGE = (DOCS / "report-schema.md").read_text(encoding="utf-8").partition("\n## Reading reports with pandas\n")[2]
QUESTIONS = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_key_of_a_report_is_on_the_schema_page(record):
    page = (DOCS / "report-schema.md").read_text(encoding="utf-8")
    tag = record.__struct_config__.tag
    if tag is not None:
        page = page.partition(f"### `{tag}`")[2].partition("\n### ")[0]
    assert page, f"no section `{tag}`"
    assert [field.name for field in fields(record) if f"`{field.name}`" not in page] == []


def test_the_schema_page_states_the_number_and_every_state():
    page = (DOCS / "report-schema.md").read_text(encoding="utf-8")
    assert f"The schema number is {schema.SCHEMA}." in page
    assert [state for state in get_args(schema.CellState) if f"`{state}`" not in page] == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A real run as base and pr, and the same with one moved start as head."""
    place = tmp_path_factory.mktemp("documents")
    command = ("run", "--stage", "smoke", "--cells", "algorithm=eagle or algorithm=dflash", "--workers", "1")
    out = ("--out", str(place / "out" / "base"))
    subprocess.run([sys.executable, "-m", "specmatrix", *command, *out], check=True, capture_output=True)
    base = load(place / "out" / "base")
    (place / "out" / "pr").symlink_to("base")
    with ReportWriter(place / "out" / "head", replace(base.header, commit="f" * 40)) as writer:
        for cell in base:
            if cell.id == "eagle":
                start = replace(cell.start, resolved={**cell.start.resolved, "spec_version": "v2", "lag": 1})
                gates = (replace(cell.gates[0], state="FAIL", message="v2 is not golden"), *cell.gates[1:])
                cell = replace(cell, start=start, gates=gates, state="FAIL")
            writer.write(cell)
    return place


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_code_of_the_pandas_page_answers_its_questions(runs, monkeypatch, capsys, question):
    section = PAGE.partition(f"### {question}\n")[2].partition("\n### ")[0]
    (code,) = BLOCK.findall(section)
    (shown,) = re.findall(r"^```text\n(.*?)^```\n", section, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(runs)
    exec(compile(code, question, "exec"), {})  # what a reader would paste
    said = capsys.readouterr().out
    assert len(said.splitlines()) >= 2 and shown.strip()
    assert "Empty DataFrame" not in said + shown and "Series([]" not in said


def test_frames_hold_the_content_of_the_report(runs):
    base = load(runs / "out" / "base")
    loaded = specmatrix.load(runs / "out" / "base", [runs / "out" / "head"])
    cells, starts = loaded.cells, loaded.starts
    paths = [str(runs / "out" / name) for name in ("base", "head")]
    assert list(cells["run"].unique()) == list(loaded.headers["run"]) == paths
    assert len(cells) == 2 * len(base) and len(loaded.gates) == 2 * sum(len(cell.gates) for cell in base)
    counts = loaded.evidence.groupby(["run", "counter"])["count"].sum()
    assert counts[paths[0]].to_dict() == base.evidence
    first = cells.iloc[0]
    assert {axis: first[axis] for axis in base[first["id"]].axes} == base[first["id"]].axes
    assert {axis: first[f"effective_{axis}"] for axis in base[first["id"]].axes} == base.values(first["id"])
    assert starts.groupby("run")["cells"].sum().tolist() == [len(base)] * 2
    assert set(cells["start"]) == set(starts["start"])


def test_the_notebook_draws_acceptance_by_position_and_seconds_by_axis(monkeypatch):
    monkeypatch.chdir(DOCS)
    pyplot.switch_backend("Agg")
    names, drawn = {}, []
    for cell in json.loads((DOCS / "reports.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "reports.ipynb", "exec"), names)
            drawn += [len(pyplot.figure(number).axes) for number in pyplot.get_fignums()]
            pyplot.close("all")
            assert cell["outputs"], "the page shows what each cell yields"
    assert drawn == [1, 1]
    rates = names["by_position"]
    assert {"eagle3", "dflash"} <= {*rates.columns} and rates.min().min() > 0.3 and rates.max().max() <= 1
    assert {"batch", "topk"} <= {*names["by_axis"].index} and (names["by_axis"]["max"] >= names["by_axis"]["min"]).all()
