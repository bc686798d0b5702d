"""Inputs that must be equal for results to be comparable, and changes of thresholds and waivers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from specmatrix.reports.compare.cell_state import Mismatch, RuleChange
from specmatrix.reports.schema import GATES, REFERENCE, Header, Json
from specmatrix.reports.speed import SPEED

NUMERIC: Final = ("acceptance", "accuracy")
# Gates whose result depends on prompts and weights; the others depend on the engine only.
CONTENT_DEPENDENT: Final = ("lossless", "distribution", "finish", "acceptance", "accuracy", SPEED)


class Input(NamedTuple):
    """An input of a run, the gates that a difference makes incomparable, and what a difference means."""

    name: str
    read: Callable[[Header], Json]
    gates: tuple[str, ...]
    why: str


INPUTS: Final = (
    Input("subject", lambda h: h.subject.name, GATES, "another engine answered, so no result can be compared"),
    Input("data", lambda h: h.data_hash, CONTENT_DEPENDENT, "the prompts differ, so their results cannot be compared"),
    Input("zoo", lambda h: h.zoo_hash, CONTENT_DEPENDENT, "the models differ, so their results cannot be compared"),
    Input("gpus", lambda h: sorted({*map(str, h.host.get("gpus") or ())}), NUMERIC, "other GPUs round differently"),
    Input("seed", lambda h: h.seed, (*NUMERIC, "distribution", SPEED), "other seeds draw other samples"),
    Input("files", lambda h: ", ".join(h.files) or "none", (), "the user's plug-ins, algorithm or subject are others"),
    Input("lock", lambda h: h.lock_hash, (), "cells are matched by their id; see NEW and LOST"),
    Input("tier", lambda h: h.tier, (), "each tier has its own cells; see NEW and LOST"),
    Input("stage", lambda h: h.stage, (), "each stage has its own cells; see NEW and LOST"),
    Input("cpu", lambda h: h.host.get("cpu"), (), "running times cannot be compared"),
)  # fmt: skip


def mismatches(base: Header, head: Header) -> tuple[Mismatch, ...]:
    """Every input and version that differs, the most important first."""
    rows = [(row.name, row.read(base), row.read(head), row.gates, row.why) for row in INPUTS]
    why = "a version difference is part of the comparison"
    if base.subject.name == head.subject.name != REFERENCE:
        rows.append((base.subject.name, base.subject.version, head.subject.version, (), why))
    for name in sorted({*base.versions, *head.versions}):
        rows.append((name, base.versions.get(name), head.versions.get(name), (), why))
    for side, header in (("base", base), ("head", head)):
        if header.dirty:
            rows.append((f"{side} checkout", "clean", "dirty", (), f"{side} ran with uncommitted changes"))
        if header.fault:
            rows.append((f"{side} fault", "none", header.fault, (), f"{side} ran with a planted fault"))
    return tuple(Mismatch(name, _text(a), _text(b), gates, why) for name, a, b, gates, why in rows if a != b)


def incomparable_gates(found: tuple[Mismatch, ...]) -> frozenset[str]:
    """The gates that cannot be compared in any cell."""
    return frozenset(gate for mismatch in found for gate in mismatch.gates)


def threshold_changes(base: Header, head: Header) -> tuple[RuleChange, ...]:
    """Gate thresholds that were added, removed or changed."""
    return _changes(_thresholds(base), _thresholds(head))


def waiver_changes(base: Header, head: Header) -> tuple[RuleChange, ...]:
    """Waivers that were added, removed, or changed in reason or expiry."""
    return _changes(_waivers(base), _waivers(head))


def _waivers(header: Header) -> dict[str, str]:
    """What each waiver covers, and its terms."""
    return {
        f"{rule.gate} of {rule.cells}{rule.message and f', {rule.message!r}'}"
        + (f" ({rule.subject} {rule.versions})" if rule.subject != REFERENCE else ""):
        f"{rule.kind} until {rule.expiry}: {rule.reason}"
        for rule in header.waivers
    }  # fmt: skip


def _thresholds(header: Header) -> dict[str, str]:
    return {f"{gate}.{name}": _text(value) for gate, row in header.thresholds.items() for name, value in row.items()}


def _changes(old: dict[str, str], new: dict[str, str]) -> tuple[RuleChange, ...]:
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return tuple(RuleChange(name, old.get(name, ""), new.get(name, "")) for name in names)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)
