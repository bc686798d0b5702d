"""Adaptive steps against every static depth under alternating low and high load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import torch

from specmatrix.benchmarks.acceptance import accepted_by_coins
from specmatrix.benchmarks.metric import Metric, of, spread_of
from specmatrix.benchmarks.pairs import seconds
from specmatrix.benchmarks.steady import PAIRS, Bench, freed
from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams

DEPTHS: Final = (1, 3, 7)
SLOTS: Final = {"1": {"candidate_steps": [1, 3, 7]}, "16": {"candidate_steps": [1, 3]}}
# Number of requests, new tokens per request, and acceptance rate of drafts.
LOW: Final = (1, 192, 0.95)
HIGH: Final = (32, 32, 0.5)
PHASES: Final = {"low": LOW, "high": HIGH, "low again": LOW, "high again": HIGH}
PHASE_GOAL, WHOLE_GOAL = 0.97, 1.03
WARM: Final = 2


def adaptive_load(bench: Bench) -> Iterator[Metric]:
    """Adaptive steps against each phase's best static depth, and against the best static depth over all phases."""
    rate = torch.zeros((), dtype=torch.float64, device=bench.device)
    chain = bench.chain(max(DEPTHS))
    adaptive = {**chain, "speculative_adaptive": True, "speculative_adaptive_config": json.dumps(SLOTS)}
    asked = {"adaptive": adaptive, **{f"static {depth}": bench.chain(depth) for depth in DEPTHS}}
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in asked}
    with ExitStack() as stack:
        stack.enter_context(accepted_by_coins(rate))
        engines = {name: stack.enter_context(freed(bench.engine(HIGH[0], kind))) for name, kind in asked.items()}
        for number in range(WARM + PAIRS):
            for name in sorted(engines, reverse=bool(number % 2)):
                taken = tuple(_phase(engines[name], rate, bench, *phase) for phase in PHASES.values())
                if number >= WARM:
                    times[name].append(taken)
    yield from judged(times, bench.name)


def _phase(llm: LLM, rate: torch.Tensor, bench: Bench, batch: int, tokens: int, accepted: float) -> float:
    """Seconds to generate `tokens` tokens for each of `batch` requests, including prefill of prompts / 8."""
    rate.fill_(accepted)
    prompts = [prompt[: bench.prompt // 8] for prompt in bench.prompts(llm.vocab_size, batch)]
    return seconds(lambda: llm.generate(prompts, SamplingParams(max_new_tokens=tokens, ignore_eos=True)))


def judged(times: dict[str, list[tuple[float, ...]]], name: str) -> Iterator[Metric]:
    """times: seconds per phase in each repetition, of "adaptive" and of each static depth."""
    ours = times["adaptive"]
    statics = {kind: taken for kind, taken in times.items() if kind != "adaptive"}
    for place, phase in enumerate(PHASES):
        best = min(statics, key=lambda kind: sorted(each[place] for each in statics[kind])[len(ours) // 2])
        theirs = [each[place] for each in statics[best]]
        ratios = [their / our[place] for their, our in zip(theirs, ours, strict=True)]
        label = f"{name}_adaptive_{phase.replace(' ', '_')}_over_best_static"
        yield of(label, ratios, PHASE_GOAL, spread_of(theirs), note=f"best: {best}")
    best = min(statics, key=lambda kind: sorted(sum(each) for each in statics[kind])[len(ours) // 2])
    theirs = [sum(each) for each in statics[best]]
    ratios = [their / sum(our) for their, our in zip(theirs, ours, strict=True)]
    yield of(f"{name}_adaptive_over_best_static", ratios, WHOLE_GOAL, spread_of(theirs), note=f"best: {best}")
