"""Acceptance lengths as gates record them."""

from __future__ import annotations

from specmatrix.reports.gate_numbers import LARGEST
from specmatrix.reports.schema import GateResult, Number
from specmatrix.reports.stats import ROUNDING


def length_interval(gate: GateResult) -> tuple[float, float] | None:
    """The 95 % interval of an acceptance gate's tokens per round; None without one.

    A gate that records its `ratio` to the reference gives the interval of that. One prompt has no interval, nor has a
    sample without spread, whatever a report records.
    """
    ends, reference, prompts = gate.interval, positive(gate.numbers.get("reference")), gate.numbers.get("emitted")
    one_prompt = isinstance(prompts, list) and len(prompts) == 1
    if ends is None or one_prompt or ends[1] - ends[0] <= ROUNDING * ends[1]:
        return None
    return ends if "ratio" not in gate.numbers or reference is None else (ends[0] * reference, ends[1] * reference)


def positive(value: Number | None) -> float | None:
    """A recorded number above 0 and at most `LARGEST`, None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST:
        return float(value)
    return None
