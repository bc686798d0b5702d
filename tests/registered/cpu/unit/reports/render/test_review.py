"""A review: what is red now and not before, what was, what improved, and what no longer runs."""

import json
from pathlib import Path

import pytest

from specmatrix.ci.review import base_of, review
from specmatrix.errors import ConfigError
from specmatrix.reports.compare import compare
from specmatrix.reports.render.review import MARKER, Annotation, Review, check_run, comment, marked, workflow_commands
from specmatrix.reports.render.run import view
from specmatrix.reports.schema import GateResult, ReportError
from specmatrix.reports.store import load


@pytest.fixture
def cells(make_cell):
    """Cells by name; a red one fails gate lossless, and a slow one accepts less."""

    def make(*names: str, red=(), message="3 tokens differ"):
        failed, passed = GateResult("lossless", "FAIL", message=message), GateResult("lossless", "PASS")
        return [make_cell(name, gates=(failed if name in red else passed,)) for name in names]

    return make


@pytest.fixture
def reviewed(tmp_path, write_report):
    def make(base, head):
        old, new = (load(write_report(tmp_path / name, cells)) for name, cells in (("base", base), ("head", head)))
        return Review(view(new), compare(old, new))

    return make


def test_a_cell_is_red_now_red_already_or_improved(cells, reviewed, prose):
    found = reviewed(
        cells("new", "old", "better", red=("old", "better")), cells("new", "old", "better", red=("new", "old"))
    )
    assert [row.cell for row in found.new] == ["new"] and found.old == ("old",)
    assert [change.id for change in found.improved] == ["better"]
    assert found.verdict == "red" and found.outcome == "1 red now and not before, 1 red on the base already, 1 improved"
    text = comment([found], "https://example.org/run?a=1")
    assert text.startswith(MARKER + "\n## ❌ specmatrix: red\n")
    assert "Red now and not before: 1 cell" in text and "| `new` | lossless PASS -&gt; FAIL: 3 tokens differ |" in text
    assert "Red on the base already: 1 cell, `old`." in text and "Improved: 1 cell, `better`" in text
    assert "[Reports of this run](https://example.org/run?a=1)" in text


def test_what_was_red_on_the_base_does_not_fail_a_change(cells, reviewed):
    found = reviewed(cells("a", "b", red=("b",)), cells("a", "b", red=("b",)))
    assert found.verdict == "green" and found.run.verdict == "red"
    assert check_run([found])["conclusion"] == "success" and marked([found]) == []


def test_lost_coverage_is_named_and_red(cells, reviewed):
    found = reviewed(cells("a", "gone"), cells("a"))
    text = comment([found])
    assert found.verdict == "red" and "the cell is missing in head" in text


def test_without_a_base_the_run_itself_is_judged(cells, tmp_path, write_report):
    run = view(load(write_report(tmp_path, cells("a", "b", red=("b",)))))
    found = Review(run, None, "not compared: there is no report of main")
    assert found.verdict == "red" and [row.cell for row in found.new] == ["b"]
    assert "not compared: there is no report of main" in comment([found])


def test_a_comment_of_many_red_cells_fits_and_says_how_many_it_leaves_out(cells, reviewed):
    names = [f"cell{number}" for number in range(900)]
    text = comment([reviewed(cells(*names), cells(*names, red=names, message="x" * 300))])
    assert len(text.encode()) <= 65_000 and "Red now and not before: 900 cells" in text and "more rows" in text


def test_an_annotation_cannot_end_its_line_or_begin_another_command(cells, reviewed):
    hostile = "100 %\n::set-env name=X::y, a:b"
    found = reviewed(cells("a\n::x"), cells("a\n::x", red=("a\n::x",), message=hostile))
    (line,) = workflow_commands(marked([found]))
    assert line.startswith("::error title=a %3A%3Ax (cpu / pr)::lossless PASS -> FAIL")
    assert "\n" not in line and "100 %25" in line
    body = check_run([found], "https://example.org/1")
    assert body["output"]["annotations"][0]["annotation_level"] == "failure" and body["details_url"]


