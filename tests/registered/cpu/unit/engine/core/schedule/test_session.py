"""The rules of sessions: what a turn's prompt is, what is refused, and when a session ends."""

from __future__ import annotations

import re

import pytest

from specmatrix.engine.core.schedule.request import Finish, Phase, Request, SamplingParams
from specmatrix.engine.core.schedule.session import Session, SessionParams, Sessions
from specmatrix.errors import RequestError
from tests.support.schedulers import scheduler_of
from tests.support.tables import table

BOS, DEEP = 9, 3_000


class Dialogue:
    """Sessions over a scheduler without a device: the test decides the tokens of a request and when it ends."""

    def __init__(self, streaming=True) -> None:
        self.scheduler = scheduler_of(pages=50, width=1, cache=True)
        self.sessions = Sessions(self.scheduler, streaming=streaming, bos_id=BOS, text_length=len)
        self.next = 1

    def open(self, name="s", streaming=True, capacity=100, timeout=None, now=0.0):
        return self.sessions.open(capacity, name, streaming, timeout, now)

    def add(self, tokens, name="s", now=0.0, **params: object) -> Request:
        turn = self.sessions.judge(SessionParams(name, **params), tokens)
        request = Request(self.next, turn.prompt, SamplingParams(max_new_tokens=5), 0)
        self.next += 1
        self.sessions.begin(turn, request, now)
        self.scheduler.add(request)
        return request

    def run(self, request, *output: int, end="length", held_back=False) -> Request:
        """Admit and end a request. held_back: a round is still in flight at its end."""
        plan = self.scheduler.plan()
        for row in plan.rows:
            self.scheduler.ledger.settle(row.account, row.width)
        request.output += output
        self.flying = self.scheduler.plan() if held_back else None
        self.scheduler.finish(request, Finish(end))
        return request

    def drain(self):
        requests = [self.scheduler.requests[row.rid] for row in self.flying.rows]
        for row in self.flying.rows:
            self.scheduler.ledger.settle(row.account, row.width)
        self.scheduler.release_drained(requests)

    def say(self, tokens, *output: int, end="length", **more: object) -> Request:
        return self.run(self.add(tokens, **more), *output, end=end)

    def state(self) -> tuple[str, int]:
        sessions = self.sessions.sessions.values()
        return repr([[getattr(s, name) for name in Session.__slots__] for s in sessions]), len(self.scheduler.requests)

    def refused(self, sentence: str, tokens=(1,), name="s", **params: object) -> None:
        before = self.state()
        with pytest.raises(RequestError, match=f"^{re.escape(sentence)}"):
            self.sessions.judge(SessionParams(name, **params), tokens)
        assert self.state() == before


def test_a_turn_continues_everything_the_user_saw():
    world = Dialogue()
    assert world.open() == "s"
    world.say((BOS, 1, 2), 3, 4)
    second = world.add((BOS, 5))
    assert second.prompt == (BOS, 1, 2, 3, 4, 5) and second.holds and second.account == 1
    world.run(second, 6)
    assert world.add((7,)).prompt == (BOS, 1, 2, 3, 4, 5, 6, 7)
    assert world.scheduler.counters.counts["session.opened"] == 1


def test_an_aborted_turn_never_happened():
    world = Dialogue()
    world.open()
    world.say((1, 2), 3, end="abort")
    assert world.say((4,), 5).prompt == (4,)
    world.say((6,), 7, end="abort")
    waiting = world.add((8,))
    world.scheduler.abort(waiting.rid)
    last = world.add((BOS, 9, 9))
    assert last.prompt == (4, 5, 9, 9) and last.account == 1


def test_a_first_bos_stays_and_rid_is_ignored_by_a_streaming_session():
    world = Dialogue()
    world.open()
    assert world.say((BOS,), 3, rid=77).prompt == (BOS,)
    world.refused("the turn of session 's' has no new tokens; allowed: at least one", (BOS,))
    world.refused("the turn of session 's' has no new tokens; allowed: at least one", ())


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        *table(__file__)["turns"],
        ({"tokens": (1,) * 99}, "the history and new text of session 's' are 101 characters; allowed: at most its"),
    ],
)
def test_a_turn_that_is_not_allowed_disturbs_nothing(params, sentence):
    world = Dialogue()
    world.open()
    world.say((1,), 2)
    world.refused(sentence, **params)
    assert world.say((3,), 4).prompt == (1, 2, 3)


