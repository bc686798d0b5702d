"""Compares one cell of two reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from specmatrix.reports.compare.acknowledge import Acknowledged
from specmatrix.reports.compare.cell_state import MIN_EFFECT, CellChange, ChangeState, Effect, GateChange, PathChange
from specmatrix.reports.compare.evidence import allowed_loss, is_bounded, lost_evidence, shrunk
from specmatrix.reports.compare.rewrites import PathChanges, new_rewrites, signature
from specmatrix.reports.schema import GATES, RED_STATES, CellResult, CellState, is_waived
from specmatrix.reports.speed import OF_BOTH, OWN, RATIOS
from specmatrix.reports.wording import shorten_pair, shorten_rewrite

_NAME_AND_STATE: Final = attrgetter("name", "state")
# Severity of a state. An INFRA failure in base says nothing about the code, so any red state in head is news.
_RANK: Final[Mapping[CellState, int]] = {"PASS": 0, "INFRA": 0, "NOT MEASURED": 1, "FAIL": 2}
UNITS: Final = {**dict.fromkeys(("acceptance", *RATIOS), " %"), "accuracy": " pt"}


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs common to all cells: gates that cannot be compared, acknowledgements, date of the head run."""

    incomparable: frozenset[str]
    acknowledged: Acknowledged
    today: str
    paths: PathChanges = field(default_factory=PathChanges)


def lost_cell(base: CellResult, head: CellResult | None, context: Context) -> CellChange:
    """A cell that head lacks, lists as UNSUPPORTED, or runs with other axis values; not red if base did not support
    it."""
    if head is None:
        why = "the cell is missing in head"
    elif head.state == "UNSUPPORTED":
        why = f"the cell is not supported in head: {head.error}"
    else:
        why = f"head runs other values under this id: {_other_axes(base, head)}"
    excused = context.acknowledged.reason("lost", base.id)
    red = not excused and base.state != "UNSUPPORTED"
    repro = (base if head is None else head).repro
    return CellChange(base.id, ChangeState.LOST, f"{why}; it was {base.state} in base", red, repro, excused=excused)


def new_cell(head: CellResult, context: Context, listed: bool = False) -> CellChange:
    """A cell that base lacks or (`listed`) lists as UNSUPPORTED."""
    if head.state == "INFRA":
        return _infra(head, context)
    why = f"the cell is {'not supported' if listed else 'missing'} in base; it is {head.state} in head"
    red, excused = _red(head, context)
    gates = tuple(GateChange(gate.name, None, gate.state, gate.message) for gate in head.gates if gate.state != "PASS")
    return CellChange(head.id, ChangeState.NEW, why, red, head.repro, gates=gates, excused=excused)


def compare_cell(base: CellResult, head: CellResult, effects: Sequence[Effect], context: Context) -> CellChange:
    """Compare a cell of both reports; `effects`: its changed numbers, already tested for significance."""
    if base.state == head.state == "UNSUPPORTED":
        return CellChange(head.id, ChangeState.SAME, "UNSUPPORTED in both", False, head.repro)
    if base.state == "UNSUPPORTED":
        return new_cell(head, context, listed=True)
    if head.state == "INFRA":
        return _infra(head, context)
    if head.state == "UNSUPPORTED" or _other_axes(base, head):
        return lost_cell(base, head, context)
    gates = gate_changes(base, head)
    path = context.paths.of(base, head)
    # A gate turned red, or from unknown to failed, or is missing in head, even if it was red in base.
    worse = [each for each in gates if each.head is None or _RANK[each.head] > _RANK[each.base or "PASS"]]
    # A missing gate does not depend on prompts or hardware.
    blocked = [change for change in worse if change.head is not None and change.gate in context.incomparable]
    rewritten = bool(path or new_rewrites(base, head))
    gone = lost_evidence(base, head, GATES if rewritten else context.incomparable)
    state, why = _state(base, head, effects, worse, blocked, gone, path, context)
    red, excused = False, ""
    if state is ChangeState.REGRESSED or (state is ChangeState.NOT_COMPARABLE and (worse or gone)):
        red, excused = _red(head, context, passing=head.state == "PASS")
    elif state is ChangeState.REWRITTEN:
        excused = _acknowledged(path, base, head, context)
        red = not excused
    bound = _bound_text(effects) if state in (ChangeState.SAME, ChangeState.UNKNOWN) else ""
    return CellChange(head.id, state, why, red, head.repro, tuple(effects), gates, path, bound, excused)


