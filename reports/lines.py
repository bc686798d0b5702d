"""The cell lines of a report file, and what can be read off them without parsing them whole.

The shortcuts hold for lines in the order of keys that the writer keeps; any other line is parsed whole.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final, NamedTuple, cast

from reports.codec import decode_cell
from reports.schema import CellResult, CellState, Json, ReportError

_FRONT: Final = re.compile(
    rb'\{\s*"kind"\s*:\s*"cell"\s*,\s*"id"\s*:\s*"([^"\\]+)"\s*,\s*'
    rb'"state"\s*:\s*"(PASS|FAIL|NOT MEASURED|INFRA)"\s*,\s*"axes"\s*:\s*(?=\{)'
)
_RESOLVED: Final = re.compile(rb'\s*,\s*"resolved"\s*:\s*(?=\{|null)')
_EXPECT: Final = b'"expect"'
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


def resolved_text(data: bytes, line: Line) -> bytes | None:
    """What should be the JSON of the resolved configuration, or None if only a full parse can tell."""
    after = _after_axes(data, line)
    if after is None:
        return None
    end = data.find(_EXPECT, after.end(), line.end)
    return None if end < 0 else data[after.end() : end].rstrip(b" ,")


def _after_axes(data: bytes, line: Line) -> re.Match[bytes] | None:
    """The key that follows the axes. Axis values are plain, so the first brace closes them."""
    brace = data.find(b"}", line.axes, line.end) if line.axes >= 0 else -1
    return None if brace < 0 else _RESOLVED.match(data, brace + 1, line.end)


def timeless(data: bytes, line: Line) -> tuple[bytes, bytes]:
    """The line around its running time."""
    at = data.rfind(b'"seconds"', line.start, line.end)
    match = _SECONDS.match(data, at, line.end) if at >= 0 else None
    if match is None:
        return data[line.start : line.end], b""
    return data[line.start : at], data[match.end() : line.end]


def parse_cell(file: Path, data: bytes, line: Line) -> CellResult:
    """The record of a line. Raises ReportError with the file and the number of the line."""
    try:
        body = parse_json(data[line.start : line.end])
        if not isinstance(body, dict) or body.get("kind") != "cell":
            raise ReportError("the line is not a cell")
        return decode_cell(body)
    except ReportError as error:
        raise ReportError(f"{_place(file, data, line.start)}: {error}") from error


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
