"""Acceptance lengths as gates record them."""

from __future__ import annotations

from specmatrix.reports.schema import GateResult, Number


def length_interval(gate: GateResult) -> tuple[float, float] | None:
    """The 95 % interval of an acceptance gate's tokens per round; None without one.

    A gate that records its `ratio` to the reference gives the interval of that. One prompt has no interval, although
    older reports record its ratio as both ends.
    """
    ends, reference, prompts = gate.interval, positive(gate.numbers.get("reference")), gate.numbers.get("emitted")
    if ends is None or (ends[0] == ends[1] and isinstance(prompts, list) and len(prompts) == 1):
        return None
    return ends if "ratio" not in gate.numbers or reference is None else (ends[0] * reference, ends[1] * reference)


def positive(value: Number | None) -> float | None:
    """A recorded number above 0, None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return None
