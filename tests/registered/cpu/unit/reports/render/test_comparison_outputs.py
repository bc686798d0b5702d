"""The outputs of a comparison: Markdown, page, terminal and files."""

import json
import re

import pytest
from msgspec.structs import replace

from specmatrix.reports.compare import Acknowledgement, ChangeState, compare
from specmatrix.reports.render.comparison import comparison_markdown, comparison_page, write_comparison
from specmatrix.reports.render.console import as_called
from specmatrix.reports.render.markup import LIMIT
from specmatrix.reports.render.terminal import print_comparison
from specmatrix.reports.schema import GateResult, Waiver
from specmatrix.reports.store import load

from ..conftest import printed

EVIL = "</script><img src=x onerror=alert(2)>|`@everyone #1\\|\n"


@pytest.fixture
def compared(tmp_path, write_report):
    def run(base, head, acknowledgements=(), **head_header: object):
        old = load(write_report(tmp_path / "base", base))
        return compare(old, load(write_report(tmp_path / "head", head, **head_header)), acknowledgements)

    return run


@pytest.fixture
def eventful(compared, specimen, make_cell, rewritten):
    """One of each: regressed, lost, new, rewritten, infra, improved, changed inputs and rules."""
    base = specimen()
    head = specimen(policy="v1", damage=".64")[4:]
    head[0] = replace(head[0], state="INFRA", gates=(), error="no memory")
    base.append(make_cell("better", state="FAIL", gates=(GateResult("lossless", "FAIL"),)))
    head += [make_cell("better", gates=(GateResult("lossless", "PASS"),)), rewritten("fresh")]
    return compared(
        base, head, [Acknowledgement("lost", "nothing", "idle", "2026-12-31")],
        commit="9bd07c55e1aa", thresholds={"acceptance": {"tripwire": 1.01}}, waivers=(),
        versions={"python": "3.12.1", "torch": "2.13.0", "specmatrix": "0.1.0"},
    )  # fmt: skip


def test_markdown_holds_every_part(eventful):
    text = comparison_markdown(eventful)
    assert text.startswith("## ❌ specmatrix compare: red, `0f3c2a9d41b7` → `9bd07c55e1aa`\n")
    for reason in eventful.reasons:
        assert f"- **{reason.replace('_', chr(92) + '_').replace('>', '&gt;')}**" in text
    for title in (
        "What the changes have in common", "Inputs that differ", "Effective coverage", "Rewrites",
        "Changed cells", "Changed automatic choices", "Changed thresholds", "Changed waivers",
    ):  # fmt: skip
        assert f"### {title}" in text
    assert "| moved | `spec_version: v2 -> v1` | 13 |" in text
    assert "| `acceptance.tripwire` | 1.05 | 1.01 |" in text
    assert "| python | `3.11.7` | `3.12.1` | nothing |" in text
    assert "Acknowledged, but did not happen: `lost nothing`." in text
    assert re.search(r"\*\*\d+ red cells?.* at .*page\\_size=64.*, where none of \d+ passing cells is\*\*", text)


def places(text, *parts: str):
    """The positions of the parts in a text, each of which occurs once."""
    assert {part: text.count(part) for part in parts} == dict.fromkeys(parts, 1)
    return [text.index(part) for part in parts]


def test_results_come_before_coverage_rewrites_and_rules(eventful):
    titles = ("Changed cells", "Effective coverage", "Rewrites", "Changed thresholds", "Changed waivers", "Inputs that")
    for text, mark in ((comparison_markdown(eventful), "### "), (comparison_page(eventful), "<h2>")):
        found = places(text, *(mark + title for title in titles))
        assert found == sorted(found)
    said = printed(print_comparison, eventful)
    parts = ("REGRESSED ", "pairs? (lost|gained), ", "moved rewrite ", "rule acceptance", "\nred: ")
    found = [re.search(part, said).start() for part in parts]
    assert found == sorted(found)