def test_one_request_in_flight():
    world = Dialogue()
    world.open()
    first = world.add((1,))
    sentence = "session 's' has request 1 in flight; a streaming session runs one request at a time"
    world.refused(sentence)
    world.run(first, 2, held_back=True)
    assert first.phase is Phase.DRAINING
    second = world.add((3,))  # what the user saw is known: the turn may queue while the last round drains
    assert second.prompt == (1, 2, 3)
    world.refused(sentence.replace("1", "2", 1))
    assert world.scheduler.plan() is None
    world.drain()
    assert world.run(second, 4).inherited == 2


ID = "; allowed: a text of 1 to 1000 characters, without half of a surrogate pair"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        *table(__file__)["opens"],
        ((9, "a", False, float("inf")), "timeout is inf; allowed: None, or a finite number of seconds above 0"),
        ((9, "a", False, 10**400), f"timeout is 1{199 * '0'}...; allowed: None, or a finite number of seconds above 0"),
        ((9, "", False, None), "session_id is ''" + ID),
        ((9, 5, False, None), "session_id is 5" + ID),
        ((9, "a\ud800", False, None), r"session_id is 'a\ud800'" + ID),
        ((9, "x" * 1001, False, None), f"session_id is '{'x' * 199}..." + ID),
    ],
)
def test_a_session_that_cannot_be_opened(values, sentence):
    world = Dialogue(streaming=False)
    world.open("taken", streaming=False)
    with pytest.raises(RequestError, match=f"^{re.escape(sentence)}"):
        world.sessions.open(*values, 0.0)
    assert list(world.sessions.sessions) == ["taken"]


def test_close_frees_held_pages_and_forgets_the_name():
    world = Dialogue()
    world.open()
    world.say((1, 2, 3), 4)
    assert len(world.scheduler.held) == 1
    world.sessions.close("s")
    assert not world.scheduler.held and not world.scheduler.ledger.accounts
    with pytest.raises(RequestError, match=r"^session 's' is not open; open it with open_session$"):
        world.sessions.close("s")
    world.open()
    assert world.add((5,)).prompt == (5,)


@pytest.mark.parametrize("queued", [False, True])
def test_close_waits_for_the_turn_in_flight(queued):
    world = Dialogue()
    world.open()
    world.say((1, 2, 3), 4)
    request = world.add((5,))
    if queued:
        world.sessions.close("s")
    world.run(request, 6, held_back=True)
    if not queued:
        world.sessions.close("s")
    assert request.phase is Phase.DRAINING and world.scheduler.ledger.accounts
    world.drain()
    world.sessions.reap(0.0)
    assert request.phase is Phase.DONE and not world.scheduler.ledger.accounts and not world.sessions.closing


def test_an_idle_session_is_closed_after_its_timeout():
    world = Dialogue()
    world.open(timeout=10, now=100.0)
    world.open("other")
    world.sessions.reap(110.0)
    request = world.add((1,), now=110.0)
    world.sessions.reap(500.0)  # a turn is in flight
    world.run(request, 2)
    world.sessions.reap(510.0)
    assert "s" in world.sessions.sessions and len(world.scheduler.held) == 1
    world.sessions.reap(510.1)
    assert list(world.sessions.sessions) == ["other"] and not world.scheduler.held
    assert world.scheduler.counters.counts["session.timed_out"] == 1


def tree() -> Dialogue:
    """1 -> (2 -> 4, 3) in an ordinary session."""
    world = Dialogue()
    world.open(streaming=False)
    world.say((BOS, 1), 10)
    world.say((BOS, 2), 20, rid=1)
    world.say((3,), 30, rid=1)
    world.say((4,), 40, 41, rid=2)
    return world


def test_an_ordinary_session_branches_by_rid():
    world = tree()
    assert world.add((5,), rid=4).prompt == (BOS, 1, 10, 2, 20, 4, 40, 41, 5)
    other = world.add((6,), rid=3)
    assert other.prompt == (BOS, 1, 10, 3, 30, 6) and not other.holds and other.account == other.rid
    assert world.add((BOS, 7)).prompt == (BOS, 7)
    assert not world.scheduler.held


