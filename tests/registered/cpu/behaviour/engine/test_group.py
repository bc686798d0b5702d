"""Ranks as processes: they answer as one, and a rank that dies, hangs or leaves the others ends all of them.

Every group that a test ends costs the next one seconds, so what leaves a group whole shares one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from socket import SHUT_RDWR, socket

import pytest

from specmatrix.child_process import RemoteError
from specmatrix.engine.core.observe.rank_agreement import StepDigest
from specmatrix.engine.parallel.group import GroupLease, RankGroup, RankLost, RanksDiverged, end_idle_group
from specmatrix.engine.parallel.worker import Rank, RankSpec, serve
from specmatrix.errors import EngineError, RequestError
from tests.support.rank_calls import InterruptedWaits, echo, os_of

AWAITED, RELEASED = threading.Event(), threading.Event()


@pytest.fixture
def group() -> Iterator[RankGroup]:
    """Two ranks, which are spare again after the test unless it breaks them."""
    lease = GroupLease(2, "cpu")
    yield lease.group
    lease.close()


class RankThread(threading.Thread):
    """Replaces the process of a rank by a thread where a test only needs its answers; it starts at once."""

    def __init__(self, place: RankSpec, connection: Connection) -> None:
        super().__init__(daemon=True)
        self.place, self.connection = place, connection
        self.code: int | None = None
        self.start()

    def run(self) -> None:
        with suppress(OSError, EOFError):  # killed
            serve(Rank(self.place, lambda record: self.connection.send(("digest", record))), self.connection)
        self.kill(0)

    def kill(self, code: int = -9) -> None:
        if self.code is None:
            self.code = code
            with socket(fileno=os.dup(self.connection.fileno())) as end:
                end.shutdown(SHUT_RDWR)

    def stop(self) -> None:
        self.kill()

    def wait(self, timeout: float | None = None) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None: ...

    def output_end(self, characters: int) -> str:
        return ""


def rank_thread(function: object, place: RankSpec) -> tuple[RankThread, Connection]:
    """As `start` of `child_process.py`."""
    ours, theirs = Pipe()
    return RankThread(place, theirs), ours


class InterruptsOnce:
    """KeyboardInterrupt while the first record is received, after the answers that follow it have arrived."""

    def __init__(self, publish: Callable[[int, StepDigest], None]) -> None:
        self.publish, self.done = publish, False

    def __call__(self, rank: int, record: StepDigest) -> None:
        if self.done:
            self.publish(rank, record)
            return
        self.done = True
        time.sleep(0.3)
        raise KeyboardInterrupt


@pytest.fixture
def threads(monkeypatch) -> RankGroup:
    """Two ranks that are threads."""
    monkeypatch.setattr("specmatrix.engine.parallel.group.start", rank_thread)
    return RankGroup(2, "cpu")


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_idle_group()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_call_runs_on_every_rank_and_rank_0_answers(group: RankGroup):
    assert group.call(os_of) == group.processes[0].pid
    with pytest.raises(RequestError, match=r"^all of them$"):
        group.call(refuse)
    assert group.call(os_of) == group.processes[0].pid, "a refusal ends nobody"


@pytest.mark.nightly
def test_what_one_rank_raises_ends_all(group: RankGroup):
    with pytest.raises(ZeroDivisionError) as caught:
        group.call(divide)
    (note,) = caught.value.__notes__
    assert note.startswith("raised on rank 1 of 2\nTraceback ") and "in divide" in note
    assert not group.alive and not any(alive(process.pid) for process in group.processes)
    said = r"^the 2 ranks have ended: ZeroDivisionError: division by zero, raised on rank 1 of 2$"
    for _ in range(2):
        with pytest.raises(RankLost, match=said):
            group.call(os_of)


def test_an_exception_that_cannot_be_sent_is_described(threads: RankGroup):
    with pytest.raises(EngineError, match=r"OddRefusal: 1 and 2$") as refused:
        threads.call(refuse_oddly)
    assert type(refused.value) is EngineError
    assert threads.call(echo, 3) == 3, "a refusal ends nobody"
    with pytest.raises(RemoteError) as caught:
        threads.call(fail_oddly)
    assert "Odd: its text is unavailable\nTraceback " in str(caught.value)
    assert not threads.alive


def test_a_value_that_cannot_be_sent_is_an_error_of_its_call(threads: RankGroup):
    with pytest.raises((AttributeError, PicklingError), match="local"):
        threads.call(give_a_function)
    with pytest.raises(ValueError, match="invalid literal"):
        threads.call(give_what_does_not_unpickle)
    assert threads.call(echo, 3) == 3
    sentence = r"^an argument cannot be sent to the ranks \(.*local.*\); allowed: what can be pickled$"
    with pytest.raises(RequestError, match=sentence):
        threads.call(echo, lambda: None)
    with pytest.raises(ValueError, match="invalid literal"):
        threads.call(echo, DoesNotUnpickle())
    assert not threads.alive, "arguments that do not unpickle are an error on the ranks"


ALONE = "RequestError: rank 1 alone"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, f"the ranks differ: rank 0 raised nothing, rank 1 raised {ALONE}"),
        pytest.param(
            60, f"the ranks differ: rank 1 raised {ALONE}, rank 0 raised nothing in", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_refusal_of_one_rank_alone_is_a_difference(threads: RankGroup, seconds: float, said: str):
    threads.patience = 1.5
    with pytest.raises(RanksDiverged) as caught:
        threads.call(refuse_alone, seconds)
    assert str(caught.value).startswith(said) and caught.value.agreement.divergence == str(caught.value)
    with pytest.raises(RankLost, match=r"^the 2 ranks have ended: the ranks differ: "):
        threads.call(os_of)


def test_refusals_of_one_kind_may_name_what_differs(threads: RankGroup):
    with pytest.raises(RequestError, match=r"^rank 0$"):
        threads.call(refuse_by_rank)
    assert threads.call(echo, 3) == 3


def test_an_interrupted_call_is_awaited_and_the_group_goes_on(threads: RankGroup, monkeypatch):
    for moment in (0, 1):
        monkeypatch.setattr("specmatrix.engine.parallel.group.wait", InterruptedWaits(moment))
        with pytest.raises(KeyboardInterrupt):
            threads.call(answer_by_rank, moment)
        assert [threads.call(echo, number) for number in (1, 2)] == [1, 2], "and no call has another one's answer"
    monkeypatch.setattr("specmatrix.engine.parallel.group.wait", wait)
    with pytest.raises(KeyboardInterrupt):
        threads.call(press_ctrl_c)
    assert threads.call(echo, 3) == 3
    with pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr("specmatrix.engine.parallel.group.wait", InterruptedWaits(0))
        threads.call(refuse)
    assert threads.call(echo, 4) == 4


@pytest.mark.parametrize("moment", ["in a message", "twice", "too long"])
def test_an_interrupt_that_cannot_be_awaited_ends_the_ranks(threads: RankGroup, moment: str, monkeypatch):
    monkeypatch.setattr("specmatrix.engine.parallel.group.DRAIN", 0.5)
    waits = {"in a message": InterruptedWaits(), "twice": InterruptedWaits(0, 1), "too long": InterruptedWaits(0)}
    monkeypatch.setattr("specmatrix.engine.parallel.group.wait", waits[moment])
    if moment == "in a message":
        monkeypatch.setattr(threads.comparison, "add", InterruptsOnce(threads.comparison.add))
    with pytest.raises(KeyboardInterrupt):
        threads.call(tell_and_answer if moment == "in a message" else hang)
    assert not threads.alive and {process.wait(0) for process in threads.processes} == {-9}
    with pytest.raises(RankLost, match=r"^the 2 ranks have ended: a call was interrupted by KeyboardInterrupt$"):
        threads.call(os_of)


def test_a_timeout_while_a_rank_answers_is_no_lost_rank(threads: RankGroup, monkeypatch):
    def expire(number: int, frame: object) -> None:
        raise TimeoutError("time is up")

    real = Connection.recv

    def receive(connection: Connection) -> object:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGALRM)
        return real(connection)

    before = signal.signal(signal.SIGALRM, expire)
    monkeypatch.setattr(Connection, "recv", receive)
    try:
        with pytest.raises(TimeoutError, match="time is up"):
            threads.call(echo, 1)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_one_call_at_a_time(threads: RankGroup):
    """A second thread's call and its close are refused, and the first call returns its answer."""
    answers: list[object] = []
    AWAITED.clear(), RELEASED.clear()
    first = threading.Thread(target=lambda: answers.append(threads.call(rest)))
    first.start()
    assert AWAITED.wait(30)
    said = r"^another thread is calling this engine; make one call at a time$"
    for second in (lambda: threads.call(os_of), threads.close):
        with pytest.raises(EngineError, match=said):
            second()
    RELEASED.set()
    first.join()
    assert answers == ["rested"] and threads.call(echo, 3) == 3


