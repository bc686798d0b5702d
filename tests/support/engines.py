"""Every built-in algorithm, as a chain and as a tree, over zoo models, and requests with all kinds of sampling."""

from __future__ import annotations

import torch

from specmatrix import HOME
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.draft.algorithms import ALGORITHMS, Topology
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import StepPlan

CHECKPOINTS = HOME / "matrix" / "zoo" / "checkpoints"
TARGETS = {"NEXTN": "deepseek-mini"}
DRAFTS = {
    "STANDALONE": "llama-mini-standalone",
    "EAGLE3": "llama-mini-eagle3",
    "EAGLE": "llama-mini-eagle",
    "DFLASH": "llama-mini-dflash",
    "DSPARK": "llama-mini-dspark",
    "EAGLE3 in parallel": "llama-mini-peagle",
    "STANDALONE in parallel": "llama-mini-pard",
}
RUNS = [(t.name, k) for t in ALGORITHMS for k in (1, 3) if k == 1 or t.topology is Topology.TREE]
PARAMS = [
    SamplingParams(max_new_tokens=10),
    SamplingParams(max_new_tokens=12, temperature=0.8, top_k=20, top_p=0.9, seed=3, return_logprob=True),
    SamplingParams(max_new_tokens=7, temperature=0.6, seed=4, top_logprobs_num=2),
]
PROMPT = "Question: Eli had 75 keys. How many keys are left?"


def engine(algorithm: str, topk: int, **more: object) -> LLM:
    """Few small pages, and chunks, so that a launch exercises every part of the executor."""
    shape = {"speculative_num_steps": 3, "speculative_eagle_topk": topk}
    shape = {} if algorithm in ("NONE", "DFLASH", "DSPARK") else shape
    if algorithm == "NGRAM":
        shape = {"speculative_num_draft_tokens": 6, "speculative_ngram_max_bfs_breadth": topk}
    draft = DRAFTS.get(algorithm)
    sizes = {"max_total_tokens": 512, "max_running_requests": 4, "page_size": 4, "chunked_prefill_size": 8}
    target, path = CHECKPOINTS / TARGETS.get(algorithm, "llama-mini"), draft and str(CHECKPOINTS / draft)
    return LLM(EngineConfig(str(target), algorithm.partition(" ")[0], path, **{**sizes, **shape, **more}))


def answer(llm: LLM) -> list[tuple[int, ...]]:
    """Tokens of three requests of unequal length that run together."""
    prompt = llm.tokenizer.encode(PROMPT)
    outputs = llm.generate([prompt[: len(prompt) - cut] for cut in range(3)], PARAMS)
    assert not [output.finish.message for output in outputs if output.finish.reason == "error"]
    assert llm.counters["decode.round"] > 1 and llm.counters["prefill.chunked"]
    return [output.output_ids for output in outputs]


def waits_for_nothing(llm: LLM) -> None:
    """From now on a launch that makes the host wait for the GPU raises."""
    launch = llm.loop.executor.launch

    def strict(plan: StepPlan) -> object:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    llm.loop.executor.launch = strict
