"""The JSON form of the records in `schema`: one line per record, strict in both directions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import itemgetter

from reports.schema import (
    CELL_KEYS,
    CELL_STATES,
    EXPECTATIONS,
    GATE_STATES,
    SCHEMA,
    CellResult,
    GateResult,
    Header,
    Json,
    Reason,
    ReportError,
    Rewrite,
    Waiver,
    WaiverRule,
)

_GATE = itemgetter("name", "state", "numbers", "interval", "message")


def encode_header(header: Header) -> str:
    """The header line, without the newline."""
    body = {"schema": SCHEMA, "kind": "header"} | {field.name: getattr(header, field.name) for field in fields(header)}
    body["waivers"] = [_as_dict(rule) for rule in header.waivers]
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


def encode_end(cells: int) -> str:
    """The end line, without the newline."""
    return _dump({"kind": "end", "cells": cells}, "the end line")


def _as_dict(record: Reason | Rewrite | Waiver | WaiverRule | GateResult) -> dict[str, Json]:
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
    row = _Fields(body, "the header")
    waivers = row.rows("waivers", optional=True)
    rules = [_Fields(rule, f"waivers[{i}] of the header") for i, rule in enumerate(waivers)]
    return Header(
        tier=row.text("tier"),
        stage=row.text("stage"),
        seed=row.take("seed", int),
        created=row.text("created"),
        commit=row.text("commit"),
        dirty=row.take("dirty", bool),
        versions=row.mapping("versions"),
        host=row.mapping("host"),
        lock_hash=row.text("lock_hash"),
        data_hash=row.text("data_hash"),
        zoo_hash=row.text("zoo_hash"),
        thresholds=row.take("thresholds", dict) if "thresholds" in body else {},
        waivers=tuple(WaiverRule(rule.text("cells"), rule.text("reason"), rule.text("expiry")) for rule in rules),
    )


def decode_cell(body: Json) -> CellResult:
    """The cell of a parsed line. Raises ReportError, one sentence that leaves out the file and the line."""
    name = body.get("id") if isinstance(body, dict) else None
    row = _Fields(body, f"cell {name!r}")
    waived = row.optional("waived", dict)
    return CellResult(
        id=row.text("id"),
        state=row.choice("state", CELL_STATES),
        axes=row.mapping("axes"),
        resolved=row.optional("resolved", dict),
        expect=row.choice("expect", EXPECTATIONS),
        tier=row.text("tier"),
        stage=row.text("stage"),
        launch_hash=row.optional("launch_hash", str),
        requested=row.mapping("requested"),
        repro=row.text("repro"),
        reasons=tuple(_decode_reason(each, row.what) for each in row.rows("reasons")),
        rewrites=tuple(_decode_rewrite(each, row.what) for each in row.rows("rewrites")),
        waived=None if waived is None else _decode_waiver(waived, row.what),
        witness=row.mapping("witness"),
        gates=tuple(_decode_gate(each, row.what) for each in row.rows("gates")),
        error=row.optional("error", str),
        seconds=row.take("seconds", (int, float)),
    )


def _decode_reason(body: Json, owner: str) -> Reason:
    row = _Fields(body, f"a reason of {owner}")
    return Reason(row.text("field"), row.any("value"), row.text("because"))


def _decode_rewrite(body: Json, owner: str) -> Rewrite:
    row = _Fields(body, f"a rewrite of {owner}")
    return Rewrite(row.text("field"), row.any("asked"), row.any("got"), row.text("reason"))


def _decode_waiver(body: Json, owner: str) -> Waiver:
    row = _Fields(body, f"the waiver of {owner}")
    return Waiver(row.text("reason"), row.text("expiry"))


def _decode_gate(body: Json, owner: str) -> GateResult:
    """A gate; sound ones, of which a report has many, pass one test, and the rest finds the words for what is
    wrong."""
    try:
        name, state, numbers, interval, message = _GATE(body)
    except (KeyError, TypeError):
        return _explained_gate(body, owner)
    if type(name) is type(message) is str and state in GATE_STATES and type(numbers) is dict and interval is None:
        return GateResult(name, state, numbers, None, message)
    return _explained_gate(body, owner)


def _explained_gate(body: Json, owner: str) -> GateResult:
    row = _Fields(body, f"a gate of {owner}")
    interval = row.optional("interval", list)
    if interval is not None and (len(interval) != 2 or not all(isinstance(end, int | float) for end in interval)):
        raise ReportError(f"a gate of {owner} has the interval {interval!r}, allowed are two numbers or null")
    return GateResult(
        name=row.text("name"),
        state=row.choice("state", GATE_STATES),
        numbers=row.mapping("numbers"),
        interval=None if interval is None else (interval[0], interval[1]),
        message=row.text("message"),
    )


class _Fields:
    """Typed access to one JSON object; each failure is one sentence that names the object, the key and the value."""

    __slots__ = ("body", "what")

    def __init__(self, body: Json, what: str) -> None:
        if not isinstance(body, dict):
            raise ReportError(f"{what} is {body!r:.40}, allowed is a JSON object")
        self.body = body
        self.what = what

    def any(self, key: str) -> Json:
        try:
            return self.body[key]
        except KeyError:
            raise ReportError(f"{self.what} has no {key!r}") from None

    def take(self, key: str, kind: type | tuple[type, ...]) -> Json:
        value = self.any(key)
        # JSON has no integers that are booleans; Python's bool is an int.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            allowed = " or ".join(k.__name__ for k in kinds)
            raise ReportError(f"{self.what} has {key} = {value!r:.40}, allowed is {allowed}")
        return value

    def text(self, key: str) -> str:
        value: str = self.take(key, str)
        return value

    def mapping(self, key: str) -> dict[str, Json]:
        value: dict[str, Json] = self.take(key, dict)
        return value

    def rows(self, key: str, optional: bool = False) -> list[Json]:
        value: list[Json] = [] if optional and key not in self.body else self.take(key, list)
        return value

    def optional(self, key: str, kind: type) -> Json:
        return None if self.any(key) is None else self.take(key, kind)

    def choice(self, key: str, allowed: Sequence[str]) -> Json:
        value = self.any(key)
        if value not in allowed:
            raise ReportError(f"{self.what} has {key} = {value!r:.40}, allowed are {', '.join(allowed)}")
        return value
