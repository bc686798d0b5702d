"""The requests that a session must refuse, as workloads hold them."""

import pytest

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.protocol import Refusal
from specmatrix.matrix.workloads.build import tokenizer, workload
from specmatrix.matrix.workloads.refusals import CAPACITY, LATER, PAST_CAPACITY, PAST_CONTEXT, TIMEOUT

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

CONTEXT = 4096


def asks(cell_id):
    return workload(Cell.from_id(cell_id), 0)


def attempts(cell_id):
    return [ask for ask in asks(cell_id) if ask.refused is not None]


def test_every_class_of_refusal_is_asked_for():
    found = {
        ask.refused for cell in ("none.pair.stream", "none.tight.pair.stream", "none.branch") for ask in attempts(cell)
    }
    assert found == set(Refusal)
    assert not attempts("none.burst")


def test_each_session_is_refused_and_goes_on():
    for place in ("s0", "s1"):
        mine = [ask for ask in asks("none.pair.stream") if ask.session.id == place]
        turns = [ask for ask in mine if ask.refused is None]
        before = {ask.name for ask in mine if ask.refused and ask.after == (turns[0].name,)}
        assert len(before) == 5
        assert set(turns[1].after) == {turns[0].name, *before}


def test_the_clock_ends_the_first_session_and_no_busy_one():
    here = asks("none.pair.stream")
    assert {ask.session.timeout for ask in here if ask.session.id == "s0"} == {TIMEOUT}
    assert {ask.session.timeout for ask in here if ask.session.id != "s0"} == {None}
    clocked = [(ask.refused, ask.beside) for ask in here if ask.clock]
    assert clocked == [(Refusal.IN_FLIGHT, here[0].name), (Refusal.CLOSED, None)]
    assert LATER > TIMEOUT


def test_the_second_session_is_closed_while_it_decodes():
    closing = [ask for ask in asks("none.pair.stream.stop_string") if ask.closes_after is not None]
    assert [(ask.session.id, ask.closes_after, ask.ignore_eos, ask.stop) for ask in closing] == [("s1", 1, True, ())]
    late = [ask for ask in attempts("none.pair.stream") if ask.session.id == "s1" and ask.refused is Refusal.CLOSED]
    assert [ask.after for ask in late] == [(closing[0].name,)]


def test_what_was_replaced_cannot_be_continued():
    for cell in ("none.pair.branch", "none.pair.branch.abort_running"):
        here = {ask.name: ask for ask in asks(cell)}
        gone = [ask for ask in here.values() if ask.refused is Refusal.REPLACED]
        assert len(gone) == (1 if "abort" in cell else 2)
        for ask in gone:
            (last,) = ask.after
            replacing, replaced = here[last].session, here[ask.session.follows].session
            assert replacing.replace and replacing.follows == replaced.follows
            assert 0 < replacing.offset < len(tokenizer().encode(here[replaced.follows].prompt).ids)


def test_nothing_is_sent_beside_a_request_that_is_aborted_in_the_queue():
    here = asks("none.m4.burst.stream.abort_queued")
    gone = {ask.name for ask in here if ask.abort_after == 0}
    assert gone and not [ask for ask in here if ask.beside in gone]


def test_texts_are_as_long_as_their_refusal_says():
    assert len(tokenizer().encode(PAST_CONTEXT).ids) > CONTEXT
    assert len(PAST_CONTEXT) < CAPACITY * 3 // 4 < CAPACITY < len(PAST_CAPACITY)
    cell = Cell.from_id("none.p256.tight.pair.stream")
    wide = next(ask for ask in attempts(cell.id) if ask.refused is Refusal.POOL)
    assert cell.memory_tokens < len(tokenizer().encode(wide.prompt).ids) < CONTEXT // 2


def test_eight_streaming_sessions_beside_four_plain_requests():
    here = asks("none.burst.stream")
    assert len({ask.session.id for ask in here if ask.session} - {"nobody"}) == 8
    assert len([ask for ask in here if ask.session is None]) == 4


def test_a_late_abort_comes_when_two_have_collided():
    assert [ask.abort_after for ask in asks("none.tight.pair.abort_running")] == [None, 80]
    assert asks("none.tight.pair.abort_running")[1].ignore_eos
    for cell in ("none.pair.abort_running", "none.tight.pair.stop_string.abort_running"):
        assert [ask.abort_after for ask in asks(cell)] == [None, 5]
