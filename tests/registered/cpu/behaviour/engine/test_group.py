"""Ranks as processes: they answer as one, and a rank that dies, hangs or leaves the others ends all of them.

Every group that a test ends costs the next one seconds, so what leaves a group whole shares one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from pickle import PicklingError
from socket import SHUT_RDWR, socket

import pytest

from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.observe.rank_agreement import StepDigest
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.engine.parallel.failure import RankFailed
from specmatrix.engine.parallel.group import RankGroup, RankLost, RanksDiverged
from specmatrix.engine.parallel.pool import Lease, end_spare
from specmatrix.engine.parallel.worker import Rank, serve
from specmatrix.errors import ConfigError, EngineError, RequestError
from specmatrix.matrix.zoo.registry import resolve_path

pytestmark = pytest.mark.register(est_seconds=21, stage="pr")

AWAITED, RELEASED = threading.Event(), threading.Event()
PROMPTS = ["Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:", "Question: Tom has 12 apples."]
PARAMS = SamplingParams(max_new_tokens=12)
TWO = EngineConfig("llama-mini", "EAGLE3", "llama-mini-eagle3", tp_size=2, page_size=4)
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}


@pytest.fixture
def group() -> Iterator[RankGroup]:
    """Two ranks, spare again behind the test if it leaves them whole."""
    lease = Lease(2, "cpu")
    yield lease.group
    lease.close()


class RankThread(threading.Thread):
    """Stands for the process of a rank where a test only needs its answers, and starts at once."""

    stdin = None

    def __init__(self, command: list[str], **_: object) -> None:
        super().__init__(daemon=True)
        self.connection: Connection = Connection(os.dup(int(command[-1])))
        self.code: int | None = None
        self.start()

    def run(self) -> None:
        place = self.connection.recv()
        with suppress(OSError, EOFError):  # killed
            serve(Rank(place, lambda record: self.connection.send(("digest", record))), self.connection)
        self.kill(0)

    def kill(self, code: int = -9) -> None:
        if self.code is None:
            self.code = code
            with socket(fileno=os.dup(self.connection.fileno())) as end:
                end.shutdown(SHUT_RDWR)

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None: ...


class InterruptsOnce:
    """KeyboardInterrupt within the first record that is heard, when the answers behind it have come."""

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
    monkeypatch.setattr("specmatrix.engine.parallel.group.subprocess.Popen", RankThread)
    return RankGroup(2, "cpu")


class Interrupts:
    """KeyboardInterrupt from each of some waits for the ranks, counted from 0."""

    def __init__(self, *waits: int) -> None:
        self.waits, self.count = waits, 0

    def __call__(self, connections: list[object], timeout: float) -> list[object]:
        self.count += 1
        if self.count - 1 in self.waits:
            raise KeyboardInterrupt
        return wait(connections, timeout)


@pytest.fixture(scope="module", autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    end_spare()


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
    with pytest.raises(RankFailed) as caught:
        threads.call(fail_oddly)
    assert "fail_oddly.<locals>.Odd: <exception str() failed>\nTraceback " in str(caught.value)
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


ALONE = f"{RequestError.__module__}.RequestError: rank 1 alone"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, f"the ranks differ: rank 0 raised nothing, rank 1 raised {ALONE}"),
        (60, f"the ranks differ: rank 1 raised {ALONE}, rank 0 raised nothing in"),
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
        monkeypatch.setattr("specmatrix.engine.parallel.group.wait", Interrupts(moment))
        with pytest.raises(KeyboardInterrupt):
            threads.call(answer_by_rank, moment)
        assert [threads.call(echo, number) for number in (1, 2)] == [1, 2], "and no call has another one's answer"
    monkeypatch.setattr("specmatrix.engine.parallel.group.wait", wait)
    with pytest.raises(KeyboardInterrupt):
        threads.call(press_ctrl_c)
    assert threads.call(echo, 3) == 3
    with pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr("specmatrix.engine.parallel.group.wait", Interrupts(0))
        threads.call(refuse)
    assert threads.call(echo, 4) == 4


@pytest.mark.parametrize("moment", ["in a message", "twice", "too long"])
def test_an_interrupt_that_cannot_be_awaited_ends_the_ranks(threads: RankGroup, moment: str, monkeypatch):
    monkeypatch.setattr("specmatrix.engine.parallel.group.DRAIN", 0.5)
    waits = {"in a message": Interrupts(), "twice": Interrupts(0, 1), "too long": Interrupts(0)}
    monkeypatch.setattr("specmatrix.engine.parallel.group.wait", waits[moment])
    if moment == "in a message":
        monkeypatch.setattr(threads.comparison, "add", InterruptsOnce(threads.comparison.add))
    with pytest.raises(KeyboardInterrupt):
        threads.call(tell_and_answer if moment == "in a message" else hang)
    assert not threads.alive and {process.poll() for process in threads.processes} == {-9}
    with pytest.raises(RankLost, match=r"^the 2 ranks have ended: a call was interrupted by KeyboardInterrupt$"):
        threads.call(os_of)


def test_one_call_at_a_time(threads: RankGroup):
    """A second thread's call and its close are refused, and the first call has its answer."""
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
    """As a signal's handler would."""

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
    group.patience = 1.5
    begun = time.monotonic()
    with pytest.raises(RankLost) as caught:
        group.call(hang)
    assert time.monotonic() - begun < 10
    assert str(caught.value).startswith("rank 1 of 2 was silent for 1.5 s\nlog of rank 1:\n")
    assert "in hang" in str(caught.value), "the traceback of the rank that hangs"


