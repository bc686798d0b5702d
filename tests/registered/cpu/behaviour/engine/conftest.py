"""Fixtures for tests of drafters."""

import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support import failing_steps

TEXTS = ("Question: A garden is 19 feet long and 5 feet wide. What is its area?\nAnswer:", "Question: Eli had 75")


@pytest.fixture(scope="session")
def truth(zoo):
    """Two prompts of llama-mini, each with its true continuation, which is longer than any test needs."""
    llm = LLM(EngineConfig(str(zoo("llama-mini")), context_length=256, max_total_tokens=1024))
    prompts = [llm.tokenizer.encode(text) for text in TEXTS]
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=64, ignore_eos=True))
    return [(prompt, [*prompt, *out.output_ids]) for prompt, out in zip(prompts, outs, strict=True)]


@pytest.fixture(scope="session")
def whole() -> list[str]:
    """The texts of undisturbed requests."""
    return [out.text for out in failing_steps.start_engine().generate(failing_steps.PROMPTS, failing_steps.PARAMS)]
