"""Engines whose drafts are drawn from their own distribution, and requests that sample."""

from __future__ import annotations

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.engines import CHECKPOINTS

PROMPTS = ["Question: Tom has 3 apples and buys 4 more.", "Question: Ann", "Question: A train of 12 cars"]
DRAFTS = {
    "EAGLE3": ("llama-mini", "llama-mini-eagle3", 3),
    "STANDALONE": ("llama-mini", "llama-mini-standalone", 3),
    "DFLASH": ("llama-mini", "llama-mini-dflash", "auto"),
    "DFLASH by pairs": ("llama-mini", "llama-mini-dflash2", "auto"),
    "DSPARK": ("llama-mini", "llama-mini-dspark", "auto"),
    "DSPARK gated": ("llama-mini", "llama-mini-dspark-gated", "auto"),
    "DSPARK rnn": ("llama-mini", "llama-mini-dspark-rnn", "auto"),
    "NEXTN": ("deepseek-mini", None, 2),
    "EAGLE3 in parallel": ("llama-mini", "llama-mini-peagle", 3),
    "STANDALONE in parallel": ("llama-mini", "llama-mini-pard", 3),
}
SAMPLED = [SamplingParams(24, 0.9, top_k=20 * i or -1, seed=i, ignore_eos=True) for i in range(3)]


def start(algorithm: str, rule: str, **more: object) -> LLM:
    model, draft, steps = DRAFTS[algorithm]
    path = None if draft is None else str(CHECKPOINTS / draft)
    shape = {"speculative_num_steps": steps, "speculative_acceptance": rule, "max_total_tokens": 2048}
    name = algorithm.partition(" ")[0]
    return LLM(EngineConfig(str(CHECKPOINTS / model), name, path, strict_memory=1, **(shape | more)))
