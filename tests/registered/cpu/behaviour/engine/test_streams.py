"""Streams and aborts: a stream adds up to the text, and a request that ends early leaves the others alone."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.llama_engines import DRAFTERS, GREEDY, PROMPTS, at_rest, plain, said, start_engine


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
