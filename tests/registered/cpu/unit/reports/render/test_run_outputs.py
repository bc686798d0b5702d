"""The outputs of one run: Markdown, page, terminal, and the files beside a report."""

import json
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from specmatrix.reports import schema
from specmatrix.reports.render import plots
from specmatrix.reports.render.console import as_called
from specmatrix.reports.render.markup import LIMIT
from specmatrix.reports.render.run import MAX_ROWS, accuracy_text, run_markdown, run_page, view, write_run
from specmatrix.reports.render.terminal import print_run
from specmatrix.reports.store import load

from ..conftest import printed

VOID = {"meta", "br", "wbr", "input", "circle", "line", "polyline", "rect"}
FACTOR = (
    "16 red cells with lossless FAIL, all at topk > 1 x spec_version=v2 x batch != single, "
    "where none of 64 passing cells is"
)
KNOWN = schema.Waiver("drafts leak on abort", "2026-12-31", "https://host/a/b/7")
EXPIRED = schema.Waiver("known", "2026-08-31")
RULES = tuple(schema.WaiverRule("topk=4", one.reason, one.expiry, issue=one.issue) for one in (KNOWN, EXPIRED))
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'&|`@everyone {{ 7 * 7 }} #1\\|"


class Page(HTMLParser):
    """Reads a page: balanced tags, attributes by tag, the embedded data, and the visible text."""

    def __init__(self, text) -> None:
        super().__init__()
        self.open, self.tags, self.words, self.data = [], [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] == ["script"] and not self.data:
            self.data = data
        elif self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    def all(self, tag, **attrs: str):
        return [found for name, found in self.tags if name == tag and attrs.items() <= found.items()]

    @property
    def text(self):
        return " ".join(self.words)


TRACE = """Traceback (most recent call last):
  File "engine/loop.py", line 12, in step
    raise <Bug>
  File "/usr/lib/python3/x.py", line 3, in <lambda>
  File "../up.py", line 4, in f
"""
WEB = "https://github.com/owner/name"


def test_commits_and_places_are_links_if_the_repository_is_known(run_of, make_cell):
    cells = [make_cell(state="INFRA", error="x", traceback=TRACE)]
    page = Page(run_page(run_of(cells, repository=WEB, commit="0f3c2a9d41b7")))
    links = [found["href"] for found in page.all("a") if found["href"].startswith("http")]
    assert links == [f"{WEB}/blob/0f3c2a9d41b7/engine/loop.py#L12", f"{WEB}/commit/0f3c2a9d41b7"]
    assert "raise <Bug>" in page.text and '"../up.py", line 4' in page.text
    page = Page(run_page(run_of(cells)))
    assert all(found["href"].startswith("#") for found in page.all("a")) and "raise <Bug>" in page.text


LOG = "the engine ended with status 3; end of its log:\nloading\n  <weights>\nTraceback\n\nRuntimeError: out of memory"


def test_the_log_of_an_engine_that_ended_keeps_its_lines(run_of, make_cell):
    run = run_of([make_cell(state="FAIL", gates=(), error=LOG)])
    page = run_page(run)
    assert "end of its log:<pre>loading\n  &lt;weights&gt;\nTraceback\n\nRuntimeError: out of memory</pre>" in page
    said = printed(print_run, run)
    assert "\n  RuntimeError: out of memory\n" in said and "gates:" not in said


def test_red_cells_stand_before_cost_and_before_gates_that_do_not_apply(run_of, make_cell):
    subject = schema.SubjectRecord("mine", "1", (), {"ledger": "it has no journal"})
    run = run_of([make_cell(state="FAIL", gates=(), error="x")], subject=subject)
    text, page = run_markdown(run), run_page(run)
    assert text.index("### Red cells") < text.index("Cost: ") < text.index("it has no journal")
    assert page.index("<h2>Red cells") < page.index("it has no journal") and "### Gates" not in text


@pytest.fixture
def run_of(tmp_path, write_report):
    return lambda cells, **header: view(load(write_report(tmp_path, cells, **header)))


@pytest.fixture
def red_run(run_of, specimen):
    return run_of(specimen(stride=True))


def test_the_view_puts_red_first(run_of, make_cell):
    waived = make_cell("w", state="FAIL", waived=schema.Waiver("drafts leak on abort", "2026-12-31"))
    run = run_of([make_cell("a"), waived, make_cell("r", state="FAIL")])
    assert [cell.id for cell in run.cells] == ["r", "w", "a"]
    assert ([cell.id for cell in run.red], [cell.id for cell in run.waived]) == (["r"], ["w"])
    assert run.verdict == "red"


def test_an_empty_run_is_red_in_every_output(run_of):
    run = run_of([])
    assert run.verdict == "red"
    assert "red, no cell ran" in run_markdown(run)
    assert "no cell ran" in Page(run_page(run)).text
    assert "red: no cell ran" in printed(print_run, run)


