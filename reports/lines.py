"""The cell lines of a report file, and what can be read off them without parsing them whole.

The shortcuts hold for lines in the order of keys that the writer keeps; any other line is parsed whole. Quotes inside a
JSON text are escaped, so `"gates":` is always a key; where it is one of a nested object, what is cut there is no JSON.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, cast

from reports.codec import Launch, decode_cell, decode_gate, decode_launch
from reports.schema import CellResult, CellState, GateResult, Json, ReportError

_FRONT: Final = re.compile(
    rb'\{\s*"kind"\s*:\s*"cell"\s*,\s*"id"\s*:\s*"([^"\\]+)"\s*,\s*'
    rb'"state"\s*:\s*"(PASS|FAIL|NOT MEASURED|INFRA)"\s*,\s*"axes"\s*:\s*(?=\{)'
)
# The keys from the first to before the second are what the cells of a launch share.
_LAUNCH: Final = re.compile(rb'\s*,\s*(?="resolved")')
_WAIVED: Final = b'"waived":'
_GATES: Final = b'"gates":['
_GATES_END: Final = b'],"error":'
_NEXT_GATE: Final = b"},{"
_SECONDS: Final = re.compile(rb'"seconds"\s*:\s*[0-9.eE+-]+')


class Line(NamedTuple):
    """Where a cell's line lies in the file, in bytes; `axes` is the offset of its axes, or -1 in another order of
    keys."""

    start: int
    end: int
    axes: int
    state: CellState | None


def cell_lines(file: Path, data: bytes, start: int, stop: int) -> dict[str, Line]:
    """Cell id -> line. Raises ReportError for a cell that comes twice, or a line that does not even look like a
    cell."""
    lines: dict[str, Line] = {}
    while start < stop:
        end = data.find(b"\n", start)
        match = _FRONT.match(data, start, end)
        if match is not None and data.endswith(b"}", start, end):
            name = match[1].decode()
            line = Line(start, end, match.end(), cast(CellState, match[2].decode()))
        else:
            line = Line(start, end, -1, None)
            name = parse_cell(file, data, line).id
        if name in lines:
            raise ReportError(f"{_place(file, data, start)}: cell {name!r} is in the report already")
        lines[name] = line
        start = end + 1
    return lines


def axes_text(data: bytes, line: Line) -> bytes | None:
    """What should be the JSON of the axes, or None if only a full parse can tell."""
    after = _after_axes(data, line)
    return None if after is None else data[line.axes : after.start()]


def launch_span(data: bytes, line: Line) -> tuple[int, int] | None:
    """The part of a line that the cells of one launch share, or None if only a full parse can tell."""
    after = _after_axes(data, line)
    end = -1 if after is None else data.find(_WAIVED, after.end(), line.end)
    return None if after is None or end < 0 else (after.end(), end)


def _after_axes(data: bytes, line: Line) -> re.Match[bytes] | None:
    """The key that follows the axes. Axis values are plain, so the first brace closes them."""
    brace = data.find(b"}", line.axes, line.end) if line.axes >= 0 else -1
    return None if brace < 0 else _LAUNCH.match(data, brace + 1, line.end)


def timeless(data: bytes, line: Line) -> tuple[bytes, bytes]:
    """The line around its running time."""
    at = data.rfind(b'"seconds"', line.start, line.end)
    match = _SECONDS.match(data, at, line.end) if at >= 0 else None
    if match is None:
        return data[line.start : line.end], b""
    return data[line.start : at], data[match.end() : line.end]


@lru_cache(maxsize=1 << 14)
def parse_launch(text: bytes) -> Launch | None:
    """The launch of a `launch_span`, or None if that is no launch by itself: then the whole line has to be parsed."""
    try:
        return decode_launch(parse_json(b"{%s}" % text.rstrip(b" ,")), "the launch")
    except ReportError:
        return None


def parse_cell(file: Path, data: bytes, line: Line) -> CellResult:
    """The record of a line. Raises ReportError with the file and the number of the line."""
    try:
        return _assembled(data, line) or _whole(data[line.start : line.end])
    except ReportError as error:
        raise ReportError(f"{_place(file, data, line.start)}: {error}") from error


def _assembled(data: bytes, line: Line) -> CellResult | None:
    """The record from parts that many lines share, each parsed once; None if only a full parse can tell."""
    span = launch_span(data, line)
    first = -1 if span is None else data.find(_GATES, span[1], line.end)
    last = data.rfind(_GATES_END, first, line.end)
    launch = None if span is None or min(first, last) < 0 else parse_launch(data[span[0] : span[1]])
    if span is None or launch is None:
        return None
    first += len(_GATES)
    own = data[line.start : span[0]] + data[span[1] : first] + data[last : line.end]
    try:
        gates = tuple(map(_parse_gate, data[first + 1 : last - 1].split(_NEXT_GATE)) if first < last else ())
        return decode_cell(parse_json(own), launch, gates)
    except ReportError:
        return None


@lru_cache(maxsize=1 << 16)
def _parse_gate(text: bytes) -> GateResult:
    return decode_gate(parse_json(b"{%s}" % text), "a gate")


def _whole(text: bytes) -> CellResult:
    body = parse_json(text)
    if not isinstance(body, dict) or body.get("kind") != "cell":
        raise ReportError("the line is not a cell")
    return decode_cell(body)


def parse_json(text: bytes) -> Json:
    """Parsed JSON. Raises ReportError, which leaves out the file and the line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ReportError(f"broken at column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ReportError("broken, it is not UTF-8 text") from error


def _place(file: Path, data: bytes, start: int) -> str:
    newlines = data.count(b"\n", 0, start)
    return f"{file}, line {newlines + 1}"
