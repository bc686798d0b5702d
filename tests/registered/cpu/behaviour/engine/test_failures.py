"""Failures in the middle of a step: other requests keep their tokens, and every page is freed."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import Finish, StopRules
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.parallel.client import RankedLLM
from specmatrix.errors import ConfigError, EngineError, KernelError, LedgerError
from tests.support.failing_steps import MOMENTS, PARAMS, PROMPTS, VERSIONS, at_rest, drain, plant, start_engine
from tests.support.misbehaving_drafter import Wordless


@pytest.mark.parametrize(("place", "version"), MOMENTS)
def test_a_request_that_makes_its_steps_fail_ends_alone(monkeypatch, caplog, whole, place, version):
    llm = start_engine(version, graphs=place == "graph capture")
    rids = [llm.add(prompt, PARAMS) for prompt in PROMPTS]
    tokens = 0 if place == "admission of rows" else 7
    failed = plant(monkeypatch, llm, place, RuntimeError("bad number"), victim=rids[1], tokens=tokens)
    drain(llm)
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


@pytest.mark.parametrize(("place", "version"), MOMENTS)
def test_a_failure_that_does_not_come_again_changes_no_token(monkeypatch, whole, place, version):
    llm = start_engine(version, graphs=place == "graph capture")
    failed = plant(monkeypatch, llm, place, RuntimeError("once"), times=1)
    assert [out.text for out in llm.generate(PROMPTS, PARAMS)] == whole
    assert failed == [3]
    at_rest(llm)


@pytest.mark.parametrize("error", [LedgerError("no such page"), KernelError("bad shape"), torch.AcceleratorError("x")])
@pytest.mark.parametrize("place", ["target", "collect"])
def test_a_bug_ends_every_request_and_every_later_call_names_it(monkeypatch, place, error):
    llm = start_engine()
    first, second = (llm.add(prompt, PARAMS) for prompt in PROMPTS[:2])
    plant(monkeypatch, llm, place, error, victim=first, tokens=5)
    with pytest.raises((LedgerError, KernelError)) as raised:
        drain(llm)
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


def test_a_request_whose_text_cannot_be_made_ends_alone(monkeypatch, whole):
    llm = start_engine()
    rids = [llm.add(prompt, PARAMS) for prompt in PROMPTS]
    judged = StopRules.judge

    def judge(self, token, count, transcript):
        if count == 4 and transcript is llm.request(rids[1]).transcript:
            raise ValueError("no such piece")
        return judged(self, token, count, transcript)

    monkeypatch.setattr(StopRules, "judge", judge)
    drain(llm)
    first, victim, last = (llm.take(rid) for rid in rids)
    assert [first.text, last.text] == [whole[0], whole[2]]
    assert "ValueError: no such piece" in victim.finish.message
    at_rest(llm)


def test_ranks_take_no_step_back(monkeypatch):
    llm = start_engine()
    llm.loop.isolates = False
    llm.add(PROMPTS[0], PARAMS)
    plant(monkeypatch, llm, "target", RuntimeError("this rank only"), times=1)
    with pytest.raises(RuntimeError, match=r"^this rank only$"):
        llm.step()
    assert llm.health == "broken: RuntimeError: this rank only"


@pytest.mark.parametrize("version", VERSIONS)
def test_isolated_requests_share_no_step_and_newcomers_do(monkeypatch, whole, version):
    llm = start_engine(version)
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
    drain(llm)
    assert [llm.take(rid).text for rid in (*rids, *others)] == [*whole[:2], *whole]
    assert shared[1] > 0 and shared[3] > 0
    at_rest(llm)


def test_a_bug_without_a_text_breaks_the_engine(monkeypatch):
    class Silent(Wordless, KernelError):
        pass

    llm = start_engine()
    llm.add(PROMPTS[0], PARAMS)
    plant(monkeypatch, llm, "target", Silent())
    with pytest.raises(Silent):
        llm.step()
    assert llm.health == "broken: Silent: its text is unavailable"


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (RuntimeError("bad"), None, "the request made the engine raise RuntimeError: bad"),
        (KernelError("bad"), KernelError, "the engine broke: KernelError: bad"),
    ],
)
def test_a_stream_raises_the_error_after_its_text(monkeypatch, whole, error, raised, said):
    llm = start_engine()
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
def test_a_failed_turn_leaves_its_computed_kv_to_its_session(monkeypatch, version, place):
    llm = start_engine(version, enable_streaming_session=True)
    session = SessionParams(llm.open_session(10_000, streaming=True))
    first = llm.generate([PROMPTS[0]], PARAMS, session)[0]
    rid = llm.add(PROMPTS[1], PARAMS, session)
    plant(monkeypatch, llm, place, RuntimeError("bad"), victim=rid, tokens=9)
    drain(llm)
    monkeypatch.undo()
    failed = llm.take(rid)
    assert failed.finish.reason == "error" and len(failed.output_ids) >= 9
    again = llm.generate([PROMPTS[2]], PARAMS, session)[0]
    tail = 1 + llm.loop.executor.drafter.key_span
    assert again.cached_tokens >= failed.prompt_tokens + len(failed.output_ids) - tail > first.prompt_tokens
    (held,) = llm.sessions.sessions.values()
    history = [*held.history[: failed.prompt_tokens + len(failed.output_ids)], *llm.tokenizer.encode(PROMPTS[2])[1:]]
    assert start_engine(version).generate([history], PARAMS)[0].output_ids == again.output_ids


@pytest.mark.parametrize("make", [LLM, lambda config: RankedLLM(config, Path)])
@pytest.mark.parametrize("config", ["llama-mini", None, {"model_path": "llama-mini"}])
def test_what_is_no_config_is_refused(make, config):
    with pytest.raises(ConfigError, match=f"^config is {re.escape(repr(config))}; allowed: an EngineConfig, such as"):
        make(config)


def test_failures_are_logged_with_their_tracebacks(monkeypatch, caplog):
    llm = start_engine()
    plant(monkeypatch, llm, "target", RuntimeError("why"))
    with caplog.at_level(logging.WARNING, "specmatrix.engine"):
        assert {out.finish.reason for out in llm.generate(PROMPTS, PARAMS)} == {"error"}
    assert [record.message for record in caplog.records] == [
        "a step with 3 requests failed; each request will run alone",
        *(f"request {rid} was stopped after RuntimeError: why" for rid in (1, 2, 3)),
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, False, False]