def test_offset_and_drop_previous_output_cut_the_history():
    world = tree()
    assert world.add((5,), rid=4, offset=3).prompt == (BOS, 1, 10, 5)
    assert world.add((5,), rid=4, drop_previous_output=True).prompt == (BOS, 1, 10, 2, 20, 4, 5)
    assert world.add((5,), rid=4, drop_previous_output=True, offset=5).prompt == (BOS, 1, 10, 2, 20, 5)


def test_replace_ends_and_forgets_the_successors_of_a_request():
    world = tree()
    running = world.add((5,), rid=4)
    other = world.add((6,), rid=3)
    new = world.add((7,), rid=2, replace=True)
    assert new.prompt == (BOS, 1, 10, 2, 20, 7) and running.finish == Finish("abort") and other.finish is None
    assert sorted(world.sessions.sessions["s"].tree) == [1, 2, 3, 6, 7]
    world.refused("session 's' has no request 4; allowed: [1, 2, 3, 6, 7]", rid=4)
    root = world.add((8,), replace=True)
    assert root.prompt == (8,) and list(world.sessions.sessions["s"].tree) == [8] and other.finish == Finish("abort")


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"rid": 5}, "session 's' has no request 5; allowed: [1, 2, 3, 4]"),
        ({"rid": 4, "offset": 9}, "offset is 9; allowed: 0 to the history's 8 tokens"),
        ({"rid": 4, "offset": -1, "replace": True}, "offset is -1; allowed: 0 to the history's 8 tokens"),
        ({"offset": 2}, "offset and drop_previous_output change a history, but rid is None; set rid to a request of"),
        ({"drop_previous_output": True}, "offset and drop_previous_output change a history, but rid is None; set rid"),
        ({"rid": 1, "tokens": (BOS,)}, "the turn of session 's' has no new tokens; allowed: at least one"),
    ],
)
def test_an_ordinary_turn_that_is_not_allowed_disturbs_nothing(params, sentence):
    tree().refused(sentence, **params)


def test_only_finished_requests_are_continued():
    world = tree()
    world.add((5,), rid=4)
    world.refused("request 5 has not finished; a session continues finished requests only", rid=5)
    empty = Dialogue()
    empty.open(streaming=False)
    empty.refused("session 's' has no request 1; allowed: None, as it has none yet", rid=1)


def chain(world, length) -> list[Request]:
    """Requests that each continue the one before, from its first token on."""
    world.open(streaming=False)
    requests = [world.say([1], 2)]
    for number in range(1, length):
        requests.append(world.say([3, 4], 5, rid=requests[-1].rid, offset=1 + number % 2))
        world.sessions.reap(0)
    return requests


def test_what_continues_a_request_is_cleared_however_deep_it_goes():
    world = Dialogue()
    first, second, *_ = chain(world, DEEP)
    tree = world.sessions.sessions["s"].tree
    world.say([6], rid=second.rid, replace=True)
    assert sorted(tree) == [first.rid, second.rid, DEEP + 1] and tree[second.rid].children == [DEEP + 1]
    world.say([7], replace=True)
    assert list(tree) == [DEEP + 2]


def test_an_ended_request_leaves_its_session_the_tokens_that_are_its_own():
    world = Dialogue()
    requests = chain(world, 40)
    session = world.sessions.sessions["s"]
    for request in requests:
        branch = session.tree[request.rid]
        assert branch.request is None and session.text(request.rid) == tuple(request.tokens)
        assert session.text(request.rid, branch.prompt) == request.prompt
    assert [branch.tokens for branch in session.tree.values()] == [(1, 2), *[(3, 4, 5)] * 39] and not session.live
    world.open("line")
    (first, second) = world.say([1, 2], 3, name="line"), world.say([4], 5, name="line")
    world.sessions.reap(0)
    line = world.sessions.sessions["line"]
    assert second.prompt[: first.num_tokens] == tuple(first.tokens)
    assert (line.turn, line.live, line.history) == (None, [], tuple(second.tokens))
