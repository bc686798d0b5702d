"""Streams and aborts: a stream adds up to the text, and a request that ends early leaves the others alone."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.schedule.request import Finish, SamplingParams
from tests.support.llama_engines import (
    DRAFTERS,
    GREEDY,
    NONE,
    PROMPTS,
    at_rest,
    plain,
    said,
    start_engine,
)


@pytest.mark.parametrize("shape", [NONE, DRAFTERS[1]], ids=["none", "tree"])
@pytest.mark.parametrize("stop", [(), ("\n####",), ("><", ">>")])
def test_a_stream_adds_up_to_the_text(shape, stop):
    params = SamplingParams(max_new_tokens=40, stop=stop)
    (whole,) = start_engine(shape).generate([PROMPTS[0]], params)
    llm = start_engine(shape)
    parts = list(llm.stream(PROMPTS[0], params))
    assert "".join(parts) == whole.text and len(parts) > 2 and all(parts)
    assert not llm.loop.scheduler.requests, "a streamed request is forgotten once it has ended"
    assert not stop or (whole.finish.matched in stop and whole.finish.matched not in whole.text)


def test_a_stream_ends_with_its_own_request():
    llm = start_engine()
    other = llm.add(PROMPTS[1], SamplingParams(max_new_tokens=60, ignore_eos=True))
    assert "".join(llm.stream(PROMPTS[0], GREEDY)) == plain()[0][1]
    assert len(llm.request(other).output) < 60
    while llm.step():
        pass
    assert len(llm.take(other).output_ids) == 60


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_stream_that_is_closed_early_aborts_and_forgets_its_request(version):
    llm = start_engine(DRAFTERS[1], spec_version=version)
    other = llm.add(PROMPTS[1], GREEDY)
    stream = llm.stream(PROMPTS[0], SamplingParams(max_new_tokens=60, ignore_eos=True))
    assert next(stream)
    stream.close()
    assert llm.counters["abort.running"] == 1
    while llm.step():
        pass
    assert set(llm.loop.scheduler.requests) == {other}
    assert said([llm.take(other)]) == plain()[1:2]
    at_rest(llm)


def test_a_stream_that_is_dropped_before_its_first_or_after_its_last_text_leaves_nothing():
    llm = start_engine()
    params = SamplingParams(max_new_tokens=9, ignore_eos=True)
    stream = llm.stream(PROMPTS[0], params)
    llm.stream(PROMPTS[1], params).close()
    text = ""
    while text != plain((params,), PROMPTS[:1])[0][1]:
        text += next(stream)
    stream.close()
    while llm.step():
        pass
    assert not llm.loop.scheduler.requests and not llm.counters["abort.running"]
    at_rest(llm)


def test_abort_in_the_middle_leaves_the_others_alone():
    llm = start_engine(DRAFTERS[1], spec_version="v2", max_running_requests=2)
    first, victim, queued = (llm.add(prompt, GREEDY) for prompt in PROMPTS)
    while len(llm.request(victim).output) < 5:
        llm.step()
    assert llm.abort(victim) and not llm.abort(victim)
    while llm.step():
        pass
    outputs = [llm.take(rid) for rid in (first, victim, queued)]
    expected = plain()
    assert said(outputs)[0] == expected[0] and said(outputs)[2] == expected[2]
    aborted = outputs[1]
    assert aborted.finish == Finish("abort") and aborted.meta_info["finish_reason"]["type"] == "abort"
    assert aborted.output_ids == expected[1][0][: len(aborted.output_ids)] and len(aborted.output_ids) >= 5
    assert llm.counters["abort.running"] == 1
    at_rest(llm)


def test_abort_before_the_first_token():
    llm = start_engine(max_running_requests=1)
    running, waiting = llm.add(PROMPTS[0], GREEDY), llm.add(PROMPTS[1], GREEDY)
    llm.step()
    assert llm.abort(waiting)
    while llm.step():
        pass
    out = llm.take(waiting)
    assert (out.output_ids, out.text, out.finish) == ((), "", Finish("abort"))
    assert said([llm.take(running)]) == plain()[:1]
