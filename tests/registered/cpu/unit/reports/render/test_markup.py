"""Values are escaped in Markdown, and a document always fits into a pull-request comment."""

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specmatrix.reports.render.markup import LIMIT, ROWS, code, escape
from specmatrix.reports.render.run import run_markdown, view
from specmatrix.reports.schema import GateResult
from specmatrix.reports.store import load


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("<script>", "&lt;script&gt;"),
        ("spec_version * `x` [l](u) #1 ~", r"spec\_version \* \`x\` \[l\](u) \#&#8203;1 \~"),
        ("one\n\ntwo", "one two"),
        ("&amp;", "&amp;amp;"),
        (7, "7"),
        ("@everyone, a@b.c @ 3", "@&#8203;everyone, a@&#8203;b.c @ 3"),
        ("o/r#12, gh-7 and # 3", r"o/r\#&#8203;12, gh-&#8203;7 and \# 3"),
        ("see https://github.com/o/r/issues/1", "see https:&#8203;//github.com/o/r/issues/1"),
        ("$.gates of $.cells", "&#36;.gates of &#36;.cells"),
        (r"a\|b", r"a\\\|b"),
    ],
)
def test_text_is_shown_as_it_is(text, shown):
    assert escape(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "`a b`"),
        ("a|b", r"<code>a\|b</code>"),
        (r"a\|@b", r"<code>a\\\|@&#8203;b</code>"),
        ("a`b", "``a`b``"),
        ("`a`", "`` `a` ``"),
        ("a\nb", "`a b`"),
    ],
)
def test_code_is_shown_as_it_is(text, shown):
    assert code(text) == shown


@pytest.fixture
def red_run(tmp_path, make_cell, write_report):
    """A run whose red cells have these (message, command) texts."""
    empty = view(load(write_report(tmp_path, [make_cell(state="FAIL")])))

    def make(texts):
        cells = tuple(
            make_cell(f"c{n}", state="FAIL", gates=(GateResult("lossless", "FAIL", {}, None, message),), repro=repro)
            for n, (message, repro) in enumerate(texts)
        )
        return replace(empty, cells=cells, red=cells)

    return make


@given(st.lists(st.tuples(st.text(max_size=400), st.text(max_size=3000)), min_size=1, max_size=80))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_document_never_outgrows_its_limit_and_counts_what_it_leaves_out(red_run, texts):
    found = run_markdown(red_run(texts))
    assert len(found.encode()) <= LIMIT
    shown = len(re.findall(r"^\| FAIL \| `c\d+` \|", found, re.M))
    left_out = re.search(r"… and (\d+) more rows? in the full report", found)
    assert shown + int(left_out[1] if left_out else 0) == len(texts)
    assert shown == len(texts) or shown in ROWS


def test_even_one_command_may_be_too_long(red_run):
    found = run_markdown(red_run([("a", "x" * 70_000)]))
    assert len(found.encode()) < 3_000 and "… and 1 more row in the full report." in found and "```" not in found


def test_commands_stay_whole(red_run):
    commands = ["specmatrix run --cells 'a|b' # @a <b> &", "echo ```", "one\ntwo"]
    block = re.search(r"```sh\n(.*?)\n```", run_markdown(red_run([("", command) for command in commands])), re.S)
    assert block[1].splitlines() == [commands[0], "echo ` ` `", "one two"]