def test_markdown_names_red_cells_with_reason_and_command(red_run):
    text = run_markdown(red_run)
    assert text.startswith("## ❌ specmatrix cpu / pr: red, 16 of 80 cells did not pass\n")
    assert FACTOR.replace("_", r"\_").replace(">", "&gt;") in text
    for cell in red_run.red:
        assert f"| FAIL | `{cell.id}` | lossless: 3 of 1280 tokens differ" in text
        assert f"\n{cell.repro}\n" in text
    assert "| lossless | 64 | 16 | 0 |" in text
    assert "PASS 64 · FAIL 16 · NOT MEASURED 0 · INFRA 0 · UNSUPPORTED 0 · waived 0" in text


def test_markdown_fits_a_comment_whatever_the_run_holds(run_of, make_cell):
    gate = (schema.GateResult("lossless", "FAIL", {}, None, "é|" * 20_000),)
    reasons = tuple(schema.ReasonRecord(f"field{index}", index, "because " * 500) for index in range(40))
    cells = [
        make_cell(f"c{index}." + "x" * 200, state="FAIL", gates=gate, repro="run " * 1_000, reasons=reasons)
        for index in range(120)
    ]
    text = run_markdown(run_of(cells))
    assert 20_000 < len(text.encode()) <= LIMIT
    assert "more rows in the full report" in text


def test_markdown_lists_rewrites_choices_and_waivers(run_of, make_cell, rewritten):
    waived = make_cell("w", state="FAIL", waived=KNOWN)
    text = run_markdown(run_of([rewritten("n6", expect="rewritten"), waived], waivers=RULES))
    assert "| `num_draft_tokens: 6 -> 4` | 1 | 1 | a chain verifies steps + 1 tokens |" in text
    assert r"| spec\_version | `v2` | 2 | the overlap schedule is on |" in text
    assert "FAIL 0 · " in text and "waived 1 · " in text
    assert "| FAIL | `w` | drafts leak on abort | `https://host/a/b/7` | 2026-12-31 | lossless: FAIL |" in text


def test_a_waived_cell_is_counted_apart_and_named_with_its_waiver(run_of, make_cell):
    expired = make_cell("e", state="FAIL", waived=EXPIRED)
    run = run_of([make_cell("a"), make_cell("w", state="FAIL", waived=KNOWN), expired], waivers=RULES)
    lines = printed(print_run, run).splitlines()
    counts = (
        "1 passed, 1 failed, 0 not measured, 0 with infrastructure errors, 0 unsupported, 1 waived; total cell time"
    )
    assert lines[0].startswith(counts)
    assert "waived FAIL w: drafts leak on abort (https://host/a/b/7), until 2026-12-31" in lines
    assert "gates: ledger ok, lossless 1 red and 1 waived" in lines and lines[-1] == "red: 1 of 3 cells did not pass"
    page = Page(run_page(run))
    assert (
        all(words in " ".join(page.text.split()) for words in ("1 fail ", "1 waived "))
        and ", 2 FAIL (1 waived)" in page.text
    )
    assert len(page.all("a", href=KNOWN.issue)) == 2
    many = [make_cell(f"w{number}", state="FAIL", waived=KNOWN) for number in range(13)]
    assert "… and 1 more waived cell in the report" in printed(print_run, run_of(many, waivers=RULES)).splitlines()


def test_the_page_holds_every_cell_and_opens_without_a_network(red_run):
    page = Page(run_page(red_run))
    rows = [row for row in page.all("tr") if "data-row" in row]
    assert len(rows) == 80
    assert [row["data-state"] for row in rows[:17]] == ["FAIL"] * 16 + ["PASS"]

    data = json.loads(page.data)["cells"]
    assert [cell["id"] for cell in data] == [cell.id for cell in red_run.cells]
    assert data[0]["effective"]["spec_version"] == "v2"
    assert FACTOR in page.text
    assert all(cell.repro in " ".join(page.text.split()) for cell in red_run.red)
    # The headline, the red cells, what the gates found, and then the figures.
    said = (
        "lossless FAIL at topk > 1 x spec_version=v2 x batch != single, 0f3c2a9d4",
        "red, 16 of 80 cells did not pass",
        "3 of 1280 tokens",
        "15 more cells with this failure",
        "64 PASS, 16 FAIL",
        "Measurements",
    )
    places = [page.text.index(words) for words in said]
    assert places == sorted(places)
    assert page.all("a")[0]["href"] == f"#cell={red_run.groups[0].cells[0].id}", "the headline has the first red cell"
    links = {found[name] for _, found in page.tags for name in ("src", "href") if name in found}
    # Links to the page's own rows, and to nothing else.
    assert links == {f"#cell={cell.id}" for cell in red_run.cells}
    assert "http" not in run_page(red_run) and "url(" not in run_page(red_run)


def test_the_issue_of_a_waiver_is_a_link_if_it_is_an_address(tmp_path, write_report, make_cell):
    rules = [
        schema.WaiverRule("a", "known", "2026-12-31", issue=text) for text in ("https://example.org/1", "javascript:x")
    ]
    page = Page(run_page(view(load(write_report(tmp_path, [make_cell("a")], waivers=tuple(rules))))))
    assert [found["href"] for found in page.all("a")] == ["#cell=a", "https://example.org/1"]


