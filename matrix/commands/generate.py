"""`specmatrix generate`: one answer as it grows, and what speculation brought."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from time import perf_counter
from typing import Any, Final

import torch

from engine.api import LLM, Output
from engine.core.config import EngineConfig
from engine.core.errors import ConfigError
from engine.core.request import SamplingParams
from matrix.cell import DRAFTS, MODELS
from matrix.progress import waiting
from matrix.zoo.gsm_mini import prompt_of
from matrix.zoo.registry import resolve_path
from matrix.zoo_facts import model_facts

# So many new engines answer; the fastest counts.
TIMED: Final = 3
# What an engine says before it is timed; a drafter that remembers texts learns nothing of the answer from it.
WARM_UP: Final = "Sam walks to the sea."
SHAPE_FIELDS: Final = {"speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"}
# What belongs to a drafter beside the flags that say so; the plain engine beside it runs without.
SPECULATIVE: Final = "speculative_"
DRAFTER_FIELDS: Final = {"enable_multi_layer_eagle"}


def generate(question: str, params: SamplingParams, flags: Mapping[str, str], threads: int = 1) -> int:
    """Stream the answer, then print acceptance length, tokens per second and the speed-up over no drafter.

    flags: engine flags as typed. ConfigError or RequestError on a wrong one.
    """
    if not question.strip():
        raise ConfigError("the question is empty; ask something in words")
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)
    asked = configuration(flags)
    prompt = prompt_of(question)
    with waiting("loading the models"):
        llm = LLM(asked, resolve_path)
    for text in llm.stream(prompt, params):
        print(text, end="", flush=True)
    print()
    for rewrite in llm.resolved.rewrites:
        print(f"rewritten {rewrite.field}: {rewrite.asked} -> {rewrite.got}: {rewrite.reason}", file=sys.stderr)
    with waiting("timing the answer"):
        output, seconds = _timed(asked, prompt, params)
    parts = [f"{len(output.output_ids)} tokens", f"{len(output.output_ids) / seconds:,.0f} tokens/s"]
    if llm.resolved.algorithm != "NONE":
        with waiting("timing it without a drafter"):
            reference, plain_seconds = _timed(_without_drafter(asked), prompt, params)
        length = output.meta_info.get("spec_accept_length", 1.0)
        same = "same tokens" if reference.output_ids == output.output_ids else "OTHER TOKENS"
        ratio = plain_seconds / seconds * len(output.output_ids) / max(len(reference.output_ids), 1)
        parts = [f"{llm.resolved.algorithm} accepts {length:.2f} tokens per round", *parts]
        parts.append(f"{ratio:.2f} times the speed of no drafter ({same})")
    print("; ".join(parts), file=sys.stderr)
    return 0


def configuration(flags: Mapping[str, str]) -> EngineConfig:
    """The engine of these flags: by default the zoo's first target, and a draft that the zoo has for the target."""
    asked: dict[str, Any] = {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items()}
    target = asked.setdefault("model_path", next(iter(MODELS.values())))
    drafts = {(MODELS[model], name): draft for (model, name), draft in DRAFTS.items()}
    bundled = target in MODELS.values() and model_facts(target).bundled is not None
    algorithm = asked.setdefault("speculative_algorithm", "NEXTN" if bundled else "EAGLE3").lower()
    if (target, algorithm) in drafts:
        asked.setdefault("speculative_draft_model_path", drafts[target, algorithm])
    adapts = asked.get("speculative_adaptive", "false").lower() != "false"
    if algorithm in {name for _, name in drafts} and not asked.keys() & SHAPE_FIELDS and not adapts:
        # The tree that is automatic for a Llama verifies more nodes than a CPU does for free; a chain pays there.
        asked["speculative_num_steps"] = "5"
    return EngineConfig.from_flags(asked)


def flags_of(words: list[str]) -> dict[str, str]:
    """`--page-size 4`, `--page-size=4`, `--disable-radix-cache` as a mapping. ConfigError on a word without a flag."""
    flags: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--") or name == "--":
            raise ConfigError(f"{name!r} is no engine flag; flags begin with --, for example --page-size 4")
        if not equals:
            value = "true" if not rest or rest[0].startswith("--") else rest.pop(0)
        if name in flags:
            raise ConfigError(f"{name} is given twice; give it once")
        flags[name] = value
    return flags


def _without_drafter(config: EngineConfig) -> EngineConfig:
    plain: dict[str, Any] = {
        field.name: field.default
        for field in fields(EngineConfig)
        if field.name.startswith(SPECULATIVE) or field.name in DRAFTER_FIELDS
    }
    return replace(config, **plain)


def _timed(asked: EngineConfig, prompt: str, params: SamplingParams) -> tuple[Output, float]:
    """The answer to a first ask, and its fewest seconds: an engine that answered before may know the text."""
    best = float("inf")
    for _ in range(TIMED):
        llm = LLM(asked, resolve_path)
        llm.generate([prompt_of(WARM_UP)], params)
        start = perf_counter()
        output = llm.generate([prompt], params)[0]
        best = min(best, perf_counter() - start)
    return output, best
