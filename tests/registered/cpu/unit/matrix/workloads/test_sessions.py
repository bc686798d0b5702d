"""The requests that a session must refuse, as workloads hold them."""

import pytest

from specmatrix.matrix.cells.cell import MODELS, Cell, session_retract, spares
from specmatrix.matrix.workloads import sessions
from specmatrix.matrix.workloads.build import OVERRUN, workload
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import Refusal
from specmatrix.matrix.workloads.sessions import CAPACITY, EARLIER, LATER, MORE, PAST_CONTEXT, REPLIES, TIMEOUT

CONTEXT = 4096


def requests(cell_id):
    return workload(Cell.from_id(cell_id), 0)


def attempts(cell_id):
    return [request for request in requests(cell_id) if request.refused is not None]


def test_every_class_of_refusal_is_requested():
    cells = ("none.pair.stream", "none.tight.pair.stream", "none.branch")
    assert {request.refused for cell in cells for request in attempts(cell)} == set(Refusal)
    assert not attempts("none.burst")


def test_each_session_is_refused_and_goes_on():
    for place in ("s0", "s1"):
        mine = [request for request in requests("none.pair.stream") if request.session.id == place]
        turns = [request for request in mine if request.refused is None]
        before = {request.name for request in mine if request.refused and request.after == (turns[0].name,)}
        assert len(before) == 5
        assert set(turns[1].after) == {turns[0].name, *before}


def test_the_clock_ends_the_first_session_and_no_busy_one():
    here = requests("none.pair.stream")
    assert {request.session.timeout for request in here if request.session.id == "s0"} == {TIMEOUT}
    assert {request.session.timeout for request in here if request.session.id != "s0"} == {None}
    clocked = [(request.refused, request.beside) for request in here if request.clock]
    assert clocked == [(Refusal.IN_FLIGHT, here[0].name), (Refusal.OFFSET, None), (Refusal.CLOSED, None)]
    assert LATER > TIMEOUT


def test_the_second_session_is_closed_while_it_decodes():
    (closing,) = (one for one in requests("none.pair.stream.stop_string") if one.closes_after is not None)
    assert (closing.session.id, closing.closes_after, closing.ignore_eos, closing.stop) == ("s1", 1, True, ())
    closed = [one for one in attempts("none.pair.stream") if one.refused is Refusal.CLOSED and one.session.id == "s1"]
    assert [request.after for request in closed] == [(closing.name,)]


def test_what_was_replaced_cannot_be_continued():
    for cell in ("none.pair.branch", "none.pair.branch.abort_running"):
        here = {request.name: request for request in requests(cell)}
        gone = [request for request in here.values() if request.refused is Refusal.REPLACED]
        assert len(gone) == (3 if "abort" in cell else 8)
        for request in gone:
            (last,) = request.after
            replacing, replaced = here[last].session, here[request.session.follows].session
            above = here[replaced.follows].session.follows
            assert replacing.replace and replacing.follows == (above or replaced.follows)
            assert 0 < replacing.offset < len(tokenizer().encode(here[replacing.follows].prompt).ids)
        assert any(here[here[request.session.follows].session.follows].session.follows for request in gone), "deep"


def test_nothing_is_sent_beside_a_request_that_is_aborted_in_the_queue():
    here = requests("none.m4.burst.stream.abort_queued")
    gone = {request.name for request in here if request.abort_after == 0}
    assert gone and not [request for request in here if request.beside in gone]


def test_texts_have_the_lengths_of_their_refusals():
    assert len(tokenizer().encode(PAST_CONTEXT).ids) > CONTEXT
    assert len(PAST_CONTEXT) < CAPACITY * 3 // 4 < CAPACITY < len(sessions.PAST_CAPACITY)
    cell = Cell.from_id("none.p256.tight.pair.stream")
    wide = next(request for request in attempts(cell.id) if request.refused is Refusal.POOL)
    assert cell.memory_tokens < len(tokenizer().encode(wide.prompt).ids) < CONTEXT // 2


