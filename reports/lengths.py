"""Acceptance lengths as gates record them."""

from __future__ import annotations

from specmatrix.reports.schema import GateResult, Number


def length_interval(gate: GateResult) -> tuple[float, float] | None:
    """The 95 % interval of an acceptance gate's tokens per round; None without one.

    A gate that records its `ratio` to the reference gives the interval of that.
    """
    reference = positive(gate.numbers.get("reference"))
    if gate.interval is None or "ratio" not in gate.numbers or reference is None:
        return gate.interval
    return gate.interval[0] * reference, gate.interval[1] * reference


def positive(value: Number | None) -> float | None:
    """A recorded number above 0, None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return None
