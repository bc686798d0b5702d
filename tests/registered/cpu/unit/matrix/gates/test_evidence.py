"""The evidence that a preset declares is demanded of its cell."""

from dataclasses import replace

import pytest

from specmatrix.engine.core.config.resolve import resolve
from specmatrix.matrix.cells.cell import Cell, asked
from specmatrix.matrix.cells.model_facts import zoo_facts
from specmatrix.matrix.cover.regressions import NIGHTLY, PR
from specmatrix.matrix.gates.evidence import EVIDENCE, LEAST_ROUNDS
from specmatrix.matrix.subjects.protocol import Memory, Run

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

# A word of a note, and the counter that must be hit where it stands.
CLAIMS = {
    "retract": "retract.done",
    "sessions: a retracted turn resumes": "session.restored",
    "resumes, lag": "session.restored",
    "resumed turn": "session.restored",
    "aborted": "abort.running",
    "aborts in": "abort.running",
}


def demanded(cell):
    """Counters that the cell's start alone demands."""
    resolved = resolve(asked(cell), zoo_facts(cell)).as_dict()
    run = Run((), (), resolved, resolved, {}, Memory(0, 0, 0, 0), None, 0.0)
    return {row.counter for row in EVIDENCE if row.seen and row.when(cell, run)}


@pytest.mark.parametrize("word", CLAIMS)
def test_what_a_note_claims_is_demanded(word):
    found = [text for text, note in (PR | NIGHTLY).items() if word in note and note.startswith("sessions")]
    for text in found:
        assert CLAIMS[word] in demanded(Cell.from_id(text)), text
    assert found


@pytest.mark.parametrize(("name", "always"), [("rules", False), ("rules.length", True), ("temperature", True)])
def test_samples_with_rules_may_end_while_two_texts_still_fit(measured, altered, name, always):
    _, run, _ = measured("eagle3.s3.k4.n8")
    (row,) = [row for row in EVIDENCE if row.counter == "retract.done" and row.seen]
    cell = Cell.from_id(f"none.tight.ragged.{name}")
    for total, asked_for in ((cell.memory_tokens, always), (cell.memory_tokens + 1, True)):
        one = altered(run, 0, prompt_ids=(5,) * 10, output_ids=(5,) * (total // 2 - 10))
        two = replace(one.answers[0], output_ids=(5,) * (total - total // 2 - 10))
        assert row.when(cell, replace(one, answers=(*one.answers[:1], two))) == asked_for


@pytest.mark.parametrize(
    ("one", "two", "held"),
    [
        ((10, 10, 10), (10, 10, 10), 31 + 31),
        ((30,), (10, 10, 10), 31 + 11),
        ((1, 1, 28), (30, 9), 3 + 40),
        ((), (), 31 + 31),
        ((), (15, 15), 3 + 31),
    ],
)
def test_memory_must_not_hold_what_two_sessions_need_in_one_round(measured, altered, one, two, held):
    """Output tokens by the rounds that both run; the session whose first turn takes fewer rounds ends before."""
    _, run, _ = measured("eagle3.s3.v2.pair.stream")
    cell = Cell.from_id("none.tight.pair.stream.temperature")
    (row,) = [row for row in EVIDENCE if row.counter == "retract.done" and row.seen]
    names = [request.name for request in run.requests if not request.after]
    first, second = (place for place, answer in enumerate(run.answers) if answer.name in names)
    run = altered(run, second, prompt_ids=(), output_ids=(5,) * (1 + sum(two or (1,) * 30)), accept_lengths=two)
    for prompt, asked_for in ((cell.memory_tokens - held, False), (cell.memory_tokens - held + 1, True)):
        output = (5,) * (1 + sum(one or (1,) * 30))
        whole = altered(run, first, prompt_ids=(5,) * prompt, output_ids=output, accept_lengths=one)
        assert row.when(cell, whole) == asked_for


@pytest.mark.parametrize(("name", "asked_of_all"), [("ngram.s3.k4.n8", False), ("eagle3.s3.k4.n8", True)])
def test_an_index_that_knows_the_text_may_always_be_right_on_its_first_branch(measured, altered, name, asked_of_all):
    _, run, _ = measured("eagle3.s3.k4.n8")
    (row,) = [row for row in EVIDENCE if row.counter == "tree.compacted" and row.seen]
    cell, depth = Cell.from_id(name), run.resolved["num_steps"]
    whole = altered(run, 0, accept_lengths=(depth + 1,) * LEAST_ROUNDS)
    parts = altered(run, 0, accept_lengths=(depth,) * LEAST_ROUNDS)
    assert row.when(cell, whole) == asked_of_all and row.when(cell, parts)
    assert not row.when(cell, altered(run, 0, accept_lengths=(depth,) * (LEAST_ROUNDS - 1)))


def test_a_rollback_may_be_beyond_a_sliding_window(measured):
    _, run, _ = measured("eagle3.s3.v2.pair.stream")
    (row,) = [row for row in EVIDENCE if row.counter == "session.rolled_back" and row.seen]
    for window, asked_for in ((None, True), (32, False)):
        whole = replace(run, resolved={**run.resolved, "window": window})
        assert row.when(Cell.from_id("eagle3.s3.v2.pair.stream.abort_running"), whole) == asked_for
        assert not row.when(Cell.from_id("eagle3.s3.v2.pair.stream"), whole)


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
    _, run, _ = measured("eagle3.s3.v2.pair.stream")
    (row,) = [row for row in EVIDENCE if row.counter == "decode.batched" and row.seen]
    told = {"window": window, "chunked_prefill_size": chunk, "window_pages": pages, "page_size": 16, "lag": 1}
    run = replace(run, resolved={**run.resolved, **told})
    assert row.when(Cell.from_id(f"eagle3.s3.v2.ragged.{memory}".removesuffix(".ample")), run) == fit