def _other_axes(base: CellResult, head: CellResult) -> str:
    """The values of base's axes that differ in head: `topk 1 instead of 4`. An axis that base lacks is a new one."""
    if base.axes == head.axes:
        return ""
    both = ((name, head.axes.get(name, "nothing"), value) for name, value in base.axes.items())
    return ", ".join(f"{name} {new} instead of {old}" for name, new, old in both if new != old)


def gate_changes(base: CellResult, head: CellResult) -> tuple[GateChange, ...]:
    """Gates whose state differs, in head's order, then those that head no longer runs."""
    if list(map(_NAME_AND_STATE, base.gates)) == list(map(_NAME_AND_STATE, head.gates)):
        return ()
    old = {gate.name: gate for gate in base.gates}
    new = {gate.name: gate for gate in head.gates}
    changes = []
    for name in (*new, *(name for name in old if name not in new)):
        before = old[name].state if name in old else None
        after = new[name].state if name in new else None
        # A new gate that passes is no change for the worse.
        if before != after and not (before is None and after == "PASS"):
            message = new[name].message if name in new else "head does not run this gate"
            changes.append(GateChange(name, before, after, message))
    return tuple(changes)


def _state(
    base: CellResult,
    head: CellResult,
    effects: Sequence[Effect],
    worse: Sequence[GateChange],
    blocked: Sequence[GateChange],
    gone: Sequence[str],
    path: Sequence[PathChange],
    context: Context,
) -> tuple[ChangeState, str]:
    if len(worse) > len(blocked) and not (head.error and not head.gates):
        return ChangeState.REGRESSED, "; ".join(_gate_text(change) for change in worse if change not in blocked)
    if (_RANK[head.state] > _RANK[base.state] and not worse) or len(worse) > len(blocked):
        return ChangeState.REGRESSED, f"{base.state} in base, {head.state} in head: {head.error}"
    if gone:
        return ChangeState.REGRESSED, "; ".join(gone)
    losses = [effect for effect in effects if effect.significant == "loss" and not _is_quicker_plain(effect, effects)]
    if losses:
        return ChangeState.REGRESSED, "; ".join(effect_text(effect) for effect in losses)
    if blocked:
        return ChangeState.NOT_COMPARABLE, "; ".join(_gate_text(change) for change in blocked) + " (an input differs)"
    if path or new_rewrites(base, head):
        return ChangeState.REWRITTEN, _path_text(path, base, head)
    return _quiet_state(base, head, effects, context)


def _is_quicker_plain(effect: Effect, effects: Sequence[Effect]) -> bool:
    """Whether a ratio to plain decoding fell although the drafter's own speed did not."""
    own = next((each for each in effects if each.gate == OWN), None)
    return effect.gate in OF_BOTH and own is not None and allowed_loss(own) < MIN_EFFECT[OWN]