def test_ranks_that_differ_are_ended_before_they_wait_for_each_other(group: RankGroup):
    with pytest.raises(RanksDiverged, match=r"^step 1: the plan of rank 1 and of rank 0 differ$") as caught:
        group.call(differ)
    assert (caught.value.agreement.ranks, caught.value.agreement.planned) == (2, 1)
    assert not group.alive


@pytest.mark.nightly
def test_ranks_end_with_who_called(group: RankGroup):
    (stdin,) = [group.processes[1].stdin]
    assert stdin is not None
    stdin.close()
    assert group.processes[1].wait(10) == 1


def test_one_engine_over_two_ranks_says_what_one_rank_says():
    config = EngineConfig(
        "llama-mini", "EAGLE3", "llama-mini-eagle3", page_size=4, enable_streaming_session=True, **TREE
    )
    one = LLM(config, resolve_path)
    two = RankedLLM(EngineConfig(**{**values(config), "tp_size": 2}), resolve_path)
    assert [o.output_ids for o in two.generate(PROMPTS, PARAMS)] == [
        o.output_ids for o in one.generate(PROMPTS, PARAMS)
    ]
    shown = two.readback()
    assert (shown["tp_size"], one.readback()["tp_size"]) == (2, 1)
    assert two.counters["rank.step"] > 1 and not one.counters["rank.step"]
    assert two.counters["spec.accepted"] == one.counters["spec.accepted"] > 0
    agreement = two.group.agreement
    assert agreement.divergence is None and agreement.planned == agreement.read == two.counters["rank.step"]
    assert len(set(agreement.digests)) == 1
    session = two.open_session(1000, streaming=True)
    turns = [two.generate([text], PARAMS, SessionParams(session))[0] for text in (PROMPTS[0], " And then?")]
    two.close_session(session)
    assert two.counters["session.inherited"] > 0 and len(turns[1].output_ids) == 12
    grown = one.generate(PROMPTS[:1], PARAMS)[0].text
    assert "".join(two.stream(PROMPTS[0], PARAMS)) == grown
    reader = two.stream(PROMPTS[0], PARAMS)
    assert grown.startswith(next(reader))
    reader.close()
    assert "".join(two.stream(PROMPTS[0], PARAMS)) == grown, "who stopped reading disturbs nobody"
    assert two.group.agreement.divergence is None and two.drafter_error is None
    with pytest.raises(RequestError, match="is not open"):
        two.generate(PROMPTS[:1], PARAMS, SessionParams(session))
    refused = two.stream(PROMPTS[0], SamplingParams(max_new_tokens=-1))
    with pytest.raises(RequestError, match="max_new_tokens"):
        next(refused)
    assert two.call_ranks(left_on_ranks) == (0, 0)
    processes = two.group.processes
    two.close()
    spare = Lease(2, "cpu")
    assert spare.group.processes is processes and spare.group.agreement.planned == 0
    spare.close()


@pytest.mark.nightly
def test_an_interrupted_engine_drops_what_ran_and_goes_on(monkeypatch):
    with RankedLLM(TWO, resolve_path) as llm:
        expected = [output.output_ids for output in llm.generate(PROMPTS, PARAMS)]
        for moment in (0, 1, 2, 3, 7, 16):
            monkeypatch.setattr("specmatrix.engine.parallel.group.wait", Interrupts(moment))
            with pytest.raises(KeyboardInterrupt):
                llm.generate(PROMPTS, PARAMS)
            assert llm.call_ranks(left_on_ranks) == (0, 0)
            monkeypatch.setattr("specmatrix.engine.parallel.group.wait", Interrupts(moment))
            with pytest.raises(KeyboardInterrupt):
                list(llm.stream(PROMPTS[0], PARAMS))
            assert llm.call_ranks(left_on_ranks) == (0, 0)
        monkeypatch.undo()
        assert [output.output_ids for output in llm.generate(PROMPTS, PARAMS)] == expected
        assert llm.group.agreement.divergence is None
        assert llm.health == "ok"
        llm.group.processes[1].kill()
        with pytest.raises(RankLost):
            llm.generate(PROMPTS, PARAMS)
        assert llm.health.startswith("broken: rank 1 of 2 died with exit code -9")


