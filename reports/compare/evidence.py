"""Sizes and p values of the changes in a cell's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

from specmatrix.reports.compare.cell_state import FALSE_DISCOVERY_RATE, MIN_EFFECT, TOLERANCE, Effect
from specmatrix.reports.lengths import length_interval, number, positive, positives
from specmatrix.reports.schema import AMOUNTS, NUMBERS, CellResult, GateResult
from specmatrix.reports.speed import FIXED, RATIOS, SPEED, drift, obstacle, ratio_shift, ratios
from specmatrix.reports.stats import NORMAL, Z95, benjamini_hochberg, mcnemar, paired_difference, ratio_change
from specmatrix.reports.wording import count

# The gates that draw a sample, and its unit.
_SAMPLES: Final = {"acceptance": "prompt", "accuracy": "question", "distribution": "draw"}


def effects(base: CellResult, head: CellResult, incomparable: Collection[str]) -> tuple[Effect, ...]:
    """The changed numbers of a cell that both reports measured."""
    found: list[Effect] = []
    for gate, measure in _MEASURES.items():
        old, new = base.gate(gate), head.gate(gate)
        if gate in incomparable or old is None or new is None or old.numbers == new.numbers:
            continue
        if old.state == "NOT MEASURED" or new.state == "NOT MEASURED":
            continue
        found += filter(None, measure(old, new))
    return tuple(found)


def lost_evidence(base: CellResult, head: CellResult, other: Collection[str]) -> tuple[str, ...]:
    """Sentences on evidence of a passing cell that head lacks, or has less than half as much of as base.

    Gates in `other` judge other inputs or another configuration: for them only missing evidence counts.
    """
    found = []
    there = {gate.name: gate for gate in base.gates}
    for gate in head.gates:
        old = there.get(gate.name)
        if gate.state != "PASS" or old is None or gate.numbers == old.numbers:
            continue
        for name in AMOUNTS.get(gate.name, ()):
            before, after = _amount(old, name), _amount(gate, name)
            if before and not after:
                found.append(f"{gate.name} passes in head without its {name}, which base has")
            # Over HTTP an aborted answer ends wherever its abort arrives.
            elif gate.name == "identities" and head.axes.get("abort", "none") != "none":
                continue
            elif after < before / 2 and gate.name not in other and name not in NUMBERS[gate.name].shared:
                found.append(f"{gate.name} passes in head, and its {name} fell from {before:,.6g} to {after:,.6g}")
    counted, left = len(base.evidence), len(head.evidence)
    if counted and not left:
        found.append("no counter of the engine is above 0 in head")
    elif left < counted / 2 and not other:
        found.append(f"{count(left, 'counter')} of the engine above 0 in head, {counted} in base")
    return tuple(found)


def shrunk(base: CellResult, head: CellResult, incomparable: Collection[str]) -> tuple[str, ...]:
    """Samples that are smaller in head, as sentences."""
    found = []
    for name, what in _SAMPLES.items():
        old, new = base.gate(name), head.gate(name)
        if name in incomparable or old is None or new is None or new.state == "NOT MEASURED":
            continue
        before, after = _size(old, what), _size(new, what)
        if after < before:
            found.append(f"{name} has {count(after, what)} instead of {before:,}")
    return tuple(found)


def mark_significant(found: Sequence[Effect]) -> list[Effect]:
    """Mark the effects that are significant over the whole comparison; keeps the order. Effects without p values, such
    as that of one prompt, are not tested and do not count as tests."""
    tested = {index: effect for index, effect in enumerate(found) if effect.p_loss is not None}
    marked = list(found)
    for name, change in (("loss", -1), ("gain", 1)):
        values = [getattr(effect, f"p_{name}") for effect in tested.values()]
        for (index, effect), hit in zip(tested.items(), benjamini_hochberg(values, FALSE_DISCOVERY_RATE), strict=True):
            if hit and change * effect.change >= MIN_EFFECT[effect.gate]:
                marked[index] = replace(effect, significant=name)
    return marked


def smallest_visible(gate: str, interval: tuple[float, float]) -> float:
    """The loss that is found in 39 of 40 comparisons with an interval of this width: at its estimate it must be
    significant and at least `MIN_EFFECT`."""
    half = (interval[1] - interval[0]) / 2
    return max(MIN_EFFECT[gate], half) + half


def allowed_loss(effect: Effect) -> float:
    """The largest loss inside the 95 % interval, as a positive fraction; infinite without an interval."""
    return math.inf if effect.interval is None else max(0.0, -effect.interval[0])


def is_bounded(effect: Effect) -> bool:
    """True if the interval excludes a loss above the tolerance."""
    return allowed_loss(effect) <= TOLERANCE[effect.gate]


def _acceptance(old: GateResult, new: GateResult) -> Effect | None:
    base, head = positive(old.numbers.get("length")), positive(new.numbers.get("length"))
    old_prompts, new_prompts = _prompts(old), _prompts(new)
    if base is None or head is None or (base == head and old_prompts == new_prompts):
        return None
    effect = partial(Effect, "acceptance", base, head)
    same = old.numbers.get("questions") == new.numbers.get("questions")
    if same and old_prompts and new_prompts and len(old_prompts[0]) == len(new_prompts[0]) >= 2:
        paired = ratio_change(old_prompts, new_prompts)
        # Acceptance depends on the position in a text, so different lengths weaken the pairing.
        pairing = "prompts" if old_prompts[0] == new_prompts[0] else "prompts of other length"
        if paired.interval is None:
            pairing = f"{count(len(old_prompts[0]), 'prompt')} changed alike"
        return effect(paired.change, paired.interval, paired.p_loss, paired.p_gain, pairing)
    change = head / base - 1
    before, after = length_interval(old), length_interval(new)
    if before is None or after is None:
        alone = any(prompts is not None and len(prompts[0]) == 1 for prompts in (old_prompts, new_prompts))
        small = abs(change) < MIN_EFFECT["acceptance"]
        return None if small else effect(change, None, None, None, "one prompt" if alone else "no spread")
    if base == head:
        return None
    spread = math.hypot(_standard_error(before), _standard_error(after)) / base
    z, half = change / spread, Z95 * spread
    return effect(change, (change - half, change + half), NORMAL.cdf(z), NORMAL.cdf(-z), "intervals")


def _accuracy(old: GateResult, new: GateResult) -> Effect | None:
    base, head = (number(gate.numbers.get("accuracy"), 1) for gate in (old, new))
    old_n, new_n = (int(number(gate.numbers.get("n")) or 0) for gate in (old, new))
    if base is None or head is None or not old_n or not new_n:
        return None
    effect = partial(Effect, "accuracy", base, head)
    old_answers, new_answers = _outcomes(old), _outcomes(new)
    if 0 < len(old_answers) == len(new_answers):
        lost = sum(a == "1" and b == "0" for a, b in zip(old_answers, new_answers, strict=True))
        won = sum(a == "0" and b == "1" for a, b in zip(old_answers, new_answers, strict=True))
        n = len(old_answers)
        if n == 1:
            return effect(won - lost, None, None, None, "one question") if lost or won else None
        interval = paired_difference(lost, won, n)
        return effect((won - lost) / n, interval, mcnemar(lost, won, "loss"), mcnemar(lost, won, "gain"), "prompts")
    return None if base == head else effect(head - base, None, None, None, "other questions")


def _speed(old: GateResult, new: GateResult) -> Iterator[Effect]:
    """The change of each ratio over the engine starts of both runs."""
    why = obstacle(old.numbers, new.numbers)
    for name in RATIOS:
        found = ratio_shift(old.numbers, new.numbers, name)
        before, after = (median(ratios(gate.numbers, name) or [0.0]) for gate in (old, new))
        if not before or not after:
            continue
        if why or found is None:
            yield Effect(name, before, after, after / before - 1, None, None, None, why or "few engine starts")
            continue
        low, high = (math.expm1(end) for end in found.interval)
        note = f"smallest visible loss {100 * smallest_visible(name, (low, high)):.1f} %"
        if name in (SPEED, *FIXED):
            note += f", fixed work took {100 * math.expm1(drift(old.numbers, new.numbers)):+.1f} %"
        change, ends = math.expm1(found.estimate), (low, high)
        yield Effect(name, before, after, change, ends, found.p_loss, found.p_gain, "starts", note=note)


_MEASURES: Final[dict[str, Callable[[GateResult, GateResult], Iterable[Effect | None]]]] = {
    "acceptance": lambda old, new: [_acceptance(old, new)],
    "accuracy": lambda old, new: [_accuracy(old, new)],
    SPEED: _speed,
}


def _amount(gate: GateResult, name: str) -> float:
    """A number of a gate, or how many values a list or text of it has; 0 without one."""
    if name == "outcomes":
        return len(_outcomes(gate))
    value = gate.numbers.get(name)
    return len(value) if isinstance(value, list) else number(value) or 0.0


def _size(gate: GateResult, what: str) -> int:
    """The size of a gate's sample; 0 if it has none."""
    if what == "prompt":
        prompts = _prompts(gate)
        return 0 if prompts is None else len(prompts[0])
    return int(number(gate.numbers.get(AMOUNTS[gate.name][0])) or 0)


def _prompts(gate: GateResult) -> tuple[list[float], list[float]] | None:
    """Tokens and rounds by prompt, None unless the gate has both."""
    emitted, rounds = (positives(gate.numbers.get(name)) for name in ("emitted", "rounds"))
    return (emitted, rounds) if 0 < len(emitted) == len(rounds) else None


def _outcomes(gate: GateResult) -> str:
    """By question "1" (right) or "0" (wrong)."""
    value = gate.numbers.get("outcomes")
    return value if isinstance(value, str) and not value.strip("01") else ""


def _standard_error(interval: tuple[float, float]) -> float:
    return (interval[1] - interval[0]) / (2 * Z95)
