"""Two sessions in scarce memory: their second turns collide for every seed, page size and window, and one fits to its
end."""

import pytest

from specmatrix.matrix.cells.cell import MODELS, Cell
from specmatrix.matrix.cells.start_settings import session_retract, spares
from specmatrix.matrix.workloads.build import OVERRUN, workload
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import Refusal
from specmatrix.matrix.workloads.retraction import EARLIER, MORE
from specmatrix.matrix.workloads.sessions import REPLIES

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
