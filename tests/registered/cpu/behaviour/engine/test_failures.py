"""Failures, interrupts and threads in the middle of a step: other requests keep their tokens, every page comes home."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections import Counter

import pytest
import torch

from specmatrix import HOME
from specmatrix.engine import device_step as step_module
from specmatrix.engine import interrupts as interrupts_module
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.replay import replay
from specmatrix.engine.core.schedule.request import Finish, Phase, SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.device.cuda_graphs import CudaGraphs
from specmatrix.engine.executor import GraphRunner
from specmatrix.engine.interrupts import Interrupts
from specmatrix.errors import EngineError, KernelError, LedgerError, RequestError

pytestmark = pytest.mark.register(est_seconds=25, tier="cpu", stage="pr")

ZOO = HOME / "matrix" / "zoo" / "checkpoints"
PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Gus saves $75 a week for 3 weeks. He had $94 before. How much does Gus have now?\nAnswer:",
)
PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True)
VERSIONS = ("v1", "v2")
# Where a step can fail, as (attribute of the executor or None for the step's module, function).
PLACES = {
    "upload": ("kv", "extend"),
    "admission of rows": ("relay", "admit"),
    "staging": ("staging", "put"),
    "graph capture": ("graphs", "run"),
    "drafter": ("drafter", "propose"),
    "target": ("target", "forward"),
    "verification": (None, "verify"),
    "collect": ("staging", "take"),
}


def launch(version="v2", graphs=False, **more: object) -> LLM:
    asked = {
        "context_length": 256,
        "max_total_tokens": 700,
        "speculative_draft_model_path": "llama-mini-eagle3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 6,
        "strict_memory": 2,
        "kv_stamps": True,
    }
    config = EngineConfig("llama-mini", speculative_algorithm="EAGLE3", spec_version=version, **(asked | more))
    llm = LLM(config, lambda name: ZOO / name)
    if graphs:
        executor = llm.loop.executor
        executor.run = GraphRunner(executor.run, CudaGraphs(4, torch.device("cpu"), llm.loop.probes))
    return llm


@pytest.fixture(scope="module")
def whole() -> list[str]:
    """What undisturbed requests say."""
    return [out.text for out in launch().generate(PROMPTS, PARAMS)]


def at_rest(llm: LLM) -> None:
    """Nothing is held or in flight, every page is free or cached, the journal replays, every stamp was right."""
    loop, ledger = llm.loop, llm.loop.scheduler.ledger
    assert not loop.pending and not loop.scheduler.requests
    assert not ledger.accounts and len(ledger.free) + ledger.cached == ledger.num_pages
    replay(llm.journal, ledger.num_pages, ledger.page_size)
    assert llm.probes["stamp.wrong"] == 0


def plant(monkeypatch, llm: LLM, place: str, error: BaseException, victim=None, times=None, tokens=0) -> list[int]:
    """Raise at a place in steps that hold `victim` (any step if None), at most `times` times, once it has shown
    `tokens` tokens. Returns the number of requests of each step that failed."""
    executor, failed = llm.loop.executor, []
    launch, collect = executor.launch, executor.collect
    current = []

    def launched(plan):
        current[:] = [plan]
        return launch(plan)

    def collected(handle):
        current[:] = [handle.plan]
        return collect(handle)

    monkeypatch.setattr(executor, "launch", launched)
    monkeypatch.setattr(executor, "collect", collected)
    owner, name = PLACES[place]
    at = step_module if owner is None else getattr(executor, owner)
    real = getattr(at, name)

    def raising(*args: object, **kwargs: object):
        (plan,) = current
        rids = [row.rid for row in plan.rows]
        due = victim is None or (victim in rids and len(llm.request(victim).output) >= tokens)
        if due and (times is None or len(failed) < times):
            failed.append(len(rids))
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(at, name, raising)
    return failed


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", PLACES)
def test_a_request_that_makes_its_steps_fail_ends_alone(monkeypatch, caplog, whole, place, version):
    llm = launch(version, graphs=place == "graph capture")
    rids = [llm.add(prompt, PARAMS) for prompt in PROMPTS]
    tokens = 0 if place == "admission of rows" else 7
    failed = plant(monkeypatch, llm, place, RuntimeError("bad number"), victim=rids[1], tokens=tokens)
    while llm.step():
        pass
    first, victim, last = (llm.take(rid) for rid in rids)
    assert [first.text, last.text] == [whole[0], whole[2]]
    assert victim.finish == Finish(
        "error",
        message="the request made the engine raise RuntimeError: bad number; it was stopped, and its tokens so far are "
        "exact",
    )
    assert len(victim.output_ids) >= tokens and whole[1].startswith(victim.text)
    assert failed[-1] == 1 and len(failed) <= 4, "its own step shows which request is at fault"
    assert any("bad number" in str(record.exc_info) for record in caplog.records)
    assert llm.health == "ok"
    monkeypatch.undo()
    assert llm.generate([PROMPTS[1]], PARAMS)[0].text == whole[1]
    at_rest(llm)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", PLACES)
def test_a_failure_that_does_not_come_again_changes_no_token(monkeypatch, whole, place, version):
    llm = launch(version, graphs=place == "graph capture")
    failed = plant(monkeypatch, llm, place, RuntimeError("once"), times=1)
    assert [out.text for out in llm.generate(PROMPTS, PARAMS)] == whole
    assert failed == [3]
    at_rest(llm)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_leaves_nothing_in_flight_and_the_requests_go_on(monkeypatch, whole, place, version):
    llm = launch(version, graphs=place == "graph capture")
    rids = [llm.add(prompt, PARAMS) for prompt in PROMPTS]
    tokens = 0 if place == "admission of rows" else 7
    plant(monkeypatch, llm, place, KeyboardInterrupt(), victim=rids[1], times=1, tokens=tokens)
    with pytest.raises(KeyboardInterrupt):
        while llm.step():
            pass
    scheduler = llm.loop.scheduler
    assert not llm.loop.pending and not scheduler.active and len(scheduler.waiting) == 3
    scheduler.check()
    assert not scheduler.ledger.accounts
    while llm.step():
        pass
    assert [llm.take(rid).text for rid in rids] == whole
    assert llm.health == "ok"
    at_rest(llm)


@pytest.mark.parametrize("error", [LedgerError("no such page"), KernelError("bad shape"), torch.AcceleratorError("x")])
@pytest.mark.parametrize("place", ["target", "collect"])
def test_a_bug_ends_what_lives_and_every_later_call_names_it(monkeypatch, place, error):
    llm = launch()
    first, second = (llm.add(prompt, PARAMS) for prompt in PROMPTS[:2])
    plant(monkeypatch, llm, place, error, victim=first, tokens=5)
    with pytest.raises((LedgerError, KernelError)) as raised:
        while llm.step():
            pass
    monkeypatch.undo()
    cause = f"{raised.type.__name__}: {raised.value}"
    assert ("the device failed: x" in cause) == isinstance(error, torch.AcceleratorError)
    assert llm.health == f"broken: {cause}"
    sentence = f"the engine is broken and accepts no more calls; its first error was {cause}"
    for call in (
        lambda: llm.add("x"),
        llm.step,
        lambda: llm.generate(["x"]),
        lambda: next(llm.stream("x")),
        lambda: llm.open_session(100),
        lambda: llm.close_session("x"),
    ):
        with pytest.raises(EngineError) as later:
            call()
        assert str(later.value) == sentence
    assert not llm.abort(first)
    out = llm.take(first)
    assert out.finish == Finish("error", message=f"the engine broke: {cause}") and len(out.output_ids) >= 5
    assert llm.take(second).finish == out.finish


def test_an_exit_in_the_middle_of_the_books_breaks_the_engine(monkeypatch):
    llm = launch()
    rid = llm.add(PROMPTS[0], PARAMS)
    monkeypatch.setattr(llm.loop.scheduler.ledger, "launch", lambda *_: (_ for _ in ()).throw(SystemExit(3)))
    with pytest.raises(SystemExit):
        llm.step()
    assert llm.health == "broken: SystemExit: 3" and llm.take(rid).finish.reason == "error"


def test_an_interrupt_that_was_undone_excuses_no_later_exit(monkeypatch):
    llm = launch()
    llm.add(PROMPTS[0], PARAMS)
    plant(monkeypatch, llm, "target", KeyboardInterrupt(), times=1)
    with pytest.raises(KeyboardInterrupt):
        llm.step()
    monkeypatch.setattr(llm.loop.scheduler.ledger, "launch", lambda *_: (_ for _ in ()).throw(SystemExit(3)))
    with pytest.raises(SystemExit):
        llm.step()
    assert llm.health == "broken: SystemExit: 3"


def test_a_request_whose_text_cannot_be_made_ends_alone(monkeypatch, whole):
    llm = launch()
    rids = [llm.add(prompt, PARAMS) for prompt in PROMPTS]
    llm.step()
    rules = llm.loop._rules[rids[1]]
    judged = type(rules).judge

    def judge(self, token, count, transcript):
        if self is rules and count == 4:
            raise ValueError("no such piece")
        return judged(self, token, count, transcript)

    monkeypatch.setattr(type(rules), "judge", judge)
    while llm.step():
        pass
    first, victim, last = (llm.take(rid) for rid in rids)
    assert [first.text, last.text] == [whole[0], whole[2]]
    assert victim.finish is not None and "ValueError: no such piece" in str(victim.finish.message)
    at_rest(llm)


def test_ranks_take_no_step_back(monkeypatch):
    llm = launch()
    llm.loop.isolates = False
    llm.add(PROMPTS[0], PARAMS)
    plant(monkeypatch, llm, "target", RuntimeError("this rank only"), times=1)
    with pytest.raises(RuntimeError, match=r"^this rank only$"):
        llm.step()
    assert llm.health == "broken: RuntimeError: this rank only"


@pytest.mark.parametrize("version", VERSIONS)
def test_isolated_requests_share_no_step_and_newcomers_do(monkeypatch, whole, version):
    llm = launch(version)
    rids = [llm.add(prompt, PARAMS) for prompt in PROMPTS[:2]]
    plant(monkeypatch, llm, "verification", RuntimeError("once"), times=1)
    while not llm.loop.scheduler.isolated:
        llm.step()
    others = [llm.add(prompt, PARAMS) for prompt in PROMPTS]
    shared = Counter()
    launched = llm.loop.executor.launch

    def launch_(plan):
        together = {row.rid for row in plan.rows}
        assert len(together) == 1 or together.isdisjoint(llm.loop.scheduler.isolated)
        shared[len(together)] += 1
        return launched(plan)

    monkeypatch.setattr(llm.loop.executor, "launch", launch_)
    while llm.loop.scheduler.isolated:
        llm.step()
    monkeypatch.undo()
    while llm.step():
        pass
    assert [llm.take(rid).text for rid in (*rids, *others)] == [*whole[:2], *whole]
    assert shared[1] > 0 and shared[3] > 0
    at_rest(llm)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("moment", range(1, 40, 3))
def test_ctrl_c_in_generate_leaves_an_idle_engine(monkeypatch, whole, version, moment):
    llm = launch(version)
    countdown = [moment]

    def ticking(function):
        def wrapped(*args: object, **kwargs: object):
            countdown[0] -= 1
            if not countdown[0]:
                signal.raise_signal(signal.SIGINT)
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
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, PARAMS)
        raise AssertionError(f"no interrupt; {countdown[0]} left")
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert llm.health == "ok"
    at_rest(llm)
    assert [out.text for out in llm.generate(PROMPTS, PARAMS)] == whole
    at_rest(llm)


class Wordless(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_exception_without_a_text_ends_its_request_alone(monkeypatch, whole):
    llm = launch()
    rids = [llm.add(prompt, PARAMS) for prompt in PROMPTS]
    plant(monkeypatch, llm, "target", Wordless(), victim=rids[1], tokens=5)
    while llm.step():
        pass
    first, victim, last = (llm.take(rid) for rid in rids)
    assert [first.text, last.text] == [whole[0], whole[2]]
    assert "raise Wordless: its text cannot be made" in victim.finish.message
    at_rest(llm)


def test_a_bug_without_a_text_breaks_the_engine(monkeypatch):
    class Silent(Wordless, KernelError):
        pass

    llm = launch()
    llm.add(PROMPTS[0], PARAMS)
    plant(monkeypatch, llm, "target", Silent())
    with pytest.raises(Silent):
        llm.step()
    assert llm.health == "broken: Silent: its text cannot be made"


def test_a_signal_that_came_before_the_call_changes_nothing(monkeypatch, whole):
    llm = launch()
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
    while llm.step():
        pass
    assert llm.take(rid).text == whole[0] and llm.health == "ok"
    at_rest(llm)


def signalling(function):
    def wrapped(*args: object):
        signal.raise_signal(signal.SIGINT)
        return function(*args)

    return wrapped


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_from_within_a_step_wait_or_are_refused(monkeypatch, whole, version):
    """As a signal's handler or the end of a generator that is collected makes them."""
    llm = launch(version)
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
    while llm.step():
        pass
    assert done == [True] and llm.take(aborted).finish == Finish("abort")
    assert llm.take(kept).text == whole[0] and llm.health == "ok"
    at_rest(llm)


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (RuntimeError("bad"), None, "the request made the engine raise RuntimeError: bad"),
        (KernelError("bad"), KernelError, "the engine broke: KernelError: bad"),
    ],
)
def test_a_stream_tells_the_error_behind_its_text(monkeypatch, whole, error, raised, said):
    llm = launch()
    stream = llm.stream(PROMPTS[0], PARAMS)
    text = [next(stream)]
    plant(monkeypatch, llm, "target", error)
    if raised is not None:
        with pytest.raises(raised):
            llm.step()
    with pytest.raises(EngineError, match=f"^request 1 ended with an error after this text: {said}"):
        text.extend(stream)
    assert whole[0].startswith("".join(text))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", ["target", "collect"])
