"""The evidence that a preset declares is demanded of its cell."""

import re
from dataclasses import replace

import pytest

from specmatrix.engine.core.config.resolve import resolve
from specmatrix.matrix.cells.cell import Cell, asked, zoo_facts
from specmatrix.matrix.cover.lock import PRESETS
from specmatrix.matrix.gates.conditions import MIN_ROUNDS
from specmatrix.matrix.gates.evidence import EVIDENCE
from specmatrix.matrix.subjects.protocol import Answer, Memory, Run
from specmatrix.matrix.workloads.prepared_cell import prepare

# A word of a note, and the counter that must be hit where it stands.
CLAIMS = {
    "retract": "retract.done",
    "sessions: a retracted turn resumes": "session.restored",
    "resumes, lag": "session.restored",
    "resumed turn": "session.restored",
    "aborted": "abort.running",
    "aborts in": "abort.running",
}


def run_of(cell, *answers: Answer):
    """A run of a cell with these answers and no counters."""
    resolved = resolve(asked(cell), zoo_facts(cell)).as_dict()
    return Run((), answers, resolved, resolved, {}, Memory(0, 0, 0, 0), None, 0.0)


@pytest.mark.parametrize("word", CLAIMS)
def test_what_a_note_claims_is_demanded(word):
    notes = (PRESETS["pr"] | PRESETS["nightly"]).items()
    found = [Cell.from_id(text) for text, note in notes if word in note and note.startswith("sessions")]
    for cell in found:
        run = run_of(cell)
        assert CLAIMS[word] in {row.counter for row in EVIDENCE if not row.zero and row.applies(cell, run)}, cell.id
    assert found


@pytest.mark.parametrize(
    ("cell", "tokens", "due"),
    [
        ("none.p4", 6, True),
        ("none.p4", 5, False),
        ("none.nocache.p4", 60, False),
        ("none.p64", 99, True),
        ("none.p64.pair.stream", 99, False),
        ("none.p16.pair.stream", 99, True),
        ("none.p64.pair.branch", 99, True),
    ],
)
def test_a_text_that_fills_a_page_must_be_cached(cell, tokens, due):
    cell = Cell.from_id(cell)
    answer = Answer("q0", (1,) * (tokens - 2), (1, 1), "", "length", None, 0, ())
    (row,) = [row for row in EVIDENCE if not row.zero and row.counter.startswith("prefix.insert")]
    assert row.applies(cell, run_of(cell, answer)) == due
    assert not row.applies(cell, run_of(cell, replace(answer, finish="abort")))


