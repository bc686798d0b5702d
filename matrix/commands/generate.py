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

# Each engine answers once before it is timed; then the best of these counts.
TIMED: Final = 3
SHAPE_FIELDS: Final = {"speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"}
# What belongs to a drafter; the plain engine beside it runs without.
DRAFTER_FIELDS: Final = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)


def generate(question: str, params: SamplingParams, flags: Mapping[str, str], threads: int = 1) -> int:
    """Stream the answer, then print acceptance length, tokens per second and the speed-up over no drafter.

    flags: engine flags as typed. ConfigError or RequestError on a wrong one.
    """
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
    with waiting("timing the answer"):
        output, seconds = _timed(llm, prompt, params)
    parts = [f"{len(output.output_ids)} tokens", f"{len(output.output_ids) / seconds:,.0f} tokens/s"]
    if llm.resolved.algorithm != "NONE":
        with waiting("timing it without a drafter"):
            plain = LLM(_without_drafter(asked), resolve_path)
            reference, plain_seconds = _timed(plain, prompt, params)
        length = output.meta_info.get("spec_accept_length", 1.0)
        same = "same tokens" if reference.output_ids == output.output_ids else "OTHER TOKENS"
        ratio = plain_seconds / seconds * len(output.output_ids) / max(len(reference.output_ids), 1)
        parts = [f"{llm.resolved.algorithm} accepts {length:.2f} tokens per round", *parts]
        parts.append(f"{ratio:.2f} times the speed of no drafter ({same})")
    print("; ".join(parts), file=sys.stderr)
    return 0


def configuration(flags: Mapping[str, str]) -> EngineConfig:
    """The engine of these flags: by default the zoo's target with the draft that the zoo has for the algorithm."""
    asked: dict[str, Any] = {flag.removeprefix("--").replace("-", "_"): value for flag, value in flags.items()}
    target = asked.setdefault("model_path", next(iter(MODELS.values())))
    algorithm = asked.setdefault("speculative_algorithm", "EAGLE3").lower()
    drafts = {(MODELS[model], name): draft for (model, name), draft in DRAFTS.items()}
    if (target, algorithm) in drafts:
        asked.setdefault("speculative_draft_model_path", drafts[target, algorithm])
    if algorithm in {name for _, name in drafts} and not asked.keys() & SHAPE_FIELDS:
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
    unasked = {field.name: field.default for field in fields(EngineConfig)}
    plain: dict[str, Any] = {name: unasked[name] for name in DRAFTER_FIELDS}
    return replace(config, **plain)


def _timed(llm: LLM, prompt: str, params: SamplingParams) -> tuple[Output, float]:
    """An answer, and the seconds of the fastest of a few."""
    output = llm.generate([prompt], params)[0]
    best = float("inf")
    for _ in range(TIMED):
        start = perf_counter()
        llm.generate([prompt], params)
        best = min(best, perf_counter() - start)
    return output, best