def test_a_turn_that_failed_leaves_its_session_what_it_computed(monkeypatch, version, place):
    llm = launch(version, enable_streaming_session=True)
    session = SessionParams(llm.open_session(10_000, streaming=True))
    first = llm.generate([PROMPTS[0]], PARAMS, session)[0]
    rid = llm.add(PROMPTS[1], PARAMS, session)
    plant(monkeypatch, llm, place, RuntimeError("bad"), victim=rid, tokens=9)
    while llm.step():
        pass
    monkeypatch.undo()
    failed = llm.take(rid)
    assert failed.finish.reason == "error" and len(failed.output_ids) >= 9
    again = llm.generate([PROMPTS[2]], PARAMS, session)[0]
    tail = 1 + llm.loop.executor.drafter.key_span
    assert again.cached_tokens >= failed.prompt_tokens + len(failed.output_ids) - tail > first.prompt_tokens
    history = llm.tokenizer.encode(PROMPTS[2])[1:]
    rest = launch(version).generate([again_prompt(failed, llm, history)], PARAMS)[0]
    assert rest.output_ids == again.output_ids


def again_prompt(failed, llm: LLM, new: list[int]) -> list[int]:
    """What the turn behind a failed one reads, sent whole."""
    (session,) = llm.sessions.sessions.values()
    history = session.history[: failed.prompt_tokens + len(failed.output_ids)]
    assert history[failed.prompt_tokens :] == failed.output_ids
    return [*history, *new]