# Counters that must be hit (+) or must not (-), cells that demand it, and behind `not` cells that do not.
DEMANDS = """\
adaptive.switched_down+ eagle3.tiers.ramp.length not eagle3.tiers.m4.ramp.length eagle3.tiers.mixed_lengths
  eagle3.table.ramp.length none.ramp.length
adaptive.switched_up+ eagle3.tiers.ramp.length eagle3.flat.pair eagle3.flat.mixed_lengths.length not eagle3.flat
  eagle3.flat.pair.temperature eagle3.flat.pair.abort_running eagle3.flat.pair.stop_token
adaptive.batch_switch+ eagle3.tiers.ramp.length eagle3.table.ramp.length not eagle3.table.m4.ramp.length
  eagle3.table.mixed_lengths eagle3.flat.ramp.length eagle3.tiers.m4.ramp.length
adaptive.undrafted+ eagle3.tiers.ramp.length not eagle3.tiers.m4.ramp.length eagle3.tiers.mixed_lengths eagle3.s3.pair
adaptive.undrafted- eagle3.flat.ramp.length eagle3.s3 none not eagle3.tiers eagle3.table.pair
adaptive.switched_up|adaptive.switched_down|adaptive.held|adaptive.batch_switch+
  eagle3.throughput.mixed_lengths.stream.length not eagle3.throughput.ramp.length eagle3.tiers.ramp.length
adaptive.held- eagle3.tiers eagle3.s3 none not eagle3.throughput.ramp.length
adaptive.batch_switch- eagle3.flat.ramp.length eagle3.s3.ramp.length not eagle3.tiers.ramp.length
  eagle3.table.ramp.length
spec.drafted+ ngram eagle3 not none
spec.accepted+ eagle3 dflash eagle3.pair.abort_running eagle3.stream.abort_running not ngram none eagle3.abort_running
  dflash.topk_topp.abort_running
spec.shortened+ eagle3.s3.room.mixed_lengths.length eagle3.s3.confident.mixed_lengths not eagle3.s3.mixed_lengths.length
  eagle3.s3.room.pair.length eagle3.s3.room.mixed_lengths eagle3.s3.confident.pair
spec.budgeted+ dspark.budget.vanilla.mixed_lengths.mixed not dspark.budget.vanilla.pair dspark.vanilla.pair
spec.budgeted- dspark.vanilla.pair eagle3.s3.confident.pair not dspark.budget.vanilla.pair
spec.shortened- eagle3.s3 none not eagle3.s3.room.pair
tree.branched+ eagle3.s3.k4.n8 not eagle3.s3 none
tree.branched- eagle3.s3 none not eagle3.s3.k4.n8
overlap.in_flight+ eagle3.s3.v2 not eagle3.s3.v1
overlap.in_flight- eagle3.s3.v1 not eagle3.s3.v2
decode.batched+ none.mixed_lengths none.burst none.mixed_lengths.tight not none none.pair
retract.done+ none.tight.mixed_lengths none.tight.mixed_lengths.abort_running none.tight.burst.abort_running
  none.tight.pair none.session_retract.pair.stream.length none.tight.mixed_lengths.rules.length not none.mixed_lengths
  none.tight.pair.stream none.tight.mixed_lengths.rules
retract.done- none.mixed_lengths not none.burst none.tight.mixed_lengths none.session_retract.pair.stream.length
prefix.hit- none.nocache not none
prefix.hit+ none.m4.mixed_lengths none.m4.burst none.p16.m4.mixed_lengths not none.mixed_lengths
  none.nocache.m4.mixed_lengths none.m4.mixed_lengths.abort_running none.p64.m4.mixed_lengths
  none.tight.m4.mixed_lengths
queue.waited+ none.m4.mixed_lengths none.m4.burst not none.mixed_lengths
session.inherited+ none.pair.stream none.session_retract.pair.stream.length not none.tight.pair.stream
  none.session_retract.mixed_lengths.stream.length none.pair.branch none.pair
session.dropped+ none.tight.burst.stream not none.tight.mixed_lengths.stream none.tight.burst.branch none.burst.stream
session.spared+ none.session_retract.pair.stream.length not none.session_retract.mixed_lengths.stream.length
  none.pair.stream.length
session.rolled_back+ none.pair.stream.abort_running not none.pair.stream none.tight.pair.stream.abort_running
session.timed_out+ none.pair.stream not none.pair.branch none.pair
session.timed_out- none.pair.branch none.pair not none.pair.stream
session.held- none.pair.branch none.pair not none.pair.stream
session.opened+ none.pair.branch none.pair.stream not none.pair
sample.greedy+ none none.pair.mixed not none.temperature none.rules
grammar.round+ none.mixed_lengths.regex eagle3.mixed_lengths.mixed.tagged not none none.mixed_lengths
grammar.round- none none.mixed_lengths not none.mixed_lengths.regex
sample.random+ none.pair.mixed none.temperature none.rules not none
sample.random- none not none.pair.mixed none.temperature
abort.waiting+ none.m4.mixed_lengths.abort_queued not none.mixed_lengths.abort_running none
abort.running+ none.mixed_lengths.abort_running not none.m4.mixed_lengths.abort_queued none
abort.running- none not none.mixed_lengths.abort_running none.m4.mixed_lengths.abort_queued
finish.stop_token+ none none.mixed_lengths none.mixed_lengths.abort_running none.stop_token
  none.tight.mixed_lengths.stop_token not none.abort_running none.tight.mixed_lengths none.tight.pair.stop_token
  none.length none.tight.pair.stream
finish.stop_string+ none.stop_string none.tight.pair.stop_string not none none.tight.pair.stream.stop_string
finish.length+ none.length none.tight.pair.length none.tight.pair.stream.length not none none.abort_running.length
finish.context+ none.ctx.length not none
finish.context- none not none.ctx.length
graph.replayed|graph.eager- none eagle3.s3 not
prefill.step+ none not
decode.round+ none not
rank.step+ none.tp2.pair not none.pair
rank.step- none.pair not none.tp2.pair
spec.drafted- none not ngram eagle3
adaptive.activated+ eagle3.tiers eagle3.flat not eagle3.s3 none
adaptive.activated- eagle3.s3 none not eagle3.tiers eagle3.flat
adaptive.switched_up- eagle3.s3 none not eagle3.tiers eagle3.flat
adaptive.switched_down- eagle3.s3 none not eagle3.tiers eagle3.flat
tree.compacted- eagle3.s3 none not eagle3.s3.k4.n8
overlap.dropped- eagle3.s3.v1 not eagle3.s3.v2
prefill.chunked- none not none.c7
mixed.step+ none.v2.c7.mixing.mixed_lengths.mixed not none.v2.c7.mixed_lengths.mixed
mixed.step- none.v2.c7.mixed_lengths.mixed not none.v2.c7.mixing.mixed_lengths.mixed
prefix.insert- none.nocache none.qwen3 not none
window.slid- none not none.qwen3.nocache
session.opened- none.pair not none.pair.branch none.pair.stream
session.refused+ none.pair.branch none.pair.stream not none.pair
session.refused- none.pair not none.pair.branch none.pair.stream
session.held+ none.pair.stream not none.pair.branch none.pair
session.restored+ none.session_retract.pair.stream.length not none.pair.stream.length
session.spared|session.restored- none.pair.stream.length not none.session_retract.pair.stream.length
abort.waiting- none not none.mixed_lengths.abort_running none.m4.mixed_lengths.abort_queued
"""
# Those that depend on the answers, which have tests of their own.
ANSWERED = {"tree.compacted+", "prefill.chunked+", "prefix.evict+", "window.slid+"}
ANSWERED |= {"prefix.insert|prefix.hit|prefix.duplicate+"}


