"""How far draft KV looks ahead, and the pages that real runs reuse."""

from dataclasses import replace

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.schedule import ScheduleGate
from specmatrix.matrix.oracles.prefix import span_of


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


@pytest.mark.parametrize("cell_id", ["nextn.deepseek.s2.v2.m4.mixed_lengths", "eagle3.s5.v2.m4.mixed_lengths"])
def test_real_runs_read_their_own_pages_and_one_different_token_is_found(measured, cell_id):
    found, run = measured(cell_id), measured(cell_id).run
    outcome = found.judge(ScheduleGate())
    assert outcome.state is State.PASS and outcome.numbers["reused"] > 0
    size, span = run.resolved["page_size"], span_of(found.prepared.cell, run.resolved)
    reader, (shared,) = next(
        (account, pages) for operation, account, _, pages in run.journal if operation == "open" and pages
    )
    last = len(shared) * size + span - 1
    served = tuple(
        replace(one, tokens=(*one.tokens[:last], -1, *one.tokens[last + 1 :])) if one.account == reader else one
        for one in run.served
    )
    name = next(one.name for one in run.served if one.account == reader)
    text = f"expected that {name} reuses {last + 1 - span - size} cached tokens; got {last + 1 - span}"
    assert text in found.verdict(ScheduleGate(), served=served)
