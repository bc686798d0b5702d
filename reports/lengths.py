"""Validated access to numbers that gates recorded: unusable values read as missing."""

from __future__ import annotations

from specmatrix.reports.schema import MAX_NUMBER, GateResult, Json
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


def number(value: Json, most: float = MAX_NUMBER) -> float | None:
    """A recorded number from 0 to `most`, None for anything else."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
    return float(value) if known else None


def positive(value: Json) -> float | None:
    """A recorded number from 1 / `MAX_NUMBER` to `MAX_NUMBER`, so that ratios are finite; None for anything else."""
    found = number(value)
    return found if found and found * MAX_NUMBER >= 1 else None


def positives(value: Json) -> list[float]:
    """A recorded list of numbers as of `positive`, empty for anything else."""
    found = [positive(each) for each in value] if isinstance(value, list) else []
    return [] if None in found else [each for each in found if each]
