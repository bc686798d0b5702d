"""Exact counters of whole runs: rounds, endings, drops and slid pages, at both lags."""

from __future__ import annotations

from typing import Final

import pytest

from specmatrix.engine.core.memory.groups import SlidingWindow
from specmatrix.engine.core.observe.step_counter import StepCounter
from specmatrix.engine.core.schedule.request import OutputText, Phase, SamplingParams
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from tools.simulation.toy import ToyExecutor, request, toy_loop

FAMILIES: Final = ("decode", "finish", "overlap", "prefill", "retract", "sample", "spec", "stamp", "tree", "window")
EOS, LIAR, BROKEN = 7, 5, 6
PARAMS = (
    SamplingParams(max_new_tokens=9),
    SamplingParams(max_new_tokens=30, temperature=0.8),
    SamplingParams(max_new_tokens=40, stop=("kb",), return_logprob=True),
    SamplingParams(max_new_tokens=40, ignore_eos=True),
    SamplingParams(max_new_tokens=20, ignore_eos=True),
    SamplingParams(max_new_tokens=20, ignore_eos=True, stop=("zz",)),
    SamplingParams(max_new_tokens=1),
    SamplingParams(max_new_tokens=25, temperature=1.0, ignore_eos=True),
)
# By counter: full attention at lag 0, 1, 2, then with a sliding window.
EXPECTED: Final = {
    "decode.batched": (4, 7, 9, 4, 7, 9),
    "decode.round": (16, 17, 22, 16, 17, 22),
    "finish.context": (1, 1, 1, 1, 1, 1),
    "finish.length": (3, 3, 3, 3, 3, 3),
    "finish.overshoot": (5, 5, 5, 5, 5, 5),
    "finish.stop_string": (1, 1, 1, 1, 1, 1),
    "finish.stop_token": (1, 1, 1, 1, 1, 1),
    "overlap.dropped": (0, 4, 9, 0, 4, 9),
    "overlap.in_flight": (0, 25, 28, 0, 25, 28),
    "prefill.chunked": (4, 6, 5, 4, 5, 5),
    "prefill.step": (8, 10, 8, 8, 10, 8),
    "retract.done": (0, 1, 0, 0, 1, 0),
    "sample.greedy": (63, 65, 63, 63, 65, 63),
    "sample.random": (10, 10, 10, 10, 10, 10),
    "spec.accepted": (47, 48, 47, 47, 48, 47),
    "spec.drafted": (84, 84, 84, 84, 84, 84),
    "spec.full_accept": (8, 8, 8, 8, 8, 8),
    "spec.rejected": (4, 4, 4, 4, 4, 4),
    "stamp.checked": (84, 94, 102, 84, 94, 102),
    "stamp.wrong": (1, 3, 7, 1, 3, 7),
    "tree.branched": (7, 7, 7, 7, 7, 7),
    "tree.compacted": (11, 12, 11, 11, 12, 11),
    "window.slid": (0, 0, 0, 40, 47, 48),
}


class Eventful(ToyExecutor):
    """Reports some rows as branched and compacted, and one draft as invalid."""

    def launch(self, plan: StepPlan) -> tuple[StepPlan, StepResult]:
        return plan, super().launch(plan)

    def collect(self, handle: tuple[StepPlan, StepResult]) -> StepResult:
        plan, result = handle
        errors = ["bad draft" if row.rid == LIAR and not plan.prefill and row.bound > 12 else None for row in plan.rows]
        return result._replace(
            branched=[bool(row.rid % 2) for row in plan.rows],
            moved=[bool(count % 2) for count in result.counts],
            logprobs=[[-1.0] * row.width for row in plan.rows],
            stamps_checked=sum(result.counts),
            stamps_wrong=len(plan.rows) == 3,
            draft_errors=errors,
        )


class Unspeakable:
    """A text stream that fails at a request's fourth token."""

    def __init__(self) -> None:
        self.tokens = 0

    def push(self, tokens: list[int]) -> str:
        self.tokens += len(tokens)
        if self.tokens > 3:
            raise RuntimeError("no words")
        return ""


def counters(lag: int, windowed: bool) -> dict[str, int]:
    """Eight requests that end in every way, one of which is aborted while it runs."""
    windows = [SlidingWindow(40, 2, 4)] if windowed else []
    loop = toy_loop(
        lag=lag, page_size=2, pages=30, width=4, rows=5, chunk=4, cache=not windowed, eos=(EOS,), windows=windows
    )
    loop.executor = Eventful(loop.scheduler.ledger.groups)
    loop.observers = (StepCounter(loop.counters, context_length=12),)
    requests = [request(rid, [rid % 11, 3, rid * rid % 11, 1, 2][: 2 + rid % 4], p) for rid, p in enumerate(PARAMS, 1)]
    for each in requests:
        loop.add(each)
    requests[BROKEN - 1].transcript = OutputText(Unspeakable())
    for step in range(500):
        if not loop.busy:
            break
        loop.step()
        if step == 8:
            loop.abort(8)
    assert all(each.phase is Phase.DONE for each in requests)
    assert [each.rid for each in requests if each.finish.reason == "error"] == [LIAR, BROKEN]
    return {name: n for name, n in loop.counters.counts.items() if n and name.split(".")[0] in FAMILIES}


@pytest.mark.parametrize("windowed", [False, True], ids=["full", "windowed"])
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_run_counts_its_events(lag, windowed):
    column = lag + 3 * windowed
    assert counters(lag, windowed) == {name: by_run[column] for name, by_run in EXPECTED.items() if by_run[column]}
