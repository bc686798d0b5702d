"""The JSON form of the records in `schema`: one line per record, strict in both directions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import NoneType
from typing import Final, NamedTuple

from specmatrix.reports.schema import (
    CELL_KEYS,
    CELL_STATES,
    EXPECTATIONS,
    GATE_STATES,
    SCHEMA,
    CellResult,
    CellState,
    Expect,
    GateResult,
    Header,
    Json,
    ProbeDemand,
    Reason,
    ReportError,
    Rewrite,
    Waiver,
    WaiverRule,
)
from specmatrix.reports.shape import ANY, NUMBER, Shape

_HEADER: Final = Shape(
    {
        "tier": str, "stage": str, "seed": int, "created": str, "commit": str, "dirty": bool, "versions": dict,
        "host": dict, "lock_hash": str, "data_hash": str, "zoo_hash": str, "thresholds": dict, "waivers": list,
        "probes": (dict, NoneType),
    }
)  # fmt: skip
_WAIVER_RULE: Final = Shape({"cells": str, "reason": str, "expiry": str})
_DEMAND: Final = Shape({"hit": list, "zero": dict, "cells": int})
_LAUNCH: Final = Shape(
    {
        "resolved": (dict, NoneType), "expect": str, "tier": str, "stage": str, "launch_hash": (str, NoneType),
        "requested": dict, "reasons": list, "rewrites": list,
    }
)  # fmt: skip
_CELL: Final = Shape(
    {
        "id": str, "state": str, "axes": dict, "waived": (dict, NoneType), "witness": dict, "gates": list,
        "error": (str, NoneType), "repro": str, "seconds": NUMBER,
    }
)  # fmt: skip
_REASON: Final = Shape({"field": str, "value": ANY, "because": str})
_REWRITE: Final = Shape({"field": str, "asked": ANY, "got": ANY, "reason": str})
_WAIVER: Final = Shape({"reason": str, "expiry": str})
_GATE: Final = Shape({"name": str, "state": str, "numbers": dict, "interval": (list, NoneType), "message": str})


def encode_header(header: Header) -> str:
    """The header line, without the newline."""
    body = {"schema": SCHEMA, "kind": "header"} | {field.name: getattr(header, field.name) for field in fields(header)}
    body["waivers"] = [_as_dict(rule) for rule in header.waivers]
    body["probes"] = None if header.probes is None else _as_dict(header.probes)
    return _dump(body, "the header")


def encode_cell(cell: CellResult) -> str:
    """The line of one cell, without the newline. Raises ReportError for a number that is not finite or not JSON."""
    body: dict[str, Json] = {"kind": "cell"} | {key: getattr(cell, key) for key in CELL_KEYS}
    body["reasons"] = [_as_dict(reason) for reason in cell.reasons]
    body["rewrites"] = [_as_dict(rewrite) for rewrite in cell.rewrites]
    body["waived"] = None if cell.waived is None else _as_dict(cell.waived)
    body["gates"] = [_as_dict(gate) for gate in cell.gates]
    body["seconds"] = round(cell.seconds, 6) if math.isfinite(cell.seconds) else cell.seconds
    return _dump(body, f"cell {cell.id!r}")


def encode_end(cells: int, probes: Mapping[str, int], index: Mapping[str, Json]) -> str:
    """The end line, without the newline. probes: the sum of the cells' witnesses; index: where the cells' lines lie."""
    return _dump({"kind": "end", "cells": cells, "probes": probes, "index": index}, "the end line")


def _as_dict(record: Reason | Rewrite | Waiver | WaiverRule | ProbeDemand | GateResult) -> dict[str, Json]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _dump(body: Mapping[str, Json], what: str) -> str:
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ReportError(
            f"{what} cannot be written as JSON: {error}; allowed are text, finite numbers and lists"
        ) from error


def decode_header(body: Json) -> Header:
    """The header of a parsed first line. Raises ReportError, one sentence that leaves out the file and the line."""
    if not isinstance(body, dict) or body.get("kind") != "header":
        raise ReportError("the first line is not a report header")
    if body.get("schema") != SCHEMA:
        raise ReportError(f"the report has schema {body.get('schema')!r}, and this version reads schema {SCHEMA}")
    values = _HEADER.read({"thresholds": {}, "waivers": [], "probes": None} | body, "the header")
    rules = [_WAIVER_RULE.read(rule, f"waivers[{i}] of the header") for i, rule in enumerate(values[-2])]
    probes = None if values[-1] is None else _decode_demand(values[-1])
    return replace(Header(*values), waivers=tuple(WaiverRule(*rule) for rule in rules), probes=probes)


def _decode_demand(body: Json) -> ProbeDemand:
    hit, zero, cells = _DEMAND.read(body, "probes of the header")
    return ProbeDemand(tuple(map(str, hit)), zero, cells)


class Launch(NamedTuple):
    """What the cells of one launch have in common, in the order of a line's keys."""

    resolved: Mapping[str, Json] | None
    expect: Expect
    tier: str
    stage: str
    launch_hash: str | None
    requested: Mapping[str, Json]
    reasons: tuple[Reason, ...]
    rewrites: tuple[Rewrite, ...]