def test_every_row_has_its_cells():
    demanded = {line.split()[0] for line in re.split(r"\n(?! )", DEMANDS.strip())}
    assert demanded | ANSWERED == {f"{row.counter}{'-' if row.zero else '+'}" for row in EVIDENCE}


@pytest.mark.parametrize("demand", re.split(r"\n(?! )", DEMANDS.strip()), ids=lambda demand: demand.split()[0])
def test_what_each_counter_is_demanded_of(demand):
    row, *cells = demand.split()
    for place, text in enumerate(cells):
        if text == "not":
            continue
        cell = Cell.from_id(text)
        run = replace(run_of(cell), requests=prepare(cell).requests)
        found = {f"{one.counter}{'-' if one.zero else '+'}" for one in EVIDENCE if one.applies(cell, run)}
        assert (row in found) == (place < cells.index("not")), text


def row_of(counter):
    (row,) = [row for row in EVIDENCE if row.counter == counter and not row.zero]
    return row


def test_long_prompts_are_split_and_long_texts_slide_the_window():
    def due(counter: str, text: str, prompt: int, tokens: int = 1, **fields: object) -> bool:
        cell = Cell.from_id(text)
        answer = replace(Answer("q0", (1,) * prompt, (1,) * tokens, "", "length", None, 0, ()), **fields)
        return bool(row_of(counter).applies(cell, run_of(cell, answer)))

    assert [due("prefix.evict", "none.m4.gsm", size) for size in (3071, 3072)] == [False, True]
    assert not due("prefix.evict", "none.nocache.m4.gsm", 9999) and not due("prefix.evict", "none.m4.burst", 9999)
    assert [due("prefill.chunked", "none.c7.pair", size) for size in (7, 8)] == [False, True]
    assert not due("prefill.chunked", "none.c7.pair", 9, cached_tokens=2) and not due("prefill.chunked", "none", 99)
    name = "eagle3.qwen3.s3.p4.nocache"
    known = run_of(Cell.from_id(name)).resolved
    most = known["window"] + known["page_size"] + (known["lag"] + 2) * known["num_draft_tokens"]
    assert [due("window.slid", name, most + more, 9) for more in (-9, -8)] == [False, True]
    assert not due("window.slid", name, most, 9, finish="abort") and not due("window.slid", "eagle3.s3.p4", most, 9)


