"""What a red cell tells of its first red request, in every output."""

import pytest
from msgspec.structs import replace

from specmatrix.reports.render.failing_request import ask_lines, pages_text
from specmatrix.reports.render.run import run_page, view, write_explained
from specmatrix.reports.render.terminal import print_run
from specmatrix.reports.schema import AskPages, FailingRequest, GateResult, Timeline, Token, TreeNode
from specmatrix.reports.store import load

from ..conftest import cell, printed, write_cells

ASK = FailingRequest(
    "lossless",
    "q6",
    prompt="Question: <b>How many?</b>",
    got="It is <script>alert(1)</script>",
    expected="It is 4",
    token=1,
    first=0,
    got_tokens=(Token(5, "It"), Token(7, "<script>")),
    expected_tokens=(Token(5, "It"), Token(6, " is"), Token(8, " 4")),
    round=2,
    lag=1,
    journal=("40 launch 8", "41 settle 1"),
    pages=AskPages(4, (1, 2, 3, 9), 2, 13, (8,)),
    tree=(
        TreeNode(-1, Token(5, "It"), Token(6, " is"), 1.5, True),
        TreeNode(0, Token(7, "<i>"), Token(5, "It"), 0.25, False),
    ),
)
AXES = {"algorithm": "eagle3", "topk": "4", "spec_version": "auto", "batch": "mixed_lengths"}
RED = cell("eagle3.k4", state="FAIL", first_red=ASK, evidence={"tree.compacted": 3, "spec.accepted": 9})
NEAR = cell("eagle3", axes=AXES | {"topk": "1"}, evidence={"spec.accepted": 9, "chain": 2})
FAR = cell("none", axes=dict.fromkeys(AXES, "other"), evidence={"tree.compacted": 1})


def shown(tmp_path) -> tuple[str, str]:
    run = view(load(write_cells(tmp_path, [FAR, NEAR, RED])))
    return printed(print_run, run), run_page(run)


def test_the_terminal_sets_the_tokens_side_by_side(tmp_path):
    lines = shown(tmp_path)[0].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  q6 at token 1"))
    assert lines[start : start + 5] == [
        "  q6 at token 1, verify round 2, lag 1: Question: <b>How many?</b>",
        "    expected  'It' >' is'      ' 4'",
        "    got       'It' >'<script>'",
        "    pages 1-3, 9 (4 positions each), 2 cached; 13 positions committed, 8 in flight",
        "    journal: 40 launch 8; 41 settle 1",
    ]


def test_the_page_holds_all_of_it_and_escapes_it(tmp_path):
    page = shown(tmp_path)[1]
    for text in ("verify round 2, lag 1", "It is 4", "41 settle 1", "margin 0.25"):
        assert text in page, text
    assert '<li class="accepted"><code>&#39;It&#39;</code>' in page
    assert "<script>alert" not in page and "<b>How" not in page and "<i>" not in page.split("<script")[0]


def test_a_request_whose_tokens_are_right_shows_its_output_once(tmp_path):
    found = replace(ASK, token=None, got_tokens=ASK.expected_tokens, got="It is 4")
    assert [line.strip().split()[0] for line in ask_lines(found)] == ["q6", "pages", "journal:"]
    assert ask_lines(found)[0].startswith("q6 at its end (its tokens are right), verify round 2, lag 1: ")
    page = run_page(view(load(write_cells(tmp_path, [NEAR, replace(RED, first_red=found)]))))
    assert "<h4>output</h4><pre>It is 4</pre>" in page and "<h4>expected</h4>" not in page
    assert '<table class="tokens">' not in page


def test_a_traced_cell_and_its_page_of_steps_are_linked(tmp_path):
    traced = replace(RED, timeline=Timeline(note="nothing was traced"))
    run = view(load(write_cells(tmp_path, [NEAR, traced, replace(traced, id="other.k4", timeline=None)])))
    assert run_page(run).count(">step through it</a>") == 1
    [page] = write_explained(run, tmp_path)
    assert page == tmp_path / "explain" / "eagle3.k4.html" and '<a href="explain/eagle3.k4.html">' in run_page(run)
    assert '<a href="../report.html#cell=eagle3.k4">' in page.read_text() and "margins are in nats" in page.read_text()


def test_an_error_shows_its_verb_and_traceback_and_a_golden_the_command_that_accepts_it(tmp_path):
    crashed = cell("none.p4", state="INFRA", error="LedgerError: no", verb="settle", traceback="Traceback <b>\n  File")
    golden = GateResult("config", "FAIL", message="topk is 4", accept="python -m pytest golden --force-regen")
    late = GateResult("acceptance", "FAIL", message="too low", accept="python -m oracle")
    run = view(load(write_cells(tmp_path, [crashed, cell("ngram", gates=(golden, late))])))
    said = printed(print_run, run)
    assert "  raised in settle; the whole traceback is in the report\n" in said
    assert "  if config should change: python -m pytest golden --force-regen\n" in said
    page = run_page(run)
    assert "<pre>Traceback &lt;b&gt;\n  File</pre>" in page and "should change: python -m pytest golden" in page
    assert "python -m oracle" not in page.split("<script")[0] + said


def test_a_crash_tells_of_the_request_that_its_engine_was_at(tmp_path):
    ask = FailingRequest(
        "crash", "q6", prompt="How many kites?", got=" First", note="the journal's last entry is settle 4 of q6"
    )
    crashed = replace(
        cell("none.p4", state="FAIL", error="LedgerError: no", verb="settle", traceback="Traceback"),
        first_red=ask,
        timeline=Timeline(),
    )
    run = view(load(write_cells(tmp_path, [crashed])))
    lines = [line.strip() for line in printed(print_run, run).splitlines()]
    at = lines.index("raised in settle; the whole traceback is in the report")
    assert lines[at + 1 : at + 3] == ["q6: How many kites?", "the journal's last entry is settle 4 of q6"]
    [page] = write_explained(run, tmp_path)
    assert "<h2>Request at the error</h2>" in page.read_text() and '"crashed":true' in page.read_text()
    assert "Request at the error" in page.read_text() and "First red request" not in page.read_text()


@pytest.mark.parametrize(
    ("pages", "text"),
    [
        ((), "none"),
        ((4,), "4"),
        ((1, 2, 3, 9, 10), "1-3, 9-10"),
        (range(1, 40, 2), "…, 25, 27, 29, 31, 33, 35, 37, 39"),
    ],
)
def test_pages_are_told_as_runs(pages, text: str):
    assert pages_text(AskPages(1, tuple(pages), 0, 0, ())).startswith(f"pages {text} (1 position each); 0 positions")
