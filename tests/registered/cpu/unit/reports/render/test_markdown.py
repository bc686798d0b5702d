import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specmatrix.reports.render.markdown import LIMIT, Document, code, escape

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

LINES = st.lists(st.text(max_size=300), max_size=60)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("<script>", "&lt;script&gt;"),
        ("spec_version * `x` [l](u) #1 ~", r"spec\_version \* \`x\` \[l\](u) \#1 \~"),
        ("one\n\ntwo", "one two"),
        ("&amp;", "&amp;amp;"),
        (7, "7"),
    ],
)
def test_text_is_shown_as_it_is(text, shown):
    assert escape(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a b", "`a b`"), ("a|b", r"`a\|b`"), ("a`b", "``a`b``"), ("`a`", "`` `a` ``"), ("a\nb", "`a b`")],
)
def test_code_is_shown_as_it_is(text, shown):
    assert code(text) == shown


def test_a_table_says_how_many_rows_are_left_out():
    document = Document()
    document.table(("a", "b"), [(str(index), "x") for index in range(30)], most=10)
    text = document.text()
    assert text.count("| x |") == 10
    assert text.endswith("… and 20 more rows in the full report.\n")
    assert text.startswith("| a | b |\n| --- | --- |\n| 0 | x |\n")


def test_an_empty_table_and_no_commands_are_left_out():
    document = Document()
    document.table(("a",), [])
    document.commands("title", [])
    assert document.text() == "\n"


def test_commands_stay_whole():
    document = Document()
    document.commands("Run them again", ["specmatrix run --cells 'a|b'", "echo ```"])
    block = re.search(r"```sh\n(.*?)\n```", document.text(), re.S)
    assert block is not None
    assert block[1].splitlines() == ["specmatrix run --cells 'a|b'", "echo ` ` `"]


@given(LINES, LINES, st.integers(1_200, 20_000))
def test_a_document_never_outgrows_its_limit(rows, lines, limit):
    document = Document(limit)
    document.table(("a",), [(escape(row),) for row in rows])
    for line in lines:
        document.line(line)
    document.commands("again", rows)
    assert len(document.text().encode()) <= limit


def test_a_full_document_keeps_what_came_first():
    document = Document(2_000)
    document.line("first")
    document.table(("a",), [("x" * 200,) for _ in range(50)])
    document.line("y" * 3_000)
    text = document.text()
    assert text.startswith("first\n") and "… and" in text and "y" not in text.split("report")[1]


def test_the_limit_is_that_of_a_comment():
    assert LIMIT < 65_536
