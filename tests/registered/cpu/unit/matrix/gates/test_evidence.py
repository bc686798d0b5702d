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


@pytest.mark.parametrize(("name", "asked_of_all"), [("ngram.s3.k4.n8", False), ("eagle3.s3.k4.n8", True)])
def test_an_index_that_knows_the_text_may_always_be_right_on_its_first_branch(measured, altered, name, asked_of_all):
    _, run, _ = measured("eagle3.s3.k4.n8")
    (row,) = [row for row in EVIDENCE if row.counter == "tree.compacted" and row.seen]
    cell, depth = Cell.from_id(name), run.resolved["num_steps"]
    whole = altered(run, 0, accept_lengths=(depth + 1,) * LEAST_ROUNDS)
    parts = altered(run, 0, accept_lengths=(depth,) * LEAST_ROUNDS)
    assert row.when(cell, whole) == asked_of_all and row.when(cell, parts)
    assert not row.when(cell, altered(run, 0, accept_lengths=(depth,) * (LEAST_ROUNDS - 1)))