def test_what_is_no_request_is_refused(whole):
    llm = launch()
    huge = "an integer of thousands of digits"
    for call, sentence in (
        (lambda: llm.add("a", SamplingParams(max_new_tokens=10**5000)), f"max_new_tokens is {huge}; allowed: an "),
        (lambda: llm.add(None), "the prompt is None; allowed: a string or a list of token ids"),
        (lambda: llm.add(b"ab"), "the prompt is b'ab'; allowed: a string or a list of token ids"),
        (lambda: llm.add("a", {}), "params is {}; allowed: SamplingParams"),
        (lambda: llm.generate(["a"], 5), "params is 5; allowed: SamplingParams, or a list with one per prompt"),
        (lambda: llm.generate(5), "prompts is 5; allowed: a list of strings or of token id lists"),
        (lambda: llm.generate([None]), "the prompt is None; allowed"),
    ):
        with pytest.raises(RequestError) as caught:
            call()
        assert str(caught.value).startswith(sentence)
    assert llm.generate(PROMPTS[:1], PARAMS)[0].text == whole[0]
    at_rest(llm)


def test_a_stream_that_is_interrupted_aborts_its_request(monkeypatch, whole):
    llm = launch()
    other = llm.add(PROMPTS[1], PARAMS)
    stream = llm.stream(PROMPTS[0], PARAMS)
    text = next(stream)
    plant(monkeypatch, llm, "target", KeyboardInterrupt(), times=1)
    with pytest.raises(KeyboardInterrupt):
        text += "".join(stream)
    while llm.step():
        pass
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