def test_eight_streaming_sessions_beside_four_plain_requests():
    here = requests("none.burst.stream")
    assert len({request.session.id for request in here if request.session} - {"nobody"}) == 8
    assert len([request for request in here if request.session is None]) == 4


def test_a_late_abort_comes_when_two_have_collided():
    assert [request.abort_after for request in requests("none.tight.pair.abort_running")] == [None, 80]
    assert requests("none.tight.pair.abort_running")[1].ignore_eos
    for cell in ("none.pair.abort_running", "none.tight.pair.stop_string.abort_running"):
        assert [request.abort_after for request in requests(cell)] == [None, 5]


# Positions of two rounds in flight of the widest tree that windowed layers let run beside another.
WINDOWED_OVERRUN = 2 * 8


def pages(tokens, size):
    return -(-tokens // size)


def turns(cell, seed=0):
    """The turns of each session."""
    requests = [request for request in workload(cell, seed) if request.refused is None]
    return [[request for request in requests if request.session.id == name] for name in ("s0", "s1")]


@pytest.mark.parametrize("size", [1, 4, 16, 64, 256])
@pytest.mark.parametrize("model", MODELS)
def test_the_end_of_one_fits_beside_the_first_turn_of_the_other_and_no_two_ends_fit(model, size):
    windowed = model == "qwen3"
    room, overrun = session_retract(windowed, size), WINDOWED_OVERRUN if windowed else OVERRUN
    total = room.memory // size
    assert Cell(model=model, page_size=str(size), memory="session_retract").memory_tokens == room.memory == total * size
    assert pages(room.second + overrun, size) + pages(room.first, size) <= total
    assert pages(room.second, size) + pages(room.second - 1, size) > total
    said = len(tokenizer().encode(REPLIES[0]).ids)
    # Both second turns are admitted, so what was inherited is in use when the two collide.
    assert 2 * pages(room.first + said + overrun // 2 + 1, size) <= total
    assert spares(windowed, size) == (not windowed or size == 256)


@pytest.mark.parametrize("seed", [0, 1, 17])
@pytest.mark.parametrize("start", ["none", "none.p64", "none.p256", "none.qwen3.p64.nocache.c7"])
def test_first_turns_end_at_one_length_and_the_second_ones_begin_together(start, seed):
    cell = Cell.from_id(f"{start}.session_retract.pair.stream.length")
    room, lines = session_retract(cell.model == "qwen3", int(cell.page_size)), turns(cell, seed)
    for line in lines:
        first, second, *rest = line
        assert 1 + len(tokenizer().encode(first.prompt).ids) + first.max_new_tokens == room.first
        said = len(tokenizer().encode(second.prompt).ids) + second.max_new_tokens
        assert room.first + said == room.second
        assert {one[0].name for one in lines} < set(second.after) and second.after == lines[0][1].after
        later = sum(len(tokenizer().encode(request.prompt).ids) + request.max_new_tokens for request in rest)
        assert room.second + later + OVERRUN <= room.memory
        assert all(request.ignore_eos for request in line)


def test_an_aborted_second_turn_has_come_back_by_then_and_the_third_follows_the_first():
    cell = Cell.from_id("none.p4.session_retract.pair.stream.length.abort_running")
    one, two = turns(cell)
    plain = turns(cell._replace(abort="none"))[1]
    assert [request.abort_after for request in one] == [None] * 4
    assert two[1].abort_after == plain[1].max_new_tokens - EARLIER == two[1].max_new_tokens - MORE - EARLIER
    assert two[2].session.follows == two[0].name and plain[2].session.follows == plain[1].name


def test_sessions_refuse_here_too():
    requests = workload(Cell.from_id("none.session_retract.pair.stream.length"), 0)
    assert {Refusal.POOL, Refusal.IN_FLIGHT} <= {request.refused for request in requests}