def test_no_call_begins_within_a_call(threads: RankGroup, monkeypatch):
    """Calls it as a signal handler would."""

    def handler(connections: list[object], timeout: float) -> list[object]:
        with pytest.raises(EngineError, match=r"^the ranks are already running a call; make one call at a time$"):
            threads.call(os_of)
        return wait(connections, timeout)

    monkeypatch.setattr("specmatrix.engine.parallel.group.wait", handler)
    assert threads.call(echo, 3) == 3


@pytest.mark.nightly
def test_a_rank_that_reads_nothing_is_lost(group: RankGroup):
    group.patience = 1.0
    group.processes[1].send_signal(signal.SIGSTOP)
    with pytest.raises(RankLost, match=r"^rank 1 of 2 was silent for 1 s\n"):
        group.call(echo, bytes(1 << 22))
    group.close()
    group.close()
    with pytest.raises(RankLost, match=r"^the 2 ranks have ended: rank 1 of 2 was silent for 1 s$"):
        group.call(os_of)


def test_a_dead_rank_is_lost_with_its_log(group: RankGroup):
    with pytest.raises(RankLost) as caught:
        group.call(die)
    assert str(caught.value).startswith("rank 1 of 2 died with exit code -9\nlog of rank 1:\n")
    assert "the last words of rank 1" in str(caught.value)


