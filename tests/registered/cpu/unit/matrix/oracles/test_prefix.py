"""Pages that change owners through the cache, against texts written by hand."""

from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.ledger import LedgerGate
from specmatrix.matrix.oracles.prefix import misread_pages, span_of
from specmatrix.matrix.subjects.protocol import Served

# Request 1 gives its first two pages of two tokens to the cache; request 2 reads them.
JOURNAL = [("open", 1, 0, ()), ("reserve", 1, 6, ((7, 8, 9),)), ("donate", 1, 2, ((7, 8),)), ("open", 2, 4, ((7, 8),))]
MESSAGE = "account 2 reads cached page 8 at position 2, but account 1 wrote it for other tokens (compared up to "


def read(account: int, *tokens: int) -> Served:
    return Served(f"q{account}", account, account, tokens, len(tokens), 0)


@pytest.mark.parametrize(
    ("reader", "span", "fault"),
    [
        ((1, 2, 3, 4, 9), 0, ""),
        ((1, 2, 3, 4, 9), 1, MESSAGE + "1 past the page's end)"),
        ((1, 2, 3, 4, 5), 1, ""),
        ((1, 2, 3, 4, 5, 9), 1, ""),
        ((1, 2, 3, 4, 5, 9), 2, MESSAGE + "2 past the page's end)"),
        ((1, 2, 3, 9, 5, 6), 0, MESSAGE + "0 past the page's end)"),
        ((1, 2, 3, 4), 2, ""),  # what never came may have been anything
    ],
)
def test_a_page_is_of_the_text_of_its_reader(reader, span, fault):
    served = (read(1, 1, 2, 3, 4, 5, 6), read(2, *reader))
    assert misread_pages(JOURNAL, 2, served, span) == (2, fault)


def test_pages_are_read_in_the_order_in_which_they_were_written():
    swapped = [*JOURNAL[:3], ("open", 2, 4, ((8, 7),))]
    served = (read(1, 1, 1, 1, 1, 1), read(2, 1, 1, 1, 1, 1))
    assert misread_pages(swapped, 2, served, 0)[1].startswith(
        "account 2 reads cached page 8 at position 0, but account 1 wrote it at position 2"
    )


def test_a_reader_continues_after_the_pages_it_read():
    """Request 2 donates the page after the two that it read, so request 3 reads three."""
    journal = [*JOURNAL, ("reserve", 2, 4, ((5,),)), ("donate", 2, 1, ((5,),)), ("open", 3, 6, ((7, 8, 5),))]
    texts = [read(n, 1, 2, 3, 4, 5, 6, 7) for n in (1, 2, 3)]
    assert misread_pages(journal, 2, texts, 1) == (5, "")


def test_a_turn_of_a_session_is_one_of_its_texts():
    later = replace(read(1, 1, 2, 3, 4, 5, 6), name="q1.turn2")
    assert misread_pages(JOURNAL, 2, (read(1, 1, 2, 3), later, read(2, 1, 2, 3, 4, 5)), 1)[1] == ""


@pytest.mark.parametrize(
    ("cell_id", "layered", "span"),
    [
        ("none", False, 0),
        ("ngram", False, 0),
        ("dflash", False, 0),
        ("standalone", False, 1),
        ("eagle", False, 1),
        ("eagle3.qwen3", False, 1),
        ("nextn.deepseek.s3", False, 1),
        ("nextn.deepseek.s2", True, 2),
        ("nextn.deepseek.s1", True, 1),
    ],
)
def test_how_far_draft_kv_looks_ahead(cell_id, layered, span):
    cell = Cell.from_id(cell_id)
    steps = 0 if cell.steps == "auto" else int(cell.steps)
    assert span_of(cell, {"enable_multi_layer_eagle": layered, "num_steps": steps}) == span


@pytest.mark.parametrize("cell_id", ["nextn.deepseek.s2.v2.m4.burst", "eagle3.s5.v2.m4.burst"])
def test_real_runs_read_their_own_pages_and_one_different_token_is_found(measured, cell_id):
    found, run = measured(cell_id), measured(cell_id).run
    outcome = found.judge(LedgerGate())
    assert outcome.state is State.PASS and outcome.numbers["shared"] > 0
    size, span = run.resolved["page_size"], span_of(found.prepared.cell, run.resolved)
    reader, (shared,) = next(
        (account, pages) for operation, account, _, pages in run.journal if operation == "open" and pages
    )
    last, at, page = len(shared) * size + span - 1, (len(shared) - 1) * size, shared[-1]
    served = tuple(
        replace(one, tokens=(*one.tokens[:last], -1, *one.tokens[last + 1 :])) if one.account == reader else one
        for one in run.served
    )
    writer = next(account for operation, account, _, pages in run.journal if operation == "donate" and page in pages[0])
    text = f"account {reader} reads cached page {page} at position {at}, but account {writer} wrote it for other tokens"
    assert found.verdict(LedgerGate(), served=served) == f"FAIL: {text} (compared up to {span} past the page's end)"