def inside_another_thread(monkeypatch, llm: LLM):
    """A thread that stands still inside a step of `llm`; returns it and the event that lets it go on."""
    entered, leave = threading.Event(), threading.Event()
    launched = llm.loop.executor.launch

    def waiting(plan):
        entered.set()
        assert leave.wait(60)
        return launched(plan)

    monkeypatch.setattr(llm.loop.executor, "launch", waiting)
    found = []
    thread = threading.Thread(target=lambda: found.extend(llm.generate(PROMPTS[:1], PARAMS)))
    thread.start()
    assert entered.wait(60)
    return thread, leave, found


def test_a_second_thread_is_refused_and_may_abort(monkeypatch, whole):
    llm = launch()
    waiting = llm.add(PROMPTS[1], PARAMS)
    stream = llm.stream(PROMPTS[2], PARAMS)
    said = next(stream)
    thread, leave, found = inside_another_thread(monkeypatch, llm)
    sentence = "^another thread is calling this engine; only abort may be called from several threads$"
    for call in (
        lambda: llm.add("x"),
        llm.step,
        lambda: llm.generate(["x"]),
        lambda: next(llm.stream("x")),
        lambda: llm.take(waiting),
        lambda: llm.open_session(100),
        lambda: llm.close_session("x"),
        lambda: next(stream),
        llm.readback,
    ):
        with pytest.raises(EngineError, match=sentence):
            call()
    assert llm.abort(waiting)
    leave.set()
    thread.join(60)
    assert found[0].text == whole[0] and whole[2].startswith(said)
    assert llm.take(waiting).finish == Finish("abort")
    while llm.step():
        pass
    at_rest(llm)


