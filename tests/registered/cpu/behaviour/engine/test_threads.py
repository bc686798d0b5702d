"""Several threads and streams on one engine: each gets its own answers, and only one runs at a time."""

from __future__ import annotations

import gc
import threading

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import Finish, Phase, SamplingParams
from specmatrix.errors import EngineError, RequestError
from tests.support.failing_steps import PARAMS, PROMPTS, VERSIONS, at_rest, drain, start_engine


def inside_another_thread(monkeypatch, llm: LLM):
    """A thread that is paused inside a step of `llm`; returns it and the event that resumes it."""
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
    llm = start_engine()
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
    drain(llm)
    at_rest(llm)


@pytest.mark.parametrize("version", VERSIONS)
def test_streams_steps_and_generate_interleave(whole, version):
    llm = start_engine(version)
    streams = [llm.stream(prompt, PARAMS) for prompt in PROMPTS[:2]]
    texts = [next(stream) for stream in streams]
    other = llm.add(PROMPTS[2], PARAMS)
    assert llm.generate([PROMPTS[2]], PARAMS)[0].text == whole[2]
    texts[0] += next(streams[0])
    drain(llm)
    texts = [text + "".join(stream) for text, stream in zip(texts, streams, strict=True)]
    assert texts == whole[:2] and llm.take(other).text == whole[2]
    at_rest(llm)


def test_generate_ends_with_its_own_requests(whole):
    llm = start_engine()
    long = llm.add(PROMPTS[1], SamplingParams(max_new_tokens=120, ignore_eos=True))
    assert llm.generate([PROMPTS[0]], PARAMS)[0].text == whole[0]
    assert len(llm.request(long).output) < 120
    drain(llm)
    assert len(llm.take(long).output_ids) == 120
    at_rest(llm)


def test_what_a_stream_owns_cannot_be_taken(whole):
    llm = start_engine()
    stream = llm.stream(PROMPTS[0], PARAMS)
    text = next(stream)
    (rid,) = llm.loop.scheduler.requests
    drain(llm)
    assert llm.request(rid).phase is Phase.DONE
    with pytest.raises(RequestError, match=f"^request {rid} belongs to a stream or generate call, which returns"):
        llm.take(rid)
    assert text + "".join(stream) == whole[0]
    with pytest.raises(RequestError, match=f"^request {rid} is unknown; allowed: the id of a request whose result"):
        llm.take(rid)
    at_rest(llm)


def test_a_stream_dropped_by_a_second_thread_leaves_its_request_to_the_first(monkeypatch):
    llm = start_engine()
    stream = llm.stream(PROMPTS[2], PARAMS)
    next(stream)
    thread, leave, _ = inside_another_thread(monkeypatch, llm)
    del stream
    gc.collect()
    assert len(llm.loop.scheduler.requests) == 2
    leave.set()
    thread.join(60)
    drain(llm)
    at_rest(llm)