@pytest.mark.parametrize(("name", "always"), [("rules", False), ("rules.length", True), ("temperature", True)])
def test_samples_with_rules_may_end_while_two_texts_still_fit(measured, altered, name, always):
    cell, run = Cell.from_id(f"none.tight.mixed_lengths.{name}"), measured("eagle3.s3.k4.n8").run
    for total, asked_for in ((cell.memory_tokens, always), (cell.memory_tokens + 1, True)):
        one = altered(run, 0, prompt_ids=(5,) * 10, output_ids=(5,) * (total // 2 - 10))
        two = replace(one.answers[0], output_ids=(5,) * (total - total // 2 - 10))
        assert row_of("retract.done").applies(cell, replace(one, answers=(*one.answers[:1], two))) == asked_for


@pytest.mark.parametrize(
    ("one", "two", "held"),
    [((10,) * 3, (10,) * 3, 62), ((30,), (10,) * 3, 42), ((1, 1, 28), (30, 9), 43), ((), (), 62), ((), (15, 15), 34)],
)
def test_memory_must_not_hold_what_two_sessions_need_in_one_round(measured, altered, one, two, held):
    """Output tokens by the rounds that both run; the session whose first turn takes fewer rounds ends before."""
    _, run, _ = measured("eagle3.s3.v2.pair.stream")
    cell = Cell.from_id("none.tight.pair.stream.temperature")
    row = row_of("retract.done")
    names = [request.name for request in run.requests if not request.after]
    first, second = (place for place, answer in enumerate(run.answers) if answer.name in names)
    run = altered(run, second, prompt_ids=(), output_ids=(5,) * (1 + sum(two or (1,) * 30)), accept_lengths=two)
    for prompt, asked_for in ((cell.memory_tokens - held, False), (cell.memory_tokens - held + 1, True)):
        output = (5,) * (1 + sum(one or (1,) * 30))
        whole = altered(run, first, prompt_ids=(5,) * prompt, output_ids=output, accept_lengths=one)
        assert row.applies(cell, whole) == asked_for


@pytest.mark.parametrize(("name", "asked_of_all"), [("ngram.s3.k4.n8", False), ("eagle3.s3.k4.n8", True)])
def test_an_index_that_knows_the_text_may_always_be_right_on_its_first_branch(measured, altered, name, asked_of_all):
    run, row = measured("eagle3.s3.k4.n8").run, row_of("tree.compacted")
    cell, depth = Cell.from_id(name), run.resolved["num_steps"]
    for lengths, due in (
        ((depth + 1,) * MIN_ROUNDS, asked_of_all),
        ((depth,) * MIN_ROUNDS, True),
        ((depth,) * (MIN_ROUNDS - 1), False),
    ):
        assert bool(row.applies(cell, altered(run, 0, accept_lengths=lengths))) is due


def test_a_rollback_may_be_beyond_a_sliding_window(measured):
    run, cell = measured("eagle3.s3.v2.pair.stream").run, Cell.from_id("eagle3.s3.v2.pair.stream")
    for window, asked_for in ((None, True), (32, False)):
        whole, row = replace(run, resolved={**run.resolved, "window": window}), row_of("session.rolled_back")
        assert row.applies(cell._replace(abort="running"), whole) == asked_for and not row.applies(cell, whole)


@pytest.mark.parametrize(
    ("memory", "window", "chunk", "pages", "fit"),
    [
        ("tight", None, 7, 0, True),
        ("ample", 32, 7, 0, True),
        ("tight", 32, None, 99, False),
        # The window, two steps of 4 positions and two chunks of 7: 54 positions, on up to 5 pages of each request.
        ("tight", 32, 7, 10, True),
        ("tight", 32, 7, 9, False),
    ],
)
def test_two_requests_decode_together_where_their_windows_fit(measured, memory, window, chunk, pages, fit):
    run = measured("eagle3.s3.v2.pair.stream").run
    told = {"window": window, "chunked_prefill_size": chunk, "window_pages": pages, "page_size": 16, "lag": 1}
    run = replace(run, resolved={**run.resolved, **told})
    cell = Cell.from_id("eagle3.s3.v2.mixed_lengths")._replace(memory=memory)
    assert row_of("decode.batched").applies(cell, run) == fit


def test_a_slot_may_go_on_drafting_where_graphs_pad_smaller_batches_to_its_size():
    cell = Cell.from_id("eagle3.tiers.ramp.length")
    run = run_of(cell)
    for largest, due in ((0, True), (32, False)):
        told = replace(run, resolved={**run.resolved, "cuda_graph_max_bs": largest})
        assert row_of("adaptive.undrafted").applies(cell, told) is due
