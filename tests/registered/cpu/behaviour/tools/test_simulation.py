"""The simulation passes on the unchanged engine, meets every situation that it claims, and finds planted bugs."""

from __future__ import annotations

import re

import pytest

from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.session_kv import SessionKV
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.engine.core.schedule.session import Sessions
from tools.simulation.__main__ import SHOWN, failure_text, main
from tools.simulation.scenario import Abort, ArrivingRequest, draw
from tools.simulation.sweep import STRIDE, Sweep, attempt, reduce, sweep
from tools.simulation.world import World


def swept(seed=6, count=3000) -> Sweep:
    return sweep(seed, lambda ran: ran < count)


def test_every_schedule_holds_and_every_mode_is_met():
    done = swept(count=600)
    assert done.failure is None and done.schedules == 600
    missing = [name for name in (*SHOWN, "session.trimmed", "finish.overshoot", "queue.waited") if not done.hits[name]]
    assert not missing
    assert {draw(STRIDE * 6 + i).setup.lag for i in range(60)} == {0, 1, 2, 3}


def test_a_seed_always_draws_the_same_schedule():
    assert draw(12345) == draw(12345) != draw(12346)
    assert attempt(draw(12345)) == attempt(draw(12345))


def held_one_short(monkeypatch):
    """The session is saved before the last round is counted (sglang#22651)."""
    hold = SessionKV.hold
    monkeypatch.setattr(SessionKV, "hold", lambda self, account, keep: hold(self, account, max(1, keep - 1)))


def page_leaked_by_hold(monkeypatch):
    """The tail of a held account is cut from the row and never freed (sglang#21875)."""
    hold = Ledger.hold

    def leak(self, rid, keep):
        gone = hold(self, rid, keep)
        if gone and gone[0]:
            self.groups[0].free.remove(gone[0][0])
        return gone

    monkeypatch.setattr(Ledger, "hold", leak)


def sessions_pinned(monkeypatch):
    """Pages held by a session are never taken (sglang#27024): the queue waits forever."""
    monkeypatch.setattr(SessionKV, "drop", lambda self, waiting, spare: False)
    monkeypatch.setattr(SessionKV, "droppable", lambda self, group, spare, pinned: 0)


def forgetful(monkeypatch):
    """A session's last token is not part of its next prompt."""
    line = Sessions._line
    monkeypatch.setattr(Sessions, "_line", lambda self, session, params: line(self, session, params)[:-1])


def dropped_by_an_abort(monkeypatch):
    """An abort frees what an idle session holds."""
    abort = Scheduler.abort

    def drop(self, rid):
        self.held.drop([], 0)
        return abort(self, rid)

    monkeypatch.setattr(Scheduler, "abort", drop)


def said_after_its_abort(monkeypatch):
    """An abort shows its last token twice."""
    abort = Scheduler.abort

    def repeat(self, rid):
        stopped = abort(self, rid)
        output = self.requests[rid].output
        output.extend(output[-1:] * stopped)
        return stopped

    monkeypatch.setattr(Scheduler, "abort", repeat)


def runs_on_after_its_abort(monkeypatch):
    """An abort of a request that drains for a retraction is forgotten."""
    end = Scheduler.end
    monkeypatch.setattr(Scheduler, "end", lambda self, one, finish: None if one.retracting else end(self, one, finish))


def deaf_while_retracting(monkeypatch):
    """An abort of a request that drains for a retraction is refused."""
    abort = Scheduler.abort
    monkeypatch.setattr(Scheduler, "abort", lambda self, rid: not self.requests[rid].retracting and abort(self, rid))


@pytest.mark.parametrize(
    ("plant", "error", "events"),
    [
        (runs_on_after_its_abort, " was aborted and ended by ", 4),
        (deaf_while_retracting, ", which is retracting, returned False", 4),
        (held_one_short, "its session keeps", 1),
        (page_leaked_by_hold, "law 1", 1),
        (sessions_pinned, "no request can run and nothing is in flight", 2),
        (forgetful, " builds the prompt (", 2),
        (dropped_by_an_abort, "an abort changed the positions of other sessions from {", 3),
        (said_after_its_abort, " before its abort; plain decoding gives [", 2),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_is_found_and_shrunk(monkeypatch, plant, error, events):
    plant(monkeypatch)
    failure = swept().failure
    assert failure is not None and error in failure.error
    smallest = failure.smallest
    assert len(smallest.events) <= events <= len(failure.drawn.events)
    assert sum(len(event.tokens) + event.new for event in smallest.events if isinstance(event, ArrivingRequest)) <= 60
    # The seed alone gives the same failure and the same smallest schedule again.
    found, _ = attempt(draw(failure.seed))
    assert found is not None and reduce(failure.seed, found) == failure
    text = failure_text(failure)
    assert f"python -m tools.simulation --replay {failure.seed}" in text and smallest.text() in text
    monkeypatch.undo()
    assert attempt(smallest)[0] is None and attempt(failure.drawn)[0] is None


def test_a_lag_replaces_those_drawn(monkeypatch, capsys):
    assert {draw(number, 2).setup.lag for number in range(40)} == {2}
    assert draw(7, draw(7).setup.lag) == draw(7)
    held_one_short(monkeypatch)
    assert main(["--schedules", "500", "--lag", "0"]) == 1
    assert re.search(r"again: python -m tools.simulation --replay \d+ --lag 0$", capsys.readouterr().out.strip())


def test_the_command_prints_the_situations_met_or_the_smallest_failure(monkeypatch, capsys):
    assert main(["--schedules", "40", "--seed", "3"]) == 0
    assert re.match(r"40 schedules in .* s, .* a minute; no ledger or token error\n", capsys.readouterr().out)
    assert main(["--replay", "5"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("1 schedule in ") and not re.search(r"in (?!0|1 )\d+ schedule", shown.out)
    assert shown.err == ""
    held_one_short(monkeypatch)
    assert main(["--schedules", "500"]) == 1
    said = capsys.readouterr().out
    assert main(said.split()[-2:]) == 1 and capsys.readouterr().out == said


@pytest.mark.parametrize(
    "words",
    [
        ["--minutes", "0"],
        ["--minutes", "nan"],
        ["--schedules", "0"],
        ["--seed", "-1"],
        ["--replay", "-2"],
        ["--lag", "4"],
    ],
)
def test_a_wrong_option_is_refused(words, capsys):
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2 and words[0] in capsys.readouterr().err


def test_a_schedule_that_goes_round_in_circles_is_a_failure(monkeypatch):
    monkeypatch.setattr(Scheduler, "plan", lambda self: None)
    monkeypatch.setattr("specmatrix.engine.loop.Loop.busy", True)
    error, _ = attempt(draw(1))
    assert error is not None
    monkeypatch.undo()
    world = World(draw(1).setup)
    monkeypatch.setattr(type(world), "step", lambda self: None)
    with pytest.raises(Exception, match="has not ended after 3000 steps"):
        world.run((ArrivingRequest(0, (1,), 1), Abort(9, 3)))
