"""Engines on the zoo's small Llama, and their answers without a drafter."""

from __future__ import annotations

from functools import cache
from typing import Any

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.ledger import replay
from specmatrix.engine.core.schedule.request import SamplingParams

ZOO = HOME / "matrix" / "zoo" / "checkpoints"
PROMPTS = (
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: Gus saves $75 a week for 3 weeks. He had $94 before. How much does Gus have now?\nAnswer:",
)
GREEDY = SamplingParams(max_new_tokens=40)
NONE = ("NONE", 0, 0, 0)
CHAIN, TREE = (5, 1, 6), (3, 3, 8)
DRAFTERS = [(name, *shape) for name in ("STANDALONE", "EAGLE3") for shape in (CHAIN, TREE)]


def start_engine(shape=NONE, **more: object) -> LLM:
    algorithm, steps, topk, nodes = shape
    sizes: dict[str, Any] = {}
    if algorithm != "NONE":
        sizes = {"speculative_draft_model_path": f"llama-mini-{algorithm.lower()}", "speculative_num_steps": steps}
        sizes |= {"speculative_eagle_topk": topk, "speculative_num_draft_tokens": nodes}
    asked = {"context_length": 256, "max_total_tokens": 700, "strict_memory": 2, "kv_stamps": True} | sizes | more
    return LLM(EngineConfig("llama-mini", speculative_algorithm=algorithm, **asked), lambda name: ZOO / name)


def drain(llm: LLM) -> None:
    """Step until nothing runs."""
    while llm.step():
        pass


def at_rest(llm: LLM, stepped: bool = True) -> None:
    """Nothing is held, every page is free or cached, the journal replays, every stamp was right, and some were seen if
    a step has run."""
    ledger = llm.loop.scheduler.ledger
    assert not ledger.accounts and not ledger.counts.held
    replay(llm.journal)
    assert (llm.counters["stamp.checked"] > 0 or not stepped) and llm.counters["stamp.wrong"] == 0


@cache
def plain(params: SamplingParams | tuple[SamplingParams, ...] = GREEDY, prompts=PROMPTS) -> tuple[Any, ...]:
    """The engine's answers without a drafter, a prefix cache or other requests."""
    llm = start_engine(disable_radix_cache=True, spec_version="v1", page_size=1)
    each = params if isinstance(params, tuple) else (params,) * len(prompts)
    return tuple(
        (out.output_ids, out.text, out.finish)
        for prompt, p in zip(prompts, each, strict=True)
        for out in llm.generate([prompt], p)
    )


def said(outputs) -> tuple[Any, ...]:
    return tuple((out.output_ids, out.text, out.finish) for out in outputs)
