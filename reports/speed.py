"""The gate `speed` of a record: what it measured, and what a comparison judges of it.

Every ratio is a list with one value per turn of each engine start, start after start, higher is better; the same turn
of every start has the same prompts.

- `speed`: tokens per second over those without a drafter - `first_token`, `output_token`: time to first token and time
per output token without a drafter over those with it - `own_speed`, `plain_speed`: tokens, with and without a drafter,
in the time of a fixed piece of work, which removes most of the machine's own drift; a slowdown of both sides shows here
only
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, expm1, log, log1p
from statistics import fmean, median
from typing import Final, NamedTuple

from specmatrix.reports.lengths import positive, positives
from specmatrix.reports.schema import CellResult, Json
from specmatrix.reports.stats import MIN_VALUES, Shift, mean_interval, pseudo_median, shift

# The gate, and by compared measure the name of its number, with one ratio per turn of each engine start.
SPEED: Final = "speed"
OWN: Final = "own_speed"
RATIOS: Final[Mapping[str, str]] = {
    "speed": "speed_ups",
    "first_token": "first_token_ratios",
    "output_token": "output_token_ratios",
    OWN: "own_speeds",
    "plain_speed": "plain_speeds",
}
FIXED: Final = (OWN, "plain_speed")
# Ratios that also fall if only plain decoding became quicker.
OF_BOTH: Final = ("speed", "output_token")


class DriftShare(NamedTuple):
    """How much of the machine's drift, as the fixed work shows it, may be in a ratio to plain decoding, and in a speed
    over the fixed work."""

    ratio: float
    fixed: float


# Of equal engines. On a CPU, where the fixed work took 7 and 10 % less, the ratio rose by 3.7 and 4.7 %; where it took
# up to 8 % more, speeds over it fell as much. On an H100 host, where it took up to 58 % more, the ratio moved by less
# than 1 %, and speeds over the fixed work rose by up to a quarter of the drift (reports/log/speed.md).
ON_CPU: Final = DriftShare(0.5, 1.0)
ON_GPU: Final = DriftShare(0.1, 0.3)
# Where the fixed work moved by more, other things than the shares above decide what was measured: on a shared H100
# host, where it took 54 % more, the ratio to plain decoding of an equal engine doubled.
MAX_DRIFT: Final = 0.25
# Figures of one measurement, with the drafter and without.
FIGURES: Final = (
    *("speed_up", "tokens_per_second", "first_token_ms", "baseline_first_token_ms", "output_token_ms"),
    "baseline_output_token_ms",
)
# Fields that must be equal for two measurements to be comparable.
SETTING: Final = ("clock", "device")


def ratio_shift(base: Mapping[str, Json], head: Mapping[str, Json], measure: str) -> Shift | None:
    """The shift of the logarithm of a ratio from base to head, whose interval follows from the spread between engine
    starts; None if they are too few.

    Turns of one start share whatever that start was given, such as the places of its memory, so they are one value. The
    fixed work removes the machine's drift only approximately, and so does plain decoding. A loss or gain up to a share
    of that drift therefore does not count.
    """
    old, new = by_start(base, measure), by_start(head, measure)
    if min(len(old), len(new)) < MIN_VALUES:
        return None
    values = levels([*old, *new])
    before, after = values[: len(old)], values[len(old) :]
    found = shift(before, after)
    share = ON_GPU if base.get("gpus") else ON_CPU
    slack = abs(drift(base, head)) * (share.fixed if measure in FIXED else share.ratio)
    low, high = found.interval
    loss, gain = (shift(before, [value + sign * slack for value in after]) for sign in (1, -1))
    return Shift(found.estimate, (low - slack, high + slack), loss.p_loss, gain.p_gain)


def levels(starts: Sequence[Sequence[float]]) -> list[float]:
    """The logarithm of each start's ratio, over the turns that all have.

    Turns differ in their prompts, starts do not: each turn's median over the starts is taken out before a start's turns
    are summed up, so that a disturbed turn hardly counts.
    """
    turns = [[log(value) for value in turn] for turn in zip(*starts, strict=False)]
    middles = [median(turn) for turn in turns]
    rest = zip(*([value - middle for value in turn] for turn, middle in zip(turns, middles, strict=True)), strict=True)
    return [fmean(middles) + pseudo_median(row) for row in rest]


def obstacle(base: Mapping[str, Json], head: Mapping[str, Json]) -> str:
    """Why two measurements cannot be compared, in a few words; "" if they can."""
    if other := next((name for name in SETTING if base.get(name) != head.get(name)), ""):
        return f"another {other}"
    moved = drift(base, head)
    return f"fixed work took {100 * expm1(moved):+.1f} %" if abs(moved) > log1p(MAX_DRIFT) else ""


def drift(base: Mapping[str, Json], head: Mapping[str, Json]) -> float:
    """The logarithm of the time of the fixed work in head over that in base; 0 if it is unknown."""
    before, after = (positive(numbers.get("work_ms")) for numbers in (base, head))
    return log(after / before) if before and after else 0.0


def level(starts: Sequence[Sequence[float]]) -> tuple[float, tuple[float, float] | None]:
    """The middle of a ratio and its 95 % interval, None for one start."""
    found = levels(starts)
    if len(found) < MIN_VALUES:
        return exp(fmean(found)), None
    low, high = mean_interval(found)
    return exp(fmean(found)), (exp(low), exp(high))


def by_start(numbers: Mapping[str, Json], measure: str) -> list[list[float]]:
    """The values of a ratio by engine start and turn; empty if it was not measured."""
    found, starts = ratios(numbers, measure), numbers.get("starts", 1)
    if not isinstance(starts, int) or not 0 < starts <= len(found):
        return []
    turns = len(found) // starts
    return [found[begin : begin + turns] for begin in range(0, turns * starts, turns)]


def ratios(numbers: Mapping[str, Json], measure: str) -> list[float]:
    """The values of a ratio by turn; empty if it was not measured."""
    return positives(numbers.get(RATIOS[measure]))


def speed_text(cell: CellResult) -> str:
    """A cell's speed in one sentence, "" if it has none."""
    gate = cell.gate(SPEED)
    n = {} if gate is None else {name: positive(gate.numbers.get(name)) for name in FIGURES}
    if gate is None or None in n.values():
        return ""
    between = "one engine start" if gate.interval is None else "{:.2f} to {:.2f}".format(*gate.interval)
    return (
        f"{n['tokens_per_second']:,.0f} tokens/s, {n['speed_up']:.2f} times the speed without a drafter ({between}); "
        f"first token after {n['first_token_ms']:.2f} ms (without {n['baseline_first_token_ms']:.2f}), "
        f"then {n['output_token_ms']:.3f} ms a token ({n['baseline_output_token_ms']:.3f})"
    )
