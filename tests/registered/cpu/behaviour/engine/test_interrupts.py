"""Interrupts in the middle of a step: nothing stays in flight, and the engine continues or reports itself broken."""

from __future__ import annotations

import signal

import pytest

from specmatrix.engine import interrupts as interrupts_module
from specmatrix.engine.core.schedule.request import Finish
from specmatrix.engine.interrupts import Interrupts
from specmatrix.errors import EngineError
from tests.support.failing_steps import MOMENTS, PARAMS, PROMPTS, VERSIONS, at_rest, drain, plant, start_engine

pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.mark.parametrize(("place", "version"), MOMENTS)
def test_an_interrupt_leaves_nothing_in_flight_and_the_requests_go_on(monkeypatch, whole, place, version):
    llm = start_engine(version, graphs=place == "graph capture")
    rids = [llm.add(prompt, PARAMS) for prompt in PROMPTS]
    tokens = 0 if place == "admission of rows" else 7
    plant(monkeypatch, llm, place, KeyboardInterrupt(), victim=rids[1], times=1, tokens=tokens)
    with pytest.raises(KeyboardInterrupt):
        drain(llm)
    scheduler = llm.loop.scheduler
    assert not llm.loop.pending and not scheduler.active and len(scheduler.waiting) == 3
    scheduler.check()
    assert not scheduler.ledger.accounts
    drain(llm)
    assert [llm.take(rid).text for rid in rids] == whole
    assert llm.health == "ok"
    at_rest(llm)


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("place", ["specmatrix.engine.models.weights.numbered", "tokenizers.Tokenizer.from_file"])
def test_a_timeout_while_a_model_is_loaded_is_no_damaged_file(monkeypatch, place):
    monkeypatch.setattr(place, lambda *_: signal.raise_signal(signal.SIGALRM))
    with pytest.raises(TimeoutError, match="time is up"):
        start_engine()


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_exit_in_the_middle_of_the_books_breaks_the_engine(monkeypatch, interrupted):
    """An interrupt that was undone excuses no later exit."""
    llm = start_engine()
    rid = llm.add(PROMPTS[0], PARAMS)
    if interrupted:
        plant(monkeypatch, llm, "target", KeyboardInterrupt(), times=1)
        with pytest.raises(KeyboardInterrupt):
            llm.step()
    monkeypatch.setattr(llm.loop.scheduler.ledger, "launch", lambda *_: (_ for _ in ()).throw(SystemExit(3)))
    with pytest.raises(SystemExit):
        llm.step()
    assert llm.health == "broken: SystemExit: 3" and llm.take(rid).finish.reason == "error"


class Expired(BaseException):
    """As a test's time limit raises."""


def expire(kind: type[BaseException]):
    def handler(*_: object):
        raise kind("time is up")

    return handler


# What a signal's handler raises, by the signal; also where the code that it interrupts takes it for its own error.
RAISED = {
    "Ctrl-C": (signal.SIGINT, KeyboardInterrupt, False),
    "timeout": (signal.SIGALRM, TimeoutError, False),
    "swallowed": (signal.SIGALRM, TimeoutError, True),
    "test limit": (signal.SIGUSR1, Expired, False),
}


@pytest.fixture
def raising(monkeypatch):
    """Gives the signals of RAISED their handlers."""
    before = {number: signal.getsignal(number) for number, _, _ in RAISED.values()}
    for number, kind, _ in RAISED.values():
        if number != signal.SIGINT:
            signal.signal(number, expire(kind))
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize(
    ("version", "moment", "how"),
    [
        *(("v2", moment, "Ctrl-C") for moment in range(1, 40, 3)),
        *(("v1", moment, "Ctrl-C") for moment in (1, 13, 28)),
        *(("v2", moment, "timeout") for moment in range(1, 40, 4)),
        *((version, moment, how) for version in VERSIONS for moment in (3, 14) for how in ("swallowed", "test limit")),
    ],
)
def test_a_signal_in_generate_ends_the_call_and_leaves_an_idle_engine(monkeypatch, whole, version, moment, how):
    llm = start_engine(version)
    countdown = [moment]
    number, kind, swallowed = RAISED[how]

    def ticking(function):
        def wrapped(*args: object, **kwargs: object):
            countdown[0] -= 1
            if not countdown[0]:
                try:
                    signal.raise_signal(number)
                except TimeoutError as error:
                    if swallowed:
                        raise ValueError("a library's own words") from error
                    raise
            return function(*args, **kwargs)

        return wrapped

    executor, scheduler = llm.loop.executor, llm.loop.scheduler
    owners = {
        "collect": executor,
        "forward": executor.target,
        "reserve": scheduler.ledger,
        "settle": scheduler.ledger,
        "finish": scheduler,
        "add": llm.loop,
        "_take": llm,
    }
    for name, at in owners.items():
        monkeypatch.setattr(at, name, ticking(getattr(at, name)))
    before = signal.getsignal(number)
    with pytest.raises(kind):
        llm.generate(PROMPTS, PARAMS)
        raise AssertionError(f"no interrupt; {countdown[0]} left")
    assert signal.getsignal(number) is before
    monkeypatch.undo()
    assert llm.health == "ok"
    at_rest(llm)
    assert [out.text for out in llm.generate(PROMPTS, PARAMS)] == whole
    at_rest(llm)