def test_no_other_thread_comes_between_the_calls_of_a_generation(monkeypatch):
    with RankedLLM(TWO, resolve_path) as llm:
        expected, call = llm.generate(PROMPTS, PARAMS), llm.call_ranks

        def paused(*arguments: object) -> object:
            AWAITED.set()
            assert RELEASED.wait(30)
            return call(*arguments)

        AWAITED.clear(), RELEASED.clear()
        monkeypatch.setattr(llm, "call_ranks", paused)
        answers: list[list[Output]] = []
        first = threading.Thread(target=lambda: answers.append(llm.generate(PROMPTS, PARAMS)))
        first.start()
        assert AWAITED.wait(30)
        for second in (lambda: llm.generate(PROMPTS), lambda: call(left_on_ranks), llm.close):
            with pytest.raises(EngineError, match=r"^another thread is calling this engine; make one call "):
                second()
        RELEASED.set()
        first.join()
        assert [o.output_ids for o in answers[0]] == [o.output_ids for o in expected]


@pytest.mark.nightly
def test_a_closed_engine_is_closed_once_and_for_good():
    """Its ranks serve another engine by then, which a second close must not touch."""
    first = RankedLLM(TWO, resolve_path)
    reader = first.stream(PROMPTS[0], PARAMS)
    next(reader)
    ranks = first.group
    first.close()
    with RankedLLM(TWO, resolve_path) as second:
        assert second.group is ranks
        expected = second.generate(PROMPTS, PARAMS)[0].output_ids
        first.close()
        for use in (lambda: first.generate(PROMPTS), lambda: next(reader), first.readback, lambda: first.counters):
            with pytest.raises(EngineError, match=r"^this engine is closed; start another one$"):
                use()
        other = Lease(2, "cpu", 50.0)
        assert other.group is not ranks and other.group.patience == 50.0
        assert second.generate(PROMPTS, PARAMS)[0].output_ids == expected
        other.close()
    with pytest.raises(RankLost, match=r"^the 2 ranks have ended: they were closed$"):
        ranks.call(os_of)  # one spare group is enough


def test_a_start_that_fails_on_the_ranks_leaves_them_spare():
    before = Lease(2, "cpu")
    ranks = before.group
    before.close()
    with pytest.raises(ConfigError, match=r"^refused on the ranks$"):
        RankedLLM(TWO, refuse_elsewhere)
    spare = Lease(2, "cpu")
    assert spare.group is ranks and ranks.call(echo, 3) == 3
    spare.close()


@pytest.mark.nightly
def test_patience_counts_from_the_start_of_the_ranks():
    end_spare()
    with pytest.raises(RankLost, match=r"^rank 0 and rank 1 of 2 were silent for 0\.01 s\n"):
        Lease(2, "cpu", 0.01)


@pytest.mark.nightly
def test_a_spare_group_that_lost_a_rank_serves_no_engine():
    spare = Lease(2, "cpu")
    processes = spare.group.processes
    spare.close()
    victim = processes[1]
    victim.kill()
    victim.wait()
    fresh = Lease(2, "cpu")
    assert fresh.group.processes is not processes and fresh.group.call(os_of) == fresh.group.processes[0].pid
    fresh.close()


def test_a_start_that_cannot_run_starts_no_rank(monkeypatch):
    monkeypatch.setattr("specmatrix.engine.parallel.group.subprocess", None)
    with pytest.raises(ConfigError, match=r"^tp_size 2 cannot split a target with 3 key-value heads"):
        RankedLLM(EngineConfig("qwen3-mini", tp_size=2), resolve_path)


def test_one_process_is_no_engine_of_two_ranks():
    said = "^tp_size 2 needs one process per rank, and LLM runs in one process; use RankedLLM from specmatrix.engine."
    with pytest.raises(ConfigError, match=said):
        LLM(EngineConfig("llama-mini", tp_size=2), resolve_path)


def values(config: EngineConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def os_of(rank: Rank) -> int:
    return os.getpid()


def echo(rank: Rank, value: object) -> object:
    return value


def rest(rank: Rank) -> str:
    """Of ranks that are threads."""
    AWAITED.set()
    assert RELEASED.wait(30)
    return "rested"


def press_ctrl_c(rank: Rank) -> None:
    """Once the caller waits, long before it hears of this rank."""
    if rank.place.rank:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)


def answer_by_rank(rank: Rank, moment: int) -> str:
    """So that the second wait of the caller is for rank 1."""
    time.sleep(0.2 * moment * rank.place.rank)
    return "the answer of another call"


def left_on_ranks(rank: Rank) -> tuple[int, int]:
    """What of generations and streams a rank keeps, and its requests."""
    return len(rank.held.running), len(rank.held.llm.loop.scheduler.requests)


def tell_and_answer(rank: Rank) -> str:
    rank.publish(StepDigest(("plan",), ("a",)))
    return "the answer of another call"


def refuse_elsewhere(name: str) -> Path:
    """As the machine of a rank may."""
    if Path(sys.argv[0]).name == "worker.py":
        raise ConfigError("refused on the ranks")
    return resolve_path(name)


class DoesNotUnpickle:
    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


class OddRefusal(EngineError):
    """It does not unpickle."""

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
        """It neither pickles nor has a text."""

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


def differ(rank: Rank) -> None:
    rank.publish(StepDigest(("ledger journal", "plan"), ("a", str(rank.place.rank))))
    time.sleep(60)