def test_at_most_ten_cells_are_annotated(cells, reviewed):
    names = [f"cell{number}" for number in range(30)]
    assert len(marked([reviewed(cells(*names), cells(*names, red=names))])) == 10


def test_the_base_of_a_run_is_chosen_by_tier_and_stage(cells, tmp_path, write_report):
    head = load(write_report(tmp_path / "head", cells("a")))
    folder = tmp_path / "base"
    folder.mkdir()
    assert base_of(head, None)[1] == "not compared: no report of the base was given"
    assert base_of(head, folder)[1] == f"not compared: {folder} has no cpu-pr.jsonl.gz"
    (folder / "cpu-pr.jsonl.gz").write_bytes(head.path.read_bytes())  # plain is read too
    found, missing = base_of(head, folder)
    assert found is not None and missing == "" and base_of(head, head.path.parent)[0] is not None
    other = load(write_report(tmp_path / "other", cells("a"), tier="gpu1"))
    with pytest.raises(ConfigError, match=r"is of tier cpu, and .* of gpu1; compare like with like"):
        base_of(other, folder / "cpu-pr.jsonl.gz")


def test_the_command_writes_both_files_and_its_status_is_the_verdict(cells, tmp_path, write_report, capsys):
    base, head = write_report(tmp_path / "b", cells("a")), write_report(tmp_path / "h", cells("a", red=("a",)))
    out = tmp_path / "out"
    assert review([head], base, None, out, "https://example.org/1", annotate=True) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "cpu / pr: red, 1 red now and not before" and said[1].startswith("::error title=a")
    assert (out / "comment.md").read_text().startswith(MARKER)
    assert json.loads((out / "check.json").read_text())["output"]["title"] == "1 cell red now"
    assert review([base], base, None, None, "", annotate=False) == 0
    with pytest.raises(ConfigError, match="--link must be an address"):
        review([head], base, None, None, "javascript:alert(1)", annotate=False)


def test_the_poster_knows_the_same_marker():
    assert f'"{MARKER}"' in (Path(__file__).parents[6] / "ci" / "github" / "post.py").read_text()


def test_lines_that_only_failing_cells_execute_come_first(cells, reviewed):
    found = reviewed(cells("a"), cells("a", red=("a",)))
    lines = [Annotation("only failing cells execute this", "executed by a", "engine/loop.py", 4, 6)]
    first, second = workflow_commands(marked([found], lines))
    assert first == (
        "::error file=engine/loop.py,line=4,endLine=6,title=only failing cells execute this::executed by a"
    )
    assert second.startswith("::error title=a")
    note = check_run([found], lines=lines)["output"]["annotations"][0]
    assert (note["path"], note["start_line"], note["end_line"]) == ("engine/loop.py", 4, 6)


def test_a_diff_that_cannot_be_read_is_named(cells, tmp_path, write_report):
    head = write_report(tmp_path / "h", cells("a", red=("a",)))
    with pytest.raises(ConfigError, match=r"cannot read the diff '.*none'"):
        review([head], None, None, None, "", annotate=False, diff=tmp_path / "none")


def test_a_run_that_left_no_report_is_red_and_named(cells, tmp_path, write_report, capsys):
    write_report(tmp_path / "cpu", cells("a"))
    (tmp_path / "gpu1").mkdir()
    out = tmp_path / "review"
    assert review([tmp_path / "cpu", tmp_path / "gpu1"], None, None, out, "", annotate=True) == 1
    said = capsys.readouterr().out
    assert "gpu1: red, no report:" in said and "::error title=no report of gpu1::" in said
    text, check = (out / "comment.md").read_text(), json.loads((out / "check.json").read_text())
    assert "❌ specmatrix: red" in text and "### ❌ gpu1: no report" in text and "### ✅ cpu" in text
    assert (check["conclusion"], check["output"]["title"]) == ("failure", "no report of gpu1")
    assert review([tmp_path / "gpu1"], None, None, out, "", annotate=False) == 1
    with pytest.raises(ReportError, match=r"cannot read .*gpu2: No such file"):
        review([tmp_path / "gpu2"], None, None, out, "", annotate=False)
