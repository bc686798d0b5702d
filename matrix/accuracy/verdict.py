"""Pairing of two runs over the same prompts, and what it proves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specmatrix.errors import EngineError
from specmatrix.matrix.accuracy.task import EXTRACTORS, Sample
from specmatrix.matrix.gates.gate import State
from specmatrix.reports.stats.paired import detectable_drop, mcnemar, paired_difference
from specmatrix.reports.stats.proportions import wilson

# One-sided, per test; exact McNemar never exceeds it, and paired greedy runs differ on few questions or none.
ALPHA: Final = 0.01
# How many of the runs with a drop must be red for it to count as one that a run shows.
POWER: Final = 0.8
# With fewer right answers than this, losing every one of them would not reach ALPHA: 0.5 ** n > ALPHA.
LEAST_RIGHT: Final = math.ceil(math.log(ALPHA, 0.5))


class PairingError(EngineError):
    """Two runs that did not see the same prompts."""


@dataclass(frozen=True, slots=True)
class Test:
    """One paired test: questions that are good in the baseline and in the cell, of `n`; lost and won are discordant."""

    __test__ = False  # Not a test class of pytest.

    name: str
    n: int
    baseline: int
    cell: int
    lost: int
    won: int
    p: float
    state: State
    message: str

    def as_dict(self) -> dict[str, Any]:
        """JSON-able. Intervals are 95 %; they and the smallest drop that shows are fractions of the questions."""
        return {
            "name": self.name,
            "n": self.n,
            "baseline": self.baseline,
            "baseline_interval": list(wilson(self.baseline, self.n)),
            "cell": self.cell,
            "cell_interval": list(wilson(self.cell, self.n)),
            "lost": self.lost,
            "won": self.won,
            "difference_interval": list(paired_difference(self.lost, self.won, self.n)),
            "p": self.p,
            "alpha": ALPHA,
            "detectable_drop": detectable_drop(self.baseline, self.won, self.n, ALPHA, POWER),
            "power": POWER,
            "state": str(self.state),
            "message": self.message,
        }


def pair(baseline: Sequence[Sample], cell: Sequence[Sample]) -> tuple[Test, ...]:
    """Accuracy and validity under each extractor, and answers that end before the length limit.

    PairingError where the runs differ in a question or in the prompt made of it.
    """
    if [s.line for s in baseline] != [s.line for s in cell]:
        raise PairingError(f"the runs answer {len(baseline)} and {len(cell)} questions, not the same ones")
    for one, other in zip(baseline, cell, strict=True):
        if one.prompt_hash != other.prompt_hash:
            raise PairingError(f"the prompts of line {one.line} differ between the runs; no answer can be paired")
    goods: dict[str, Callable[[Sample], bool]] = {}
    for extractor in EXTRACTORS:
        goods[f"right by {extractor}"] = _right(extractor)
    for extractor in EXTRACTORS:
        goods[f"an answer by {extractor}"] = _valid(extractor)
    goods["ended before the limit"] = lambda sample: not sample.by_length
    return tuple(_test(name, good, baseline, cell) for name, good in goods.items())


def unproven(algorithm: str, evidence: Mapping[str, int]) -> str:
    """Why the run of a cell is no evidence about its drafter, or "" if its drafts were proposed and accepted."""
    silent = [probe for probe in ("spec.drafted", "spec.accepted") if not evidence.get(probe)]
    if algorithm == "none" or not silent:
        return ""
    return f"the cell asks for {algorithm}, yet {silent[0]} stayed 0: its answers say nothing about speculation"


def overall(tests: Sequence[Test], doubt: str) -> State:
    """FAIL if any test fails, else NOT MEASURED if any lacks evidence or there is a doubt."""
    states = {test.state for test in tests} | ({State.NOT_MEASURED} if doubt else set())
    return next((state for state in (State.FAIL, State.NOT_MEASURED) if state in states), State.PASS)


def counts(samples: Sequence[Sample]) -> Mapping[str, int | float]:
    """What a run produced, beyond right and wrong. tokens_per_round counts verify rounds of all answers."""
    rounds = sum(s.rounds for s in samples)
    tokens = sum(s.tokens for s in samples)
    numbers: dict[str, int | float] = {"questions": len(samples), "tokens": tokens, "rounds": rounds}
    for extractor in EXTRACTORS:
        numbers[f"right_{extractor}"] = sum(s.right[extractor] for s in samples)
        numbers[f"invalid_{extractor}"] = sum(not s.valid[extractor] for s in samples)
    numbers["ended_by_length"] = sum(s.by_length for s in samples)
    numbers["retractions"] = retractions = sum(s.retractions for s in samples)
    # Every prefill, the first and each one after a retraction, gives a token without a round.
    numbers["tokens_per_round"] = (tokens - len(samples) - retractions) / rounds if rounds else 0.0
    return numbers


def _right(extractor: str) -> Callable[[Sample], bool]:
    return lambda sample: sample.right[extractor]


def _valid(extractor: str) -> Callable[[Sample], bool]:
    return lambda sample: sample.valid[extractor]


def _test(name: str, good: Callable[[Sample], bool], baseline: Sequence[Sample], cell: Sequence[Sample]) -> Test:
    before, after = [good(s) for s in baseline], [good(s) for s in cell]
    lost = sum(b and not a for b, a in zip(before, after, strict=True))
    won = sum(a and not b for b, a in zip(before, after, strict=True))
    p = mcnemar(lost, won)
    state, message = State.PASS, ""
    if p < ALPHA:
        state = State.FAIL
        message = f"the cell loses {lost} questions of {len(before)} and wins {won} (p = {p:.2g}, allowed {ALPHA})"
    elif name.startswith("right") and sum(before) < LEAST_RIGHT:
        state = State.NOT_MEASURED
        message = (
            f"the baseline answers {sum(before)} of {len(before)} questions rightly; with fewer than {LEAST_RIGHT} "
            "even the loss of all would not show"
        )
    return Test(name, len(before), sum(before), sum(after), lost, won, p, state, message)
