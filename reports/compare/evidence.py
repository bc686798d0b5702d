"""Sizes and p values of the changes in a cell's numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from specmatrix.reports.compare.cell_state import FALSE_DISCOVERY_RATE, LEAST_EFFECT, TOLERANCE, Effect
from specmatrix.reports.lengths import length_interval
from specmatrix.reports.schema import CellResult, GateResult, Number, ReportError
from specmatrix.reports.stats import (
    NORMAL,
    Z95,
    benjamini_hochberg,
    difference_interval,
    mcnemar,
    paired_difference,
    ratio_change,
    two_rate_test,
)


def effects(base: CellResult, head: CellResult, incomparable: Collection[str]) -> tuple[Effect, ...]:
    """The changed numbers of a cell that both reports measured. Raises ReportError for numbers of the wrong kind."""
    found = []
    for gate, measure in (("acceptance", _acceptance), ("accuracy", _accuracy)):
        old, new = base.gate(gate), head.gate(gate)
        if gate in incomparable or old is None or new is None or old.numbers == new.numbers:
            continue
        if old.state == "NOT MEASURED" or new.state == "NOT MEASURED":
            continue
        effect = measure(old, new, head.id)
        if effect is not None:
            found.append(effect)
    return tuple(found)


def mark_significant(found: Sequence[Effect]) -> list[Effect]:
    """Mark the effects that are significant over the whole comparison; keeps the order."""
    losses = benjamini_hochberg([effect.p_loss for effect in found], FALSE_DISCOVERY_RATE)
    gains = benjamini_hochberg([effect.p_gain for effect in found], FALSE_DISCOVERY_RATE)
    marked = []
    for effect, loss, gain in zip(found, losses, gains, strict=True):
        large = abs(effect.change) >= LEAST_EFFECT[effect.gate]
        significant = "loss" if loss and large else "gain" if gain and large else ""
        marked.append(replace(effect, significant=significant) if significant else effect)
    return marked


def allowed_loss(effect: Effect) -> float:
    """The largest loss inside the 95 % interval, as a positive fraction; infinite without an interval."""
    return math.inf if effect.interval is None else max(0.0, -effect.interval[0])


def is_bounded(effect: Effect) -> bool:
    """True if the interval excludes a loss above the tolerance."""
    return allowed_loss(effect) <= TOLERANCE[effect.gate]


def _acceptance(old: GateResult, new: GateResult, cell: str) -> Effect | None:
    base, head = _positive(old, "length", cell), _positive(new, "length", cell)
    old_prompts, new_prompts = _prompts(old), _prompts(new)
    if old_prompts and new_prompts and len(old_prompts[0]) == len(new_prompts[0]) >= 2:
        paired = ratio_change(old_prompts, new_prompts)
        # Acceptance depends on the position in a text, so different lengths weaken the pairing.
        pairing = "prompts" if list(old_prompts[0]) == list(new_prompts[0]) else "prompts of other length"
        return Effect("acceptance", base, head, paired.change, paired.interval, paired.p_loss, paired.p_gain, pairing)
    if base == head:
        return None
    before, after = length_interval(old), length_interval(new)
    if before is None or after is None:
        alone = any(prompts is not None and len(prompts[0]) == 1 for prompts in (old_prompts, new_prompts))
        return Effect("acceptance", base, head, head / base - 1, None, 1.0, 1.0, "one prompt") if alone else None
    spread = math.hypot(_standard_error(before), _standard_error(after)) / base
    change = head / base - 1
    z = change / spread if spread else math.copysign(math.inf, change)
    half = Z95 * spread
    return Effect(
        "acceptance", base, head, change, (change - half, change + half), NORMAL.cdf(z), NORMAL.cdf(-z), "intervals"
    )


def _accuracy(old: GateResult, new: GateResult, cell: str) -> Effect | None:
    base, head = _number(old, "accuracy", cell), _number(new, "accuracy", cell)
    old_answers, new_answers = old.numbers.get("outcomes"), new.numbers.get("outcomes")
    if isinstance(old_answers, str) and isinstance(new_answers, str) and 0 < len(old_answers) == len(new_answers):
        lost = sum(a == "1" and b == "0" for a, b in zip(old_answers, new_answers, strict=True))
        won = sum(a == "0" and b == "1" for a, b in zip(old_answers, new_answers, strict=True))
        n = len(old_answers)
        interval = paired_difference(lost, won, n)
        losing, gaining = mcnemar(lost, won, "loss"), mcnemar(lost, won, "gain")
        return Effect("accuracy", base, head, (won - lost) / n, interval, losing, gaining, "prompts")
    if base == head:
        return None
    old_n, new_n = round(_positive(old, "n", cell)), round(_positive(new, "n", cell))
    old_right, new_right = round(base * old_n), round(head * new_n)
    interval = difference_interval(old_right, old_n, new_right, new_n)
    losing = two_rate_test(old_right, old_n, new_right, new_n)
    gaining = two_rate_test(new_right, new_n, old_right, old_n)
    return Effect("accuracy", base, head, head - base, interval, losing, gaining, "intervals")


def _prompts(gate: GateResult) -> tuple[Sequence[float], Sequence[float]] | None:
    emitted, rounds = _positives(gate.numbers.get("emitted")), _positives(gate.numbers.get("rounds"))
    return (emitted, rounds) if emitted and rounds and len(emitted) == len(rounds) else None


def _positives(values: Number | None) -> list[float] | None:
    """`values` if it is a list of positive numbers, else None."""
    if isinstance(values, list) and all(isinstance(value, int | float) and value > 0 for value in values):
        return values
    return None


def _number(gate: GateResult, name: str, cell: str) -> float:
    value: Number | None = gate.numbers.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ReportError(f"{name} of gate {gate.name} in cell {cell!r} must be a number, got {value!r}")


def _positive(gate: GateResult, name: str, cell: str) -> float:
    value = _number(gate, name, cell)
    if value <= 0:
        raise ReportError(f"{name} of gate {gate.name} in cell {cell!r} must be above 0, got {value:g}")
    return value


def _standard_error(interval: tuple[float, float]) -> float:
    return (interval[1] - interval[0]) / (2 * Z95)
