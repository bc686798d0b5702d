"""The engine against transformers and vLLM: tokens per second, plain and speculative, batch 1 and 8, in one run."""

from __future__ import annotations

from typing import Final

from specmatrix.benchmarks import against_vllm, decoding
from specmatrix.benchmarks.decoding import GOALS, generate
from specmatrix.benchmarks.metric import Metric, red
from specmatrix.benchmarks.pairs import interleave
from specmatrix.benchmarks.speculation import DRAFTS, STEPS, speculative
from specmatrix.benchmarks.subjects import NEW_TOKENS, difference, fixed, prompts, transformers_model

PAIRS: Final = 6


def measure() -> list[Metric]:
    """The plain figures with their goals, then the speculative ones, and both against vLLM."""
    return [*decoding.measure(), *speculative_tokens(), *against_vllm.measure()]


def speculative_tokens() -> list[Metric]:
    """One metric per batch size with the same two checkpoints and the same draft depth, without a goal.

    Assisted generation takes one sequence, so the peer serves a batch one prompt after another.
    """
    ours, target = speculative("standalone"), transformers_model("llama-mini")
    draft = transformers_model(str(DRAFTS["standalone"]))
    draft.generation_config.num_assistant_tokens = STEPS
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    asked = prompts(ours, max(GOALS))
    calls = [generate(target, [prompt], assistant_model=draft) for prompt in asked]
    found = []
    for batch in GOALS:
        name = f"speculative_decoding_k{STEPS}_batch_{batch}_vs_transformers"
        wrong = difference(ours.generate(asked[:batch], fixed(top_logprobs=2)), [call()[0] for call in calls[:batch]])
        if wrong:
            found.append(red(name, None, f"tokens differ from transformers': {wrong}"))
            continue
        pairs = interleave(
            lambda few=asked[:batch]: ours.generate(few, fixed()),
            lambda few=calls[:batch]: [call() for call in few],
            PAIRS,
        )
        rates = (batch * NEW_TOKENS / min(taken) for taken in (pairs.ours, pairs.theirs))
        found.append(pairs.metric(name, None, note="at best {:,.0f} tokens/s against {:,.0f}".format(*rates)))
    return found