@pytest.mark.nightly
def test_a_rank_that_hangs_is_lost_with_where_it_was(group: RankGroup):
    group.patience = 6.0
    begun = time.monotonic()
    with pytest.raises(RankLost) as caught:
        group.call(hang_after_a_compilation)
    assert time.monotonic() - begun < 40
    assert str(caught.value).startswith("rank 1 of 2 was silent for 6 s\nlog of rank 1:\n")
    assert "in hang" in str(caught.value), "the traceback of the rank that hangs"


def test_ranks_that_differ_are_ended_before_they_wait_for_each_other(group: RankGroup):
    with pytest.raises(RanksDiverged, match=r"^step 1: the plan of rank 1 and of rank 0 differ$") as caught:
        group.call(differ)
    assert (caught.value.agreement.ranks, caught.value.agreement.planned) == (2, 1)
    assert not group.alive


@pytest.mark.nightly
def test_ranks_end_with_their_caller(group: RankGroup):
    group.processes[1].stdin.close()
    assert group.processes[1].wait(10) == -signal.SIGKILL, "it leads a process group, which ends with it"


def rest(rank: Rank) -> str:
    """Runs on ranks that are threads."""
    AWAITED.set()
    assert RELEASED.wait(30)
    return "rested"


def press_ctrl_c(rank: Rank) -> None:
    """After the caller has started to wait, long before this rank answers."""
    if rank.place.rank:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)


def answer_by_rank(rank: Rank, moment: int) -> str:
    """Delays rank 1, so that the caller's second wait is for it."""
    time.sleep(0.2 * moment * rank.place.rank)
    return "the answer of another call"


def tell_and_answer(rank: Rank) -> str:
    rank.publish(StepDigest(("plan",), ("a",)))
    return "the answer of another call"


class DoesNotUnpickle:
    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


class OddRefusal(EngineError):
    """Cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def refuse_oddly(rank: Rank) -> None:
    raise OddRefusal(1, 2)


def refuse_alone(rank: Rank, seconds: float) -> None:
    if rank.place.rank:
        raise RequestError("rank 1 alone")
    time.sleep(seconds)


def refuse_by_rank(rank: Rank) -> None:
    raise RequestError(f"rank {rank.place.rank}")


def fail_oddly(rank: Rank) -> None:
    class Odd(Exception):
        """Cannot be pickled or converted to text."""

        def __str__(self) -> str:
            raise ValueError("no text")

    raise Odd


def give_a_function(rank: Rank) -> Callable[[], None]:
    return lambda: None


def give_what_does_not_unpickle(rank: Rank) -> object:
    return DoesNotUnpickle()


def refuse(rank: Rank) -> None:
    raise RequestError("all of them")


def divide(rank: Rank) -> float:
    if rank.place.rank == 0:
        time.sleep(60)
    return 1 / 0


def die(rank: Rank) -> None:
    if rank.place.rank:
        print("the last words of rank 1", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def hang(rank: Rank) -> None:
    rank.publish(StepDigest(("plan",), ("a",)))
    if rank.place.rank:
        time.sleep(60)
    rank.publish(StepDigest(("result",), ("b",)))
    time.sleep(60)


def hang_after_a_compilation(rank: Rank) -> None:
    """SIGUSR1 then belongs to the kernels' compiler."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    hang(rank)


def differ(rank: Rank) -> None:
    rank.publish(StepDigest(("ledger journal", "plan"), ("a", str(rank.place.rank))))
    time.sleep(60)
