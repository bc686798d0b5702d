"""Paired tests of two runs over the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Final

from specmatrix.errors import EngineError
from specmatrix.matrix.accuracy.task import EXTRACTORS, Sample
from specmatrix.matrix.gates.gate import State
from specmatrix.reports.stats import detectable_drop, loss_evidence, paired_difference, sequential_mcnemar, wilson

# The false-positive rate per comparison of equal engines, and each test's share of it.
FALSE_ALARMS: Final = 0.01
TESTS: Final = 2 * len(EXTRACTORS) + 1
ALPHA: Final = FALSE_ALARMS / TESTS
# Power: the share of runs with a true drop that must be red for the drop to count as detectable.
POWER: Final = 0.8
# With fewer right answers than this, even losing all of them would not reach ALPHA.
MIN_RIGHT: Final = next(lost for lost in count(1) if loss_evidence(lost, 0) > 1 / ALPHA)


class PairingError(EngineError):
    """Two runs that did not see the same prompts."""


@dataclass(frozen=True, slots=True)
class Test:
    """One paired test over n questions. baseline, cell: questions that are good there; lost, won: discordant ones."""

    __test__ = False  # not a pytest class

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
        """As JSON-serialisable data. The 95 % interval and the detectable drop are fractions of the questions."""
        return asdict(self) | {
            "baseline_interval": list(wilson(self.baseline, self.n)),
            "cell_interval": list(wilson(self.cell, self.n)),
            "difference_interval": list(paired_difference(self.lost, self.won, self.n)),
            "alpha": ALPHA,
            "detectable_drop": detectable_drop(self.baseline, self.won, self.n, ALPHA, POWER, _at_the_end),
            "power": POWER,
            "state": str(self.state),
        }


def pair(baseline: Sequence[Sample], cell: Sequence[Sample]) -> tuple[Test, ...]:
    """Tests of accuracy and validity under each extractor, and of answers that end before the length limit.

    PairingError if the runs differ in a question or in its prompt.
    """
    if [s.line for s in baseline] != [s.line for s in cell]:
        raise PairingError(f"the runs must answer the same questions, got {len(baseline)} and {len(cell)}")
    for one, other in zip(baseline, cell, strict=True):
        if one.prompt_hash != other.prompt_hash:
            raise PairingError(f"the prompts of line {one.line} differ between the runs, so answers cannot be paired")
    both = baseline, cell
    right = (_test(f"right by {name}", *([s.right[name] for s in side] for side in both)) for name in EXTRACTORS)
    valid = (_test(f"an answer by {name}", *([s.valid[name] for s in side] for side in both)) for name in EXTRACTORS)
    return *right, *valid, _test("ended before the limit", *([not s.by_length for s in side] for side in both))


def unproven(algorithm: str, evidence: Mapping[str, int]) -> str:
    """Why a cell's run proves nothing about its drafter, "" if drafts were proposed and accepted."""
    silent = [counter for counter in ("spec.drafted", "spec.accepted") if not evidence.get(counter)]
    if algorithm == "none" or not silent:
        return ""
    return f"the cell requests {algorithm}, but {silent[0]} stayed 0, so its answers prove nothing about speculation"


def overall(tests: Sequence[Test], doubt: str) -> State:
    """FAIL if any test fails, else NOT MEASURED if any lacks evidence or there is a doubt."""
    states = {test.state for test in tests} | ({State.NOT_MEASURED} if doubt else set())
    return next((state for state in (State.FAIL, State.NOT_MEASURED) if state in states), State.PASS)


def counts(samples: Sequence[Sample]) -> Mapping[str, int | float]:
    """Statistics of a run besides accuracy. tokens_per_round is over the verify rounds of all answers."""
    rounds = sum(s.rounds for s in samples)
    tokens = sum(s.tokens for s in samples)
    numbers: dict[str, int | float] = {"questions": len(samples), "tokens": tokens, "rounds": rounds}
    for extractor in EXTRACTORS:
        numbers[f"right_{extractor}"] = sum(s.right[extractor] for s in samples)
        numbers[f"invalid_{extractor}"] = sum(not s.valid[extractor] for s in samples)
    numbers["ended_by_length"] = sum(s.by_length for s in samples)
    numbers["retractions"] = retractions = sum(s.retractions for s in samples)
    # Every prefill, the first and each after a retraction, yields a token without a round.
    numbers["tokens_per_round"] = (tokens - len(samples) - retractions) / rounds if rounds else 0.0
    return numbers


def _at_the_end(lost: int, won: int) -> float:
    """An upper bound on the sequential test's p value, which may have been smaller earlier."""
    return 1 / loss_evidence(lost, won)


def _test(name: str, before: Sequence[bool], after: Sequence[bool]) -> Test:
    """before, after: whether each question is good on the baseline and on the cell."""
    losses = [was for was, now in zip(before, after, strict=True) if was != now]
    lost, won = sum(losses), len(losses) - sum(losses)
    p = sequential_mcnemar(losses)
    state, message = State.PASS, ""
    if p < ALPHA:
        state = State.FAIL
        message = f"the cell loses {lost} questions of {len(before)} and wins {won} (p = {p:.2g}, allowed {ALPHA})"
    elif name.startswith("right") and sum(before) < MIN_RIGHT:
        state = State.NOT_MEASURED
        message = (
            f"the baseline answers {sum(before)} of {len(before)} questions correctly; with fewer than {MIN_RIGHT} "
            "even losing all of them would not be significant"
        )
    return Test(name, len(before), sum(before), sum(after), lost, won, p, state, message)
