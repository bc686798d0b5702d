"""Overhead of a decode step besides the model forwards: planning, ledger, masks, sampling, relay, detokenisation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from specmatrix.benchmarks.metric import Metric, of, spread_of, unmeasured
from specmatrix.benchmarks.speculation import STEPS, speculative
from specmatrix.benchmarks.subjects import engine, fixed, prompts
from specmatrix.engine.api import LLM

BATCH: Final = 8
GOAL: Final = 0.25
WINDOWS: Final = 12
STEPS_PER_WINDOW: Final = 8


def measure() -> list[Metric]:
    """The overhead's share without a drafter, and with an EAGLE-3 chain."""
    return [
        share(engine(), f"work_outside_forwards_batch_{BATCH}_none"),
        share(speculative("eagle3"), f"work_outside_forwards_batch_{BATCH}_eagle3_k{STEPS}"),
    ]


P = ParamSpec("P")
T = TypeVar("T")


class CallTimer:
    """Seconds spent inside wrapped calls; nested calls count once.

    CPU time of this single-threaded process, which other processes do not affect.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def wrap(self, call: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **rest: P.kwargs) -> T:
            if self._inside:
                return call(*args, **rest)
            self._inside = True
            start = time.process_time()
            try:
                return call(*args, **rest)
            finally:
                self.seconds += time.process_time() - start
                self._inside = False

        return timed


def share(llm: LLM, name: str) -> Metric:
    """Share of decode step time outside the models' `forward` and `logits`, which faster forwards make larger."""
    clock = CallTimer()
    executor: Any = llm.loop.executor
    models = [executor.target, *([executor.drafter.model] if executor.drafter.traits.drafts else [])]
    for model in models:
        model.forward, model.logits = clock.wrap(model.forward), clock.wrap(model.logits)
    # Every accepted token shortens the run, so request more tokens than the windows can use.
    needed = (WINDOWS + 2) * STEPS_PER_WINDOW * executor.drafter.nodes
    for prompt in prompts(llm, BATCH):
        llm.add(prompt, fixed(needed))
    for _ in range(STEPS_PER_WINDOW):
        llm.step()
    shares, totals, others = [], [], []
    for _ in range(WINDOWS):
        inside, start = clock.seconds, time.process_time()
        for _ in range(STEPS_PER_WINDOW):
            llm.step()
        total = time.process_time() - start
        others.append(total - (clock.seconds - inside))
        shares.append(others[-1] / total)
        totals.append(total)
    if len(llm.loop.scheduler.active) != BATCH:
        return unmeasured(name, GOAL, f"{len(llm.loop.scheduler.active)} of {BATCH} requests were left at the end")
    whole, rest = (1000 * min(taken) / STEPS_PER_WINDOW for taken in (totals, others))
    note = f"at best a step takes {whole:.2f} ms, {rest:.2f} ms of it outside forwards"
    return of(name, shares, GOAL, spread_of(totals), "lower", note)
