"""Requests that decode while long prompts are read, with and without mixed steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.observe.step_counter import Delivery, RowOutcome
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from tests.support.engines import RUNS, engine

QUESTIONS = (
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "A garden is 19 feet",
)
LONG = QUESTIONS[0] * 3
RULES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "min_new_tokens": 6}
PARAMS = [
    SamplingParams(max_new_tokens=24, ignore_eos=True, return_logprob=True),
    SamplingParams(max_new_tokens=20, temperature=0.8, seed=3, **RULES),
    SamplingParams(max_new_tokens=9, logprob_start_len=0),
]
MIXING = [(name, topk) for name, topk in RUNS if name not in ("NGRAM", "SUFFIX")]
SHAPE = {"strict_memory": 2, "kv_stamps": True, "enable_deterministic_inference": True}


class Rows:
    """How many tokens each request's steps delivered, by kind of step."""

    def __init__(self, llm: LLM) -> None:
        self.plain, self.rounds = dict[int, int](), dict[int, int]()
        llm.loop.observers = (*llm.loop.observers, self)

    def planned(self, plan: StepPlan, in_flight: int) -> None:
        pass

    def resolved(self, plan: StepPlan, result: StepResult, deliveries: Sequence[Delivery]) -> None:
        for row, count, (request, outcome, _, _) in zip(plan.rows, result.counts, deliveries, strict=True):
            if outcome is RowOutcome.DELIVERED and (not plan.prefill or row.start < 0):
                kind = self.plain if plan.prefill else self.rounds
                kind[request.rid] = kind.get(request.rid, 0) + count


def served(algorithm: str, topk: int, mixed: bool, version: str, **more: object) -> tuple[LLM, Rows, list[Output]]:
    """Two requests that decode while long prompts arrive, and those."""
    llm = engine(algorithm, topk, enable_mixed_chunk=mixed, spec_version=version, **SHAPE, **more)
    seen = Rows(llm)
    ids = [llm.add(llm.tokenizer.encode(text), one) for text, one in zip(QUESTIONS, PARAMS, strict=False)]
    while not all(llm.request(rid).output for rid in ids):
        llm.step()
    ids += [llm.add(llm.tokenizer.encode(LONG[cut:]), PARAMS[2]) for cut in (0, 1)]
    while llm.step():
        pass
    return llm, seen, [llm.take(rid) for rid in ids]


def compare(algorithm: str, topk: int, version: str, **more: object) -> LLM:
    """Both runs have the same tokens and log-probabilities, and no round is counted for a mixed row. Returns the engine
    with mixed steps."""
    (_, idle, alone), (llm, seen, mixed) = (served(algorithm, topk, on, version, **more) for on in (False, True))
    assert [one.output_ids for one in mixed] == [one.output_ids for one in alone]
    for one, other in zip(mixed, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.prompt_logprobs == pytest.approx(other.prompt_logprobs, abs=1e-4)
    assert not idle.plain and min(seen.plain.values()) >= 3
    assert llm.counters["mixed.token"] >= sum(seen.plain.values()) > llm.counters["mixed.step"]
    assert [sum(one.accept_lengths) for one in mixed] == [seen.rounds.get(rid, 0) for rid in range(1, 5)]
    return llm