def test_changed_cells_are_grouped_by_cause(eventful):
    page = comparison_page(eventful)
    causes = re.findall(r'class="cause">(\d+) cells? ([A-Z ]+): ([^<]*)<', page)
    assert len({(state, cause) for _, state, cause in causes}) == len(causes)
    counted = dict.fromkeys(ChangeState, 0)
    for number, state, _ in causes:
        counted[ChangeState(state)] += int(number)
    assert counted == {state: sum(c.state is state for c in eventful.changes) for state in ChangeState}
    assert ("8", "REWRITTEN", "spec_version: v2 → v1") in causes
    assert ("1", "IMPROVED", "lossless FAIL → PASS") in causes
    assert sum(state == "REGRESSED" for _, state, _ in causes) == 1


def test_pairs_lost_with_red_cells_are_listed_last(compared, make_cell):
    def sized(name, topk, **changes: object):
        return make_cell(name, axes={"algorithm": "eagle3", "topk": str(topk)}, resolved={"topk": topk}, **changes)

    base = [sized("a", 1), sized("b", 2), sized("c", 4)]
    comparison = compared(base, [sized("a", 1), sized("c", 4, state="FAIL")])
    assert [(row.cause, row.explained) for row in comparison.coverage.lost] == [
        ("1 cell is not in head", False), ("1 cell is FAIL in head", True),
    ]  # fmt: skip
    page = comparison_page(comparison)
    gone, fold, red = places(
        page, "1 cell is not in head", "<summary>Lost with the red cells above", "1 cell is FAIL in head"
    )
    assert gone < fold < red


def test_every_changed_cell_has_one_repro_line(eventful):
    text, page = comparison_markdown(eventful), comparison_page(eventful)
    block = text.split("```sh\n")[1].split("\n```")[0].splitlines()
    assert block == [change.repro for change in eventful.changes]
    shown = re.sub(r'<span class="word">(.*?)</span>', r"\1", page)
    assert all(change.repro in shown for change in eventful.changes)


def test_markdown_fits_a_comment_whatever_changed(compared, make_cell):
    gate = (GateResult("lossless", "FAIL", {}, None, "é|" * 20_000),)
    base = [make_cell(f"c{index}." + "x" * 150, axes={"a": str(index), "b": str(index % 40)}) for index in range(150)]
    head = [replace(cell, state="FAIL", gates=gate, repro="run " * 1_000) for cell in base]
    text = comparison_markdown(compared(base, head))
    assert 20_000 < len(text.encode()) <= LIMIT


def test_the_page_is_complete_and_opens_without_a_network(eventful):
    text = comparison_page(eventful)
    for state in ChangeState:
        assert f"<span>{state.lower()}</span>" in text
    for title in (
        "Changed cells",
        "Measured changes",
        "Effective coverage",
        "Rewrites",
        "Inputs that differ",
        "Provenance",
    ):
        assert f"<h2>{title}</h2>" in text
    assert "http" not in text and "url(" not in text
    assert text.count('<span class="badge bad">REGRESSED</span>') == eventful.counts[ChangeState.REGRESSED]
    for tag in ("table", "tr", "td", "section", "svg", "code", "figure"):
        assert text.count(f"<{tag} ") + text.count(f"<{tag}>") == text.count(f"</{tag}>")


def test_hostile_text_stays_text(compared, make_cell, prose):
    gate = (GateResult("lossless", "FAIL", {}, None, EVIL),)
    comparison = compared([make_cell(EVIL)], [make_cell(EVIL, state="FAIL", gates=gate)], commit=EVIL)
    assert "<img" not in comparison_page(comparison)
    markdown = prose(comparison_markdown(comparison))
    assert not {"img", "script"} & set(markdown.tags) and not re.search(r"@\w|#\d", markdown.text)
    assert "@\u200beveryone #\u200b1\\|" in markdown.text
    assert markdown.rows == [4, 4]
    assert "<img src=x" in printed(print_comparison, comparison)


