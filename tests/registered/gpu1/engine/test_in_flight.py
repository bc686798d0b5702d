"""On a GPU at lag 1: retraction, aborts and session turns while a step is in flight change no request's tokens."""

from __future__ import annotations

from functools import cache

import pytest

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.replay import replay
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams

ZOO = HOME / "matrix" / "zoo" / "checkpoints"
PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:",
    "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:",
)
TURNS = (PROMPTS[1], "\nQuestion: Cora had 19 keys before. How many keys does she have now?\nAnswer:")
PARAMS = (
    SamplingParams(max_new_tokens=40, ignore_eos=True),
    SamplingParams(max_new_tokens=33, temperature=0.8, seed=5, ignore_eos=True),
    SamplingParams(max_new_tokens=27, ignore_eos=True),
    SamplingParams(max_new_tokens=45, ignore_eos=True),
)
SHAPES = {"chain": (3, 1, 4), "tree": (3, 3, 8)}


def start_engine(shape: str | None, **more: object) -> LLM:
    asked: dict[str, object] = {
        "device": "cuda",
        "dtype": "float32",
        "enable_deterministic_inference": True,
        "kv_stamps": True,
        "strict_memory": 2,
        "page_size": 4,
        "context_length": 320,
        "max_total_tokens": 1024,
        "max_running_requests": 4,
        "enable_streaming_session": True,
    }
    if shape is not None:
        steps, topk, nodes = SHAPES[shape]
        asked |= {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": "llama-mini-eagle3",
            "speculative_num_steps": steps,
            "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": nodes,
            "spec_version": "v2",
        }
    return LLM(EngineConfig("llama-mini", **{**asked, **more}), lambda name: ZOO / name)


@cache
def plain() -> tuple[tuple[int, ...], ...]:
    """Each request alone, without a drafter, a graph or a step in flight."""
    llm = start_engine(None, spec_version="v1", disable_cuda_graph=True, disable_radix_cache=True)
    return tuple(llm.generate([prompt], params)[0].output_ids for prompt, params in zip(PROMPTS, PARAMS, strict=True))


def at_rest(llm: LLM) -> None:
    """Nothing is held, the journal replays, every stamp was right, and no graph replay waited."""
    ledger, counters = llm.loop.scheduler.ledger, llm.counters
    assert not ledger.accounts and not ledger.counts.held
    replay(llm.journal)
    assert counters["stamp.checked"] > 0 and counters["stamp.wrong"] == 0
    assert counters["overlap.in_flight"] > 0 and counters["graph.waited"] == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_retracted_request_generates_the_same_tokens(shape):
    llm = start_engine(shape, max_total_tokens=176, disable_radix_cache=True)
    for _ in range(3):
        assert tuple(out.output_ids for out in llm.generate(PROMPTS, PARAMS)) == plain()
    assert llm.counters["retract.done"] > 0 and llm.counters["graph.replayed"] > 0
    at_rest(llm)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_abort_at_any_step_leaves_the_others_alone(shape):
    llm = start_engine(shape)
    in_flight = 0
    for after in range(1, 12):
        rids = [llm.add(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        for _ in range(after):
            llm.step()
        victim = after % len(rids)
        in_flight += bool(llm.loop.pending)
        llm.abort(rids[victim])
        while llm.step():
            pass
        for place, (rid, said) in enumerate(zip(rids, plain(), strict=True)):
            out = llm.take(rid)
            assert out.output_ids == (said[: len(out.output_ids)] if place == victim else said)
    assert in_flight > 5 and llm.counters["abort.running"] > 0 and llm.counters["overlap.dropped"] > 0
    at_rest(llm)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_turn_that_arrives_while_the_last_one_drains_inherits_its_kv(shape):
    """Another request keeps rounds in flight; the second turn is sent in the very step that ended the first."""
    alone, history, wanted = start_engine(None, spec_version="v1", disable_cuda_graph=True), [], []
    for text, params in zip(TURNS, PARAMS, strict=False):
        history += alone.tokenizer.encode(text)[1 if history else 0 :]
        (out,) = alone.generate([history], params)
        history += out.output_ids
        wanted.append(out.output_ids)
    llm, drained = start_engine(shape), 0
    for _ in range(3):
        beside = llm.add(PROMPTS[3], PARAMS[3])
        name = llm.open_session(1000, streaming=True)
        for text, params, said in zip(TURNS, PARAMS, wanted, strict=False):
            rid = llm.add(text, params, SessionParams(name))
            while llm.request(rid).finish is None:
                llm.step()
            drained += bool(llm.loop.pending)
            assert tuple(llm.request(rid).output) == said
        llm.close_session(name)
        while llm.step():
            pass
        assert llm.take(beside).output_ids == plain()[3]
    assert drained > 0 and llm.counters["session.inherited"] > 0 and llm.counters["session.held"] > 0
    at_rest(llm)
