"""Speculative rounds against transformers' assisted generation, and the speed-up by speculation on this machine."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from transformers import PreTrainedModel

from specmatrix.benchmarks.decoding import generate
from specmatrix.benchmarks.metric import Metric, red
from specmatrix.benchmarks.pairs import interleave
from specmatrix.benchmarks.subjects import difference, engine, fixed, prompts, questions, transformers_model
from specmatrix.engine.api import LLM
from specmatrix.engine.core.draft.ngram_index import NgramIndex
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.spec.ngram import NgramDrafter

STEPS: Final = 3
GOAL: Final = 3.0
PAIRS: Final = 12
DRAFTS: Final = {"standalone": "llama-mini-standalone", "eagle3": "llama-mini-eagle3", "ngram": None}
ASKED: Final = 6


def measure() -> list[Metric]:
    """The time of a round against the peer's, then each drafter against plain decoding."""
    return [assisted(), *(pays(algorithm) for algorithm in DRAFTS)]


def speculative(algorithm: str) -> LLM:
    """An engine that drafts a chain of STEPS tokens."""
    return engine(algorithm.upper(), DRAFTS[algorithm], speculative_num_steps=STEPS, speculative_eagle_topk=1)


def assisted() -> Metric:
    """Time of one round (draft STEPS tokens, verify) in transformers over ours, with the same two checkpoints.

    Rounds are counted on both sides; each side's time includes its prefill.
    """
    name = f"speculative_round_k{STEPS}_vs_transformers_assisted"
    ours, target, draft = (
        speculative("standalone"),
        transformers_model("llama-mini"),
        transformers_model(DRAFTS["standalone"]),
    )
    draft.generation_config.num_assistant_tokens = STEPS
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    # With any other value a draft may end early.
    draft.generation_config.assistant_confidence_threshold = 0.0
    asked = prompts(ours, 1)
    their = generate(target, asked, assistant_model=draft)
    rounds = _count_forwards(target)
    expected = their()
    their_rounds = rounds[0]
    output = ours.generate(asked, fixed(top_logprobs=2))
    wrong = difference(output, expected)
    if wrong:
        return red(name, GOAL, f"tokens differ from transformers': {wrong}")
    our_rounds = len(output[0].accept_lengths)
    pairs = interleave(lambda: ours.generate(asked, fixed()), their, PAIRS)
    per_round = 1000 * min(pairs.ours) / our_rounds
    note = f"at best {per_round:.2f} ms per round; {our_rounds} rounds against {their_rounds}"
    return pairs.metric(name, GOAL, scale=our_rounds / their_rounds, note=note)


def pays(algorithm: str) -> Metric:
    """Wall time without a drafter over that with one, batch 1, with answers up to EOS."""
    name = f"speculation_{algorithm}_k{STEPS}_vs_none"
    on, off = speculative(algorithm), engine()
    asked = list(islice(questions(), ASKED))
    params = SamplingParams(max_new_tokens=160, top_logprobs_num=2)
    ours, plain = on.generate(asked, params), off.generate(asked, params)
    wrong = difference(ours, [output.output_ids for output in plain])
    if wrong:
        return red(name, None, f"tokens differ from drafter none: {wrong}")
    pairs = interleave(lambda: one_by_one(on, asked), lambda: one_by_one(off, asked), PAIRS)
    rounds = sum(len(output.accept_lengths) for output in ours)
    steps = sum(len(output.accept_lengths) for output in plain)
    cost = (min(pairs.ours) / rounds) / (min(pairs.theirs) / steps)
    gain = steps / rounds
    verdict = "pays" if gain > cost else "does not pay"
    note = f"{verdict} on this CPU: a round costs {cost:.2f} plain steps and yields {gain:.2f} tokens"
    return pairs.metric(name, None, note=note)


def one_by_one(llm: LLM, asked: list[str]) -> None:
    drafter: Any = llm.loop.executor.drafter
    if isinstance(drafter, NgramDrafter):
        # A drafter that has seen these questions before would draft the answers.
        drafter.index = NgramIndex(drafter.options)
    for prompt in asked:
        llm.generate([prompt], SamplingParams(max_new_tokens=160))


def _count_forwards(model: PreTrainedModel) -> list[int]:
    """A counter of the calls of a transformers model."""
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1

    model.register_forward_pre_hook(count)
    return calls