def _quiet_state(
    base: CellResult, head: CellResult, effects: Sequence[Effect], context: Context
) -> tuple[ChangeState, str]:
    """The state of a cell on which nothing got worse and nothing was rewritten."""
    if base.state == "INFRA":
        return ChangeState.UNKNOWN, f"the machine failed in base; the cell is {head.state} in head"
    if less := shrunk(base, head, context.incomparable):
        return ChangeState.UNKNOWN, "; ".join(less) + "; more samples are needed"
    better = [c for c in gate_changes(base, head) if c.head == "PASS" and c.base in ("FAIL", "NOT MEASURED")]
    gains = [effect for effect in effects if effect.significant == "gain"]
    if better or (base.state != "PASS" and head.state == "PASS"):
        return ChangeState.IMPROVED, "; ".join(map(_gate_text, better)) or f"{base.state} before, PASS now"
    if gains:
        return ChangeState.IMPROVED, "; ".join(effect_text(effect) for effect in gains)
    if measured := {gate.name for gate in (*base.gates, *head.gates)} & context.incomparable:
        return ChangeState.NOT_COMPARABLE, f"{', '.join(sorted(measured))}: an input differs"
    if loose := [effect_text(effect) for effect in effects if not is_bounded(effect)]:
        return ChangeState.UNKNOWN, "; ".join(loose) + "; more samples are needed"
    if head.state != "PASS":
        both = f"{head.state} in both" if base.state == head.state else f"{base.state} in base, {head.state} in head"
        return ChangeState.SAME, both
    return ChangeState.SAME, "; ".join(map(effect_text, effects)) or "no gate result and no compared number differs"


def _infra(head: CellResult, context: Context) -> CellChange:
    red, excused = _red(head, context)
    why = f"the machine failed: {head.error}"
    return CellChange(head.id, ChangeState.INFRA, why, red, head.repro, excused=excused)


def _red(head: CellResult, context: Context, passing: bool = False) -> tuple[bool, str]:
    """(whether the cell makes the comparison red, the waiver that covers it). `passing`: red although it passes, by its
    numbers or by what head no longer shows."""
    if head.state not in RED_STATES and not passing:
        return False, ""
    if is_waived(head, context.today) and head.waived is not None:
        return False, f"waived until {head.waived.expiry}: {head.waived.reason}"
    return True, ""


def _acknowledged(path: Sequence[PathChange], base: CellResult, head: CellResult, context: Context) -> str:
    """The reasons of the acknowledgements that cover all rewrites, or "" if any is not covered."""
    signatures = dict.fromkeys(
        [change.signature() for change in path] + [signature(rewrite) for rewrite in new_rewrites(base, head)]
    )
    reasons = [context.acknowledged.reason("rewrite", each) for each in signatures]
    return "; ".join(dict.fromkeys(reasons)) if all(reasons) else ""


def _path_text(path: Sequence[PathChange], base: CellResult, head: CellResult) -> str:
    texts = []
    for change in path:
        new, old = shorten_pair(change.head, change.base, 60)
        texts.append(f"resolves to {change.field}={new} instead of {old}: {change.because}")
    rewrites = [rewrite for rewrite in new_rewrites(base, head) if all(rewrite.reason != c.because for c in path)]
    texts += [f"rewritten, {shorten_rewrite(signature(rewrite))}: {rewrite.reason}" for rewrite in rewrites]
    return "; ".join(texts)


def _gate_text(change: GateChange) -> str:
    return change.signature() + (f": {change.message}" if change.message else "")


def effect_text(effect: Effect) -> str:
    """One effect as text: `acceptance 3.10 -> 2.93 (-5.5 % [-6.9, -4.0], p 0.0005)`."""
    numbers = f"{effect.base:.3f} -> {effect.head:.3f} ({100 * effect.change:+.1f}{UNITS[effect.gate]}"
    p = "" if effect.p_loss is None or effect.p_gain is None else f", p {min(effect.p_loss, effect.p_gain):.2g}"
    if effect.interval is None:
        return f"{effect.gate} {numbers}, {effect.pairing}: no interval{p})"
    low, high = (100 * end for end in effect.interval)
    note = effect.note and f"; {effect.note}"
    return f"{effect.gate} {numbers} [{low:+.1f}, {high:+.1f}]{p}{note})"


def _bound_text(effects: Sequence[Effect]) -> str:
    bounded = [effect for effect in effects if effect.interval is not None]
    return ", ".join(f"{e.gate} loss below {100 * allowed_loss(e):.1f}{UNITS[e.gate]}" for e in bounded)
