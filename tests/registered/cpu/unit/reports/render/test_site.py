"""The dashboard: one page that holds every run and cell, a script per cell, and the runs' own pages."""

import json
import re

import pytest

from specmatrix import HOME
from specmatrix.reports.history.store import add, read
from specmatrix.reports.render.site import write_site
from specmatrix.reports.schema import GateResult, ReportError


@pytest.fixture
def filled(tmp_path, write_report, make_cell):
    """A history of eight runs of two commits: `a` is green, `b` fails in the fourth, acceptance of `a` falls."""
    for number in range(8):
        gate = GateResult("acceptance", "PASS", {"length": 3.0 if number < 4 else 2.4})
        passed = GateResult("ledger", "PASS")
        red = GateResult("lossless", "FAIL", message="</script><script>alert(1)</script>")
        cells = [make_cell("a", gates=(gate,)), make_cell("b", gates=(red if number == 3 else passed,))]
        out = write_report(
            tmp_path / f"run{number}",
            cells,
            created=f"2026-09-01T0{number}:00:00+00:00",
            commit=("a" if number < 4 else "b") * 40,
        )
        if number == 3:
            (out / "report.html").write_text("page of the fourth run")
        add(out, tmp_path / "history")
    return tmp_path / "history"


def data_of(page):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    return json.loads(text.group(1))


def script(path):
    text = path.read_text()
    assert text.startswith("specmatrixCell(") and text.endswith(");\n")
    return json.loads(text.removeprefix("specmatrixCell(").removesuffix(");\n"))


def test_the_page_holds_every_run_and_cell_and_what_happened(tmp_path, filled):
    page = write_site(read(filled), tmp_path / "site", "https://example.org/a/b/").read_text()
    data = data_of(page)
    assert data["cells"] == ["a", "b"] and data["states"] == ["PP", "PP", "PP", "PF", "PP", "PP", "PP", "PP"]
    assert data["repository"] == "https://example.org/a/b" and data["flaky"] == ["b"]
    assert [row[5:] for row in data["runs"][2:4]] == [[2, 0, 0, False, ""], [1, 1, 0, True, ""]]
    assert data["changes"] == [["", "acceptance", 4], ["a", "acceptance", 4]]
    assert data["measures"]["acceptance"] == [1.111] * 4 + [0.8889] * 4 and data["measures"]["accuracy"] == []
    text = re.sub(r"<[^>]+>", "", page)
    assert "3 to 2.4 (-20.0 %) between aaaaaaaaaaaa and bbbbbbbbbbbb" in text
    assert "is red in 1 of 4 runs of aaaaaaaaaaaa" in text and "0 red cells of 2" in text


def test_a_cell_has_a_script_and_a_red_run_its_page(tmp_path, filled):
    write_site(read(filled), tmp_path / "site")
    first, second = (script(tmp_path / "site" / "cells" / f"{cell}.js") for cell in (0, 1))
    assert first["measures"]["acceptance"] == [3.0] * 4 + [2.4] * 4 and first["red"] == []
    assert second["red"] == [[3, "lossless", "lossless: </script><script>alert(1)</script>", False]]
    name = data_of((tmp_path / "site" / "index.html").read_text())["runs"][3][0]
    assert (tmp_path / "site" / "pages" / f"{name}.html").read_text() == "page of the fourth run"


def test_a_red_mark_opens_the_report_at_its_cell_by_the_address_that_the_page_reads():
    site, page = (HOME / "reports" / "render" / name for name in ("site.js", "page.js"))
    assert '"#cell=" + encodeURIComponent(cell)' in site.read_text()
    assert 'asked().startsWith("cell=")' in page.read_text()


def test_it_is_written_over_an_older_one_and_leaves_no_script_of_a_cell_that_is_gone(tmp_path, filled):
    site = tmp_path / "site"
    write_site(read(filled), site)
    (site / "cells" / "2.js").write_text("of an older history")
    write_site(read(filled), site)
    assert sorted(path.name for path in (site / "cells").iterdir()) == ["0.js", "1.js"]


def test_a_place_that_cannot_be_written_is_named(tmp_path, filled):
    (tmp_path / "site").write_text("a file")
    with pytest.raises(ReportError, match=r"cannot write .*site: File exists"):
        write_site(read(filled), tmp_path / "site")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "cells").write_text("a file")
    with pytest.raises(ReportError, match=r"cannot write .*other: File exists"):
        write_site(read(filled), tmp_path / "other")
