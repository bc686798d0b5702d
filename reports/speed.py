"""The gate `speed` of a record: what it measured, and what a comparison judges of it.

Every ratio is a list with one value per turn, higher is better; the same turn of two runs has the same prompts.

- `speed`: tokens per second over those without a drafter
- `first_token`, `output_token`: time to first token and time per output token without a drafter over those with it
- `own_speed`, `plain_speed`: tokens, with and without a drafter, in the time of a fixed piece of work, which takes most
  of the machine's own drift out of them; what slows both sides alike shows here only
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from typing import Final

from specmatrix.reports.gate_numbers import FIGURES, RATIOS, SPEED
from specmatrix.reports.lengths import positive
from specmatrix.reports.schema import CellResult, Number
from specmatrix.reports.stats import Shift, shift
from specmatrix.reports.stats.shift import LEAST_VALUES

OWN: Final = "own_speed"
FIXED: Final = (OWN, "plain_speed")
# Ratios that also fall if only plain decoding became quicker.
OF_BOTH: Final = ("speed", "output_token")
# The middle 80 % of the fixed work's times, relative to their median, above which the machine was too busy. Noise then
# lasts for many turns, so that intervals are too narrow: on a machine with eight processes a core, of two equal engines
# in one process one was up to 7 % slower.
MOST_SPREAD: Final = 0.08
# What must be equal for two measurements to be comparable.
SETTING: Final = ("clock", "device")


def ratio_shift(base: Mapping[str, Number], head: Mapping[str, Number], measure: str) -> Shift | None:
    """The shift of the logarithm of a ratio from base to head over the turns of both; None if they are too few.

    The fixed work takes the machine's drift out of a speed only about, so that a loss or gain as large as that drift is
    not held against either.
    """
    old, new = ratios(base, measure), ratios(head, measure)
    moved = [log(after / before) for before, after in zip(old, new, strict=False)]
    if len(moved) < LEAST_VALUES:
        return None
    slack = abs(drift(base, head)) if measure in FIXED else 0.0
    found, (low, high) = shift(moved), shift(moved).interval
    loss, gain = (shift([value + sign * slack for value in moved]) for sign in (1, -1))
    return Shift(found.estimate, (low - slack, high + slack), loss.p_loss, gain.p_gain)


def obstacle(base: Mapping[str, Number], head: Mapping[str, Number]) -> str:
    """Why two measurements cannot be compared, in a few words; "" if they can."""
    other = next((name for name in SETTING if base.get(name) != head.get(name)), "")
    if other:
        return f"another {other}"
    spreads = (positive(numbers.get("work_spread")) or 0.0 for numbers in (base, head))
    return "a busy machine" if max(spreads) > MOST_SPREAD else ""


def drift(base: Mapping[str, Number], head: Mapping[str, Number]) -> float:
    """The logarithm of the time of the fixed work in head over that in base; 0 if it is unknown."""
    before, after = (positive(numbers.get("work_ms")) for numbers in (base, head))
    return log(after / before) if before and after else 0.0


def level(values: list[float]) -> tuple[float, tuple[float, float]]:
    """The middle of a ratio's turns and its 95 % interval. ValueError for too few turns."""
    found = shift([log(value) for value in values])
    return exp(found.estimate), (exp(found.interval[0]), exp(found.interval[1]))


def ratios(numbers: Mapping[str, Number], measure: str) -> list[float]:
    """The values of a ratio by turn; empty if it was not measured."""
    found = numbers.get(RATIOS[measure], ())
    return list(found) if isinstance(found, list | tuple) else []


def speed_text(cell: CellResult) -> str:
    """A cell's speed in one sentence, "" if it has none."""
    gate = cell.gate(SPEED)
    if gate is None or gate.interval is None or not gate.numbers.keys() >= FIGURES:
        return ""
    n, (low, high) = gate.numbers, gate.interval
    return (
        f"{n['tokens_per_second']:,.0f} tokens/s, {n['speed_up']:.2f} times the speed without a drafter ({low:.2f} to "
        f"{high:.2f}); first token after {n['first_token_ms']:.2f} ms (without {n['baseline_first_token_ms']:.2f}), "
        f"then {n['output_token_ms']:.3f} ms a token ({n['baseline_output_token_ms']:.3f})"
    )