def test_the_page_filters_by_effective_values(red_run):
    page = Page(run_page(red_run))
    assert {found["data-axis"] for found in page.all("select")} >= {"algorithm", "topk", "spec_version", "batch"}
    assert {found["data-state"] for found in page.all("input", type="checkbox")} == {"PASS", "FAIL"}
    assert page.all("input", type="search")
    assert all("spec_version=v" in row["data-axes"] for row in page.all("tr") if "data-row" in row)


def test_the_page_plots_every_measured_cell(red_run):
    text = run_page(red_run)
    measured = sum(cell.gate("acceptance") is not None for cell in red_run.cells)
    assert text.count('class="point ') == measured
    assert text.count('class="glyph"') == measured
    assert text.count('class="point bad"') == 16


def test_hostile_text_stays_text(run_of, make_cell, prose):
    gate = schema.GateResult("lossless", "FAIL", {"first_divergence": EVIL}, None, EVIL)
    cell = make_cell(
        EVIL, state="FAIL", gates=(gate,), error=EVIL, repro=EVIL, axes={EVIL: EVIL, "b": "1"},
        reasons=(schema.ReasonRecord(EVIL, EVIL, EVIL),), rewrites=(schema.RewriteRecord(EVIL, EVIL, EVIL, EVIL),),
    )  # fmt: skip
    run = run_of([cell, make_cell("ok", axes={EVIL: "other", "b": "2"})], commit=EVIL, tier=EVIL)
    page = Page(run_page(run))
    assert len(page.all("script")) == 2 and not page.all("img")
    assert json.loads(page.data)["cells"][0]["id"] == EVIL
    assert EVIL in page.text
    markdown = prose(run_markdown(run))
    assert not {"img", "script"} & set(markdown.tags) and not re.search(r"@\w|#\d", markdown.text)
    assert markdown.text.count("@\u200beveryone {{ 7 * 7 }}") == 8
    assert markdown.tags.count("td") == 3 + 2 * 4 + 4 + 4 * 2
    assert "alert(1)" in printed(print_run, run)


def test_a_page_leaves_out_green_cells_before_red_ones(tmp_path, run_of, make_cell):
    cells = [make_cell(f"g{index}") for index in range(MAX_ROWS)] + [make_cell("red", state="FAIL")]
    page = Page(run_page(run_of(cells)))
    assert len([row for row in page.all("tr") if "data-row" in row]) == MAX_ROWS
    assert json.loads(page.data)["cells"][0]["id"] == "red"
    assert "Omitted here, but listed in report.jsonl: 1 passing cell." in page.text


def test_terminal_commands_are_never_wrapped(red_run):
    lines = printed(print_run, red_run).splitlines()
    for cell in red_run.red[:12]:
        assert f"  {as_called(cell.repro)}" in lines
    assert "… and 4 more red cells in the report" in lines
    assert FACTOR in lines
    assert lines[-1] == "red: 16 of 80 cells did not pass"


def test_files_beside_the_report(tmp_path, specimen, write_report):
    report = load(write_report(tmp_path, specimen(stride=True)))
    run = write_run(report)
    assert run.verdict == "red"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "report.html", "report.jsonl", "report.md", "summary.json",
    ]  # fmt: skip
    assert json.loads((tmp_path / "summary.json").read_text())["fail"] == 16
    assert (tmp_path / "report.md").read_text() == run_markdown(run)
    assert (tmp_path / "report.html").read_text() == run_page(run)


def measured(make_cell, name, numbers, interval, state="PASS"):
    return make_cell(name, gates=(schema.GateResult("acceptance", state, numbers, interval),))


def test_acceptance_is_plotted_against_each_cells_own_reference(make_cell):
    """The gate's interval is that of the ratio; drawn as an interval of lengths it would be near 1 token per round."""
    cell = measured(make_cell, "a", {"length": 5.0, "reference": 4.0, "ratio": 1.25}, (1.2, 1.3))
    ratio, length = plots.ratio_point(cell), plots.acceptance_point(cell)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((25, 20, 30))
    assert (length.value, length.low, length.high) == pytest.approx((5.0, 4.8, 5.2))
    assert length.title == "a: 5.000 tokens per round [4.800, 5.200], reference 4.000"
    old = measured(make_cell, "b", {"length": 5.0, "reference": 4.0}, (4.8, 5.2))
    assert (plots.ratio_point(old).low, plots.ratio_point(old).high) == pytest.approx((20, 30))


def test_a_row_has_the_accuracy_beside_plain_decoding(make_cell):
    gate = schema.GateResult("accuracy", "FAIL", {"accuracy": 0.7, "baseline": 0.8, "n": 100, "lost": 12, "won": 2})
    assert accuracy_text(make_cell(gates=(gate,))) == "12 lost, 2 won of 100, accuracy 70.0 %"
    for numbers in ({}, {"lost": 1, "won": 1}):
        assert accuracy_text(make_cell(gates=(replace(gate, numbers=numbers),))) == ""
    assert accuracy_text(make_cell()) == ""