def test_the_terminal_shows_the_same(eventful):
    lines = printed(print_comparison, eventful).splitlines()
    assert lines[-1] == f"red: {'; '.join(eventful.reasons)}"
    assert (
        "moved rewrite spec_version: v2 -> v1 in 13 cells: trees run on v1 until the tree gates are green on v2"
        in lines
    )
    for state in ChangeState:
        shown = [change for change in eventful.changes if change.state is state][:12]
        assert all(f"  {as_called(change.repro)}" in lines for change in shown)


def test_the_terminal_says_what_is_acknowledged_and_a_common_command_once(compared, make_cell, rewritten):
    accepted = Acknowledgement("rewrite", "num_draft_tokens: *", "as in sglang#1", "2026-12-31")
    base = [make_cell("a"), make_cell("b"), make_cell("z", repro="other")]
    head = [replace(rewritten(name), repro="specmatrix run --cells x") for name in ("a", "b")]
    comparison = compared(base, [*head, replace(rewritten("z"), repro="other")], [accepted])
    for text in (comparison_markdown(comparison), comparison_page(comparison)):
        assert text.count("acknowledged: as in sglang") == 3
    lines, called = printed(print_comparison, comparison).splitlines(), f"  {as_called('specmatrix run --cells x')}"
    assert [line for line in lines if line.startswith("  ")] == [called, "  other"]
    assert sum(line.endswith("; acknowledged: as in sglang#1") for line in lines) == 4
    assert lines.index(called) == next(i for i, line in enumerate(lines) if " b: " in line) + 1


def test_files_of_a_comparison(tmp_path, eventful):
    write_comparison(eventful, tmp_path / "out")
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "comparison.html", "comparison.json", "comparison.md",
    ]  # fmt: skip
    record = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert record["verdict"] == "red"
    assert record["states"]["REGRESSED"] == eventful.counts[ChangeState.REGRESSED]
    assert list(record)[:4] == ["schema", "verdict", "reasons", "states"]
    assert len(record["changes"]) == sum(record["states"].values()) - record["states"]["SAME"]
    assert {"coverage", "rewrites", "choices", "factors", "thresholds", "waivers", "mismatches"} <= set(record)


def test_equal_causes_are_neighbours_whatever_the_cells_are_called(compared, make_cell):
    gates = {name: (GateResult(name, "FAIL"), GateResult("finish", "PASS")) for name in ("ledger", "ranks")}
    green = (GateResult("ledger", "PASS"), GateResult("ranks", "PASS"), GateResult("finish", "PASS"))
    head = [
        make_cell(cell, gates=(*gates[red], green[red == "ledger"]))
        for cell, red in (("a", "ranks"), ("b", "ledger"), ("c", "ranks"))
    ]
    comparison = compared([make_cell(cell, gates=green) for cell in "abc"], head)
    assert [(change.id, change.cause) for change in comparison.changes] == [
        ("b", "ledger PASS -> FAIL"), ("a", "ranks PASS -> FAIL"), ("c", "ranks PASS -> FAIL"),
    ]  # fmt: skip


def test_a_run_with_a_planted_fault_compares_with_one_without(compared, make_cell):
    comparison = compared([make_cell()], [make_cell()], fault="bonus-stride")
    assert "<td>planted fault</td><td>none</td><td>bonus-stride</td>" in comparison_page(comparison)
    back = compare(load(comparison.head.path), load(comparison.base.path))
    assert "<td>planted fault</td><td>bonus-stride</td><td>none</td>" in comparison_page(back)


def test_a_waiver_is_no_acknowledgement(compared, make_cell):
    red = make_cell("w", state="FAIL", waived=Waiver("drafts leak on abort", "2026-12-31"))
    text = printed(print_comparison, compared([make_cell("w"), make_cell("a")], [red, make_cell("a")]))
    assert "; waived until 2026-12-31: drafts leak on abort" in text and "acknowledged" not in text