def decode_launch(body: Json, what: str) -> Launch:
    """The launch of a parsed line, or of that part of it. Raises ReportError, one sentence that names `what`."""
    resolved, expect, tier, stage, launch_hash, requested, reasons, rewrites = _LAUNCH.read(body, what)
    _choice(what, "expect", expect, EXPECTATIONS)
    return Launch(
        resolved, expect, tier, stage, launch_hash, requested,
        tuple(Reason(*_REASON.read(each, f"a reason of {what}")) for each in reasons),
        tuple(Rewrite(*_REWRITE.read(each, f"a rewrite of {what}")) for each in rewrites),
    )  # fmt: skip


class Own(NamedTuple):
    """What a cell's line says beside its launch; `gates` as parsed."""

    id: str
    state: CellState
    axes: Mapping[str, Json]
    waived: Waiver | None
    witness: Mapping[str, int]
    gates: Sequence[Json]
    error: str | None
    repro: str
    seconds: float


def decode_own(body: Json) -> Own:
    """A cell's own part of a parsed line. Raises ReportError, one sentence that leaves out the file and the line."""
    what = _name(body)
    name, state, axes, waived, witness, gates, error, repro, seconds = _CELL.read(body, what)
    _choice(what, "state", state, CELL_STATES)
    waiver = None if waived is None else Waiver(*_WAIVER.read(waived, f"the waiver of {what}"))
    return Own(name, state, axes, waiver, witness, gates, error, repro, seconds)


def joined(
    own: Own, launch: Launch, witness: Mapping[str, int], gates: tuple[GateResult, ...], seconds: float
) -> CellResult:
    """The cell of parts that were decoded one by one."""
    resolved, expect, tier, stage, launch_hash, requested, reasons, rewrites = launch
    name, state, axes, waived, _, _, error, repro, _ = own
    return CellResult(
        name, state, axes, resolved, expect, tier, stage, launch_hash, requested, repro, reasons, rewrites, waived,
        witness, gates, error, seconds,
    )  # fmt: skip


def decode_cell(body: Json) -> CellResult:
    """The cell of a parsed line. Raises ReportError, one sentence that leaves out the file and the line."""
    own, what = decode_own(body), _name(body)
    gates = tuple(decode_gate(each, f"a gate of {what}") for each in own.gates)
    return joined(own, decode_launch(body, what), own.witness, gates, own.seconds)


def _name(body: Json) -> str:
    return f"cell {body.get('id') if isinstance(body, dict) else None!r}"


def decode_gate(body: Json, what: str) -> GateResult:
    """One gate of a parsed line. Raises ReportError, one sentence that names `what`."""
    name, state, numbers, interval, message = _GATE.read(body, what)
    _choice(what, "state", state, GATE_STATES)
    if interval is not None:
        if len(interval) != 2 or not all(isinstance(end, int | float) for end in interval):
            raise ReportError(f"{what} has the interval {interval!r}, allowed are two numbers or null")
        interval = tuple(interval)
    return GateResult(name, state, numbers, interval, message)


def _choice(what: str, key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ReportError(f"{what} has {key} = {value!r:.40}, allowed are {', '.join(allowed)}")
