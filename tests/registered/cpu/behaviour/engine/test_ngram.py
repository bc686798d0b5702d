"""The n-gram drafter's corpus and its readers, and drafts that are point masses, on the zoo's target."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.batch import HostTokens
from specmatrix.matrix.oracles.joint_law import joint_law
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import resolve_path
from specmatrix.reports.stats import law_fit

PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Eli had 75 keys.",
)
GREEDY = SamplingParams(max_new_tokens=40)
# The ledger looks at every page of the pool in every step.
STRICT = {"strict_memory": 2, "kv_stamps": True, "max_total_tokens": 1024}


def start_engine(zoo, **more: object) -> LLM:
    return LLM(EngineConfig("llama-mini", "NGRAM", **STRICT | more), zoo)


@pytest.fixture(scope="module")
def plain():
    llm = LLM(EngineConfig("llama-mini"), resolve_path)
    return [o.output_ids for o in llm.generate(PROMPTS, GREEDY)]


def test_a_corpus_drafts_from_the_first_round(zoo, tmp_path, plain):
    text = LLM(EngineConfig("llama-mini"), zoo).generate(PROMPTS[:2], GREEDY)
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(list(o.output_ids)) for o in text), encoding="utf-8")

    def rounds(**more: object) -> tuple[int, list[tuple[int, ...]]]:
        out = start_engine(zoo, **more).generate(PROMPTS[:2], GREEDY)
        return sum(len(o.accept_lengths) for o in out), [o.output_ids for o in out]

    alone, tokens = rounds()
    helped, same = rounds(speculative_ngram_external_corpus_path=str(path), speculative_ngram_external_sam_budget=6)
    assert tokens == same == plain[:2]
    assert helped < alone * 0.6


def test_the_corpus_never_fills_more_than_its_budget(zoo, tmp_path):
    path = tmp_path / "numbers.jsonl"
    path.write_text(json.dumps([5, 6, 7, 8, 9, 10, 11, 12] * 2), encoding="utf-8")
    llm = start_engine(zoo, speculative_ngram_external_corpus_path=str(path), speculative_ngram_external_sam_budget=3)
    drafter = llm.loop.executor.drafter
    draft = drafter._draft(drafter._read(HostTokens(-1, (5, 6, 7), 3, 12)), 12)
    assert draft.tokens[1:4] == [8, 9, 10] and draft.parents[1:4] == [0, 1, 2] and draft.tokens[4] != 11


@pytest.mark.parametrize("algorithm", ["NGRAM", "SUFFIX"])
def test_readers_end_with_their_requests(zoo, algorithm):
    llm = LLM(EngineConfig("llama-mini", algorithm, max_running_requests=2), zoo)
    readers, loop = llm.loop.executor.drafter.readers, llm.loop
    rids = [llm.add(prompt, SamplingParams(max_new_tokens=9)) for prompt in PROMPTS]
    while len(readers) < 2:
        loop.step()
    llm.abort(rids[0])
    assert loop.alive()["readers"] == 1, "a reader of a request that has ended"
    while loop.busy:
        loop.step()
    assert not readers and not loop.alive()["readers"]
    if algorithm == "SUFFIX":  # the outputs stay
        assert llm.readback()["suffix_bytes"] == llm.loop.executor.drafter.cache.size > 600


@pytest.mark.parametrize("rule", ["reject", "block"])
@pytest.mark.parametrize("algorithm", ["NGRAM", "SUFFIX"])
def test_point_masses_are_accepted_so_that_outputs_follow_the_targets_law(algorithm, rule):
    """A draft d without a q is accepted with p(d), and the token behind a rejected one is another, drawn from p."""
    law = joint_law("llama-mini", RequestSpec("d", "Question:", 4, temperature=1.0))
    llm = LLM(EngineConfig("llama-mini", algorithm, speculative_acceptance=rule), resolve_path)
    answers = llm.generate(
        ["Question:"] * 600, [SamplingParams(max_new_tokens=4, temperature=1.0, seed=s) for s in range(600)]
    )
    counts = Counter(answer.output_ids for answer in answers)
    shown = [counts.pop(path, 0) for path in law]
    assert law_fit([*shown, counts.total()], [*law.values(), max(0.0, 1 - sum(law.values()))], 1e-3).p > 1e-3
    rounds = Counter(answer.accept_lengths[0] for answer in answers)
    assert min(rounds[1], rounds[2]) > 9