def test_many_threads_leave_a_whole_engine(whole):
    llm = launch()
    done: list[str] = []
    refused = []

    def serve(prompt: str) -> None:
        while True:
            try:
                done.append(llm.generate([prompt], PARAMS)[0].text)
                return
            except EngineError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=serve, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == sorted(whole)
    assert all(sentence.startswith("another thread is calling this engine") for sentence in refused)
    at_rest(llm)


@pytest.mark.parametrize("version", VERSIONS)
def test_streams_steps_and_generate_interleave(whole, version):
    llm = launch(version)
    streams = [llm.stream(prompt, PARAMS) for prompt in PROMPTS[:2]]
    texts = [next(stream) for stream in streams]
    other = llm.add(PROMPTS[2], PARAMS)
    assert llm.generate([PROMPTS[2]], PARAMS)[0].text == whole[2]
    texts[0] += next(streams[0])
    while llm.step():
        pass
    texts = [text + "".join(stream) for text, stream in zip(texts, streams, strict=True)]
    assert texts == whole[:2] and llm.take(other).text == whole[2]
    at_rest(llm)


def test_generate_ends_with_its_own_requests(whole):
    llm = launch()
    long = llm.add(PROMPTS[1], SamplingParams(max_new_tokens=120, ignore_eos=True))
    assert llm.generate([PROMPTS[0]], PARAMS)[0].text == whole[0]
    assert len(llm.request(long).output) < 120
    while llm.step():
        pass
    assert len(llm.take(long).output_ids) == 120
    at_rest(llm)


def test_what_a_stream_owns_cannot_be_taken(whole):
    llm = launch()
    stream = llm.stream(PROMPTS[0], PARAMS)
    text = next(stream)
    (rid,) = llm.loop.scheduler.requests
    while llm.step():
        pass
    assert llm.request(rid).phase is Phase.DONE
    with pytest.raises(RequestError, match=f"^request {rid} belongs to a stream or generate call, which returns"):
        llm.take(rid)
    assert text + "".join(stream) == whole[0]
    with pytest.raises(
        RequestError, match=f"^request {rid} is unknown; allowed: the id of a request whose result was not"
    ):
        llm.take(rid)
    at_rest(llm)


def test_a_stream_that_another_thread_drops_leaves_its_request_to_the_thread_inside(monkeypatch):
    llm = launch()
    stream = llm.stream(PROMPTS[2], PARAMS)
    next(stream)
    thread, leave, _ = inside_another_thread(monkeypatch, llm)
    del stream
    gc.collect()
    assert len(llm.loop.scheduler.requests) == 2
    leave.set()
    thread.join(60)
    while llm.step():
        pass
    at_rest(llm)


def test_failures_are_logged_with_their_tracebacks(monkeypatch, caplog):
    llm = launch()
    plant(monkeypatch, llm, "target", RuntimeError("why"))
    with caplog.at_level(logging.WARNING, "specmatrix.engine"):
        assert {out.finish.reason for out in llm.generate(PROMPTS, PARAMS)} == {"error"}
    assert [record.message for record in caplog.records] == [
        "a step with 3 requests failed; each request will run alone",
        *(f"request {rid} was stopped after RuntimeError: why" for rid in (1, 2, 3)),
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False, False]
