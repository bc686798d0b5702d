"""Mixed steps: while prompts are read, running requests go on by one token a step, and no text changes."""

from __future__ import annotations

import pytest

from specmatrix.engine.core.observe.step_counter import RowOutcome
from specmatrix.engine.core.schedule.request import SamplingParams
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

    def __init__(self, llm) -> None:
        self.plain, self.rounds = dict[int, int](), dict[int, int]()
        llm.loop.observers = (*llm.loop.observers, self)

    def planned(self, plan, in_flight) -> None:
        pass

    def resolved(self, plan, result, deliveries) -> None:
        for row, count, (request, outcome, _, _) in zip(plan.rows, result.counts, deliveries, strict=True):
            if outcome is RowOutcome.DELIVERED and (not plan.prefill or row.start < 0):
                kind = self.plain if plan.prefill else self.rounds
                kind[request.rid] = kind.get(request.rid, 0) + count


def served(algorithm, topk, mixed, version):
    """Two requests that decode while long prompts arrive, and those."""
    llm = engine(algorithm, topk, enable_mixed_chunk=mixed, spec_version=version, **SHAPE)
    seen = Rows(llm)
    ids = [llm.add(llm.tokenizer.encode(text), one) for text, one in zip(QUESTIONS, PARAMS, strict=False)]
    while not all(llm.request(rid).output for rid in ids):
        llm.step()
    ids += [llm.add(llm.tokenizer.encode(LONG[cut:]), PARAMS[2]) for cut in (0, 1)]
    while llm.step():
        pass
    return llm, seen, [llm.take(rid) for rid in ids]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("algorithm", "topk"), MIXING)
def test_texts_and_log_probabilities_are_those_without_mixed_steps(algorithm, topk, version):
    (_, idle, alone), (llm, seen, mixed) = (served(algorithm, topk, on, version) for on in (False, True))
    assert [one.output_ids for one in mixed] == [one.output_ids for one in alone]
    for one, other in zip(mixed, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.prompt_logprobs == pytest.approx(other.prompt_logprobs, abs=1e-4)
    assert not idle.plain and min(seen.plain.values()) >= 3
    assert llm.counters["mixed.token"] >= sum(seen.plain.values()) > llm.counters["mixed.step"]
    assert [sum(one.accept_lengths) for one in mixed] == [seen.rounds.get(rid, 0) for rid in range(1, 5)]