def test_a_signal_that_came_before_the_call_changes_nothing(monkeypatch, whole):
    llm = start_engine()
    rid = llm.add(PROMPTS[0], PARAMS)
    real = interrupts_module._set

    def pending(number: int, handler: object):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupts_module, "_set", pending)
    with pytest.raises(KeyboardInterrupt):
        llm.step()
    assert interrupts_module._set is real
    monkeypatch.setattr(llm.loop.scheduler.ledger, "reserve", signalling(llm.loop.scheduler.ledger.reserve))
    with pytest.raises(KeyboardInterrupt):
        llm.step()
    monkeypatch.undo()
    drain(llm)
    assert llm.take(rid).text == whole[0] and llm.health == "ok"
    at_rest(llm)


def signalling(function):
    def wrapped(*args: object):
        signal.raise_signal(signal.SIGINT)
        return function(*args)

    return wrapped


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_from_within_a_step_wait_or_are_refused(monkeypatch, whole, version):
    """Calls as a signal handler or the finaliser of a generator makes them."""
    llm = start_engine(version)
    kept = llm.add(PROMPTS[0], PARAMS)
    aborted = llm.add(PROMPTS[1], PARAMS)
    streams = [llm.stream(PROMPTS[2], PARAMS)]
    next(streams[0])
    ledger, done = llm.loop.scheduler.ledger, []
    real = ledger.launch

    def within(*args: int):
        if not done:
            streams.pop()
            done.append(llm.abort(aborted))
            for call in (lambda: llm.add("x"), llm.step, lambda: llm.generate(["x"]), lambda: llm.take(kept)):
                with pytest.raises(EngineError, match=r"^this thread is already in a call of this engine; only abort "):
                    call()
        return real(*args)

    monkeypatch.setattr(ledger, "launch", within)
    drain(llm)
    assert done == [True] and llm.take(aborted).finish == Finish("abort")
    assert llm.take(kept).text == whole[0] and llm.health == "ok"
    at_rest(llm)


def test_a_stream_that_is_interrupted_aborts_its_request(monkeypatch, whole):
    llm = start_engine()
    other = llm.add(PROMPTS[1], PARAMS)
    stream = llm.stream(PROMPTS[0], PARAMS)
    text = next(stream)
    plant(monkeypatch, llm, "target", KeyboardInterrupt(), times=1)
    with pytest.raises(KeyboardInterrupt):
        text += "".join(stream)
    drain(llm)
    assert set(llm.loop.scheduler.requests) == {other} and whole[0].startswith(text)
    assert llm.take(other).text == whole[1]
    at_rest(llm)


def test_interrupts_wait_for_a_window_or_for_the_end_of_the_call():
    seen = []
    interrupts = Interrupts()
    own = signal.signal(signal.SIGINT, lambda *_: seen.append("handled"))
    try:
        with interrupts:
            signal.raise_signal(signal.SIGINT)
            with interrupts:
                assert not seen
            assert not seen
            with interrupts.window:
                assert seen == ["handled"], "a window opens with what was delayed"
                signal.raise_signal(signal.SIGINT)
                assert len(seen) == 2
            signal.raise_signal(signal.SIGINT)
            assert len(seen) == 2
        assert len(seen) == 3
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupts:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, own)
    assert len(seen) == 3


def test_a_signal_that_comes_as_a_call_ends_is_delivered_by_that_call(monkeypatch):
    seen: list[int] = []
    real = interrupts_module._set
    own = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with Interrupts():

            def late(number: int, handler: object):
                signal.raise_signal(signal.SIGINT)
                return real(number, handler)

            monkeypatch.setattr(interrupts_module, "_set", late)
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, own)


def test_a_second_interrupt_does_not_disturb_the_first():
    interrupts = Interrupts()
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117 - the order of the contexts is the test
        with interrupts:
            try:
                with interrupts.window:
                    signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)  # while the step is undone
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("raising")
def test_a_signal_that_raises_as_a_window_opens_leaves_it_closed():
    interrupts, seen = Interrupts(), []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append("handled"))
    with pytest.raises(TimeoutError), interrupts:
        signal.raise_signal(signal.SIGALRM)
        try:
            with interrupts.window:
                raise AssertionError
        finally:
            signal.raise_signal(signal.SIGUSR1)
            assert not seen
    assert seen == ["handled"]


@pytest.mark.usefixtures("raising")
def test_of_several_signals_each_handler_runs_and_comes_back():
    seen = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGUSR1)}
    signal.signal(signal.SIGINT, own := lambda *_: seen.append("handled"))
    with pytest.raises((TimeoutError, Expired)), Interrupts():
        for number in (signal.SIGALRM, signal.SIGINT, signal.SIGUSR1):
            signal.raise_signal(number)
    assert seen == ["handled"] and signal.getsignal(signal.SIGINT) is own
    assert {number: signal.getsignal(number) for number in handlers} == handlers
