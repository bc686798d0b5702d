"""Reading a report back: whole or not at all, and no faster than its reader needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

from reports.codec import decode_cell, decode_header
from reports.effective import effective
from reports.schema import CELL_STATES, REPORT_FILE, CellResult, CellState, Header, Json, ReportError
from reports.writer import PARTIAL_FILE

# Below this size every line is parsed at load (about 0.3 s per 32 MB); above it a line is parsed when it is first used.
EAGER_BYTES: Final = 32_000_000

_CELL_START: Final = re.compile(rb'\{\s*"kind"\s*:\s*"cell"\s*,\s*"id"\s*:\s*"([^"\\]+)"')
_FRONT: Final = re.compile(rb'\{"kind":"cell","id":"[^"\\]+","state":"([A-Z ]+)","axes":')
_RESOLVED: Final = b',"resolved":'
_EXPECT: Final = b',"expect":'
_SECONDS: Final = re.compile(rb'"seconds"\s*:\s*[0-9.eE+-]+')
_Record = TypeVar("_Record")


class Report:
    """A report on disk: its header, and its cells by id in file order.

    Lines are parsed on demand and kept. `same_line` compares two reports without parsing, so that 100,000 unchanged
    cells cost no JSON; whatever a caller looks at is parsed and checked, and a broken line raises ReportError with
    its number.
    """

    def __init__(self, path: Path, header: Header, data: bytes, spans: dict[str, tuple[int, int]]) -> None:
        self.path: Final = path
        self.header: Final = header
        self._data = data
        self._spans = spans
        self._parsed: dict[str, CellResult] = {}
        # Cells of one launch share their resolved configuration byte for byte.
        self._resolved: dict[bytes, dict[str, Json] | None] = {}

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, cell: object) -> bool:
        return cell in self._spans

    def __iter__(self) -> Iterator[CellResult]:
        return (self[cell] for cell in self._spans)

    def __getitem__(self, cell: str) -> CellResult:
        """The record of the cell `cell`. Raises KeyError for an unknown id, ReportError for a broken line."""
        record = self._parsed.get(cell)
        if record is None:
            start, end = self._spans[cell]
            record = self._parsed[cell] = _parse_cell(self._data[start:end], self._where(start))
        return record

    def ids(self) -> list[str]:
        """All cell ids in file order."""
        return list(self._spans)

    def state(self, cell: str) -> CellState:
        """The state of a cell, from the front of its line where that is enough."""
        match = _FRONT.match(self._data, *self._spans[cell])
        state = match[1].decode() if match is not None else ""
        return next((known for known in CELL_STATES if known == state), None) or self[cell].state

    def effective(self, cell: str) -> dict[str, str] | None:
        """The effective axis values of a cell that ran and passed, else None."""
        if self.state(cell) != "PASS":
            return None
        axes, resolved = self._front(cell) or (self[cell].axes, self[cell].resolved)
        return None if resolved is None else effective(axes, resolved)

    def rewrites_something(self, cell: str) -> bool:
        """False if the line shows without parsing that the cell has no rewrite."""
        start, end = self._spans[cell]
        return self._data.find(b'"rewrites":[]', start, end) < 0

    def same_line(self, other: Report, cell: str) -> bool:
        """True if both reports hold the cell with the same bytes, running time aside."""
        start, end = self._spans[cell]
        other_start, other_end = other._spans[cell]
        return _timeless(self._data, start, end) == _timeless(other._data, other_start, other_end)

    def _front(self, cell: str) -> tuple[Mapping[str, Json], Mapping[str, Json] | None] | None:
        """Axes and resolved configuration from the front of a line, or None if its keys have another order."""
        start, end = self._spans[cell]
        match = _FRONT.match(self._data, start, end)
        resolved_at = self._data.find(_RESOLVED, start, end)
        expect_at = self._data.find(_EXPECT, resolved_at, end)
        if match is None or resolved_at < 0 or expect_at < 0:
            return None
        text = self._data[resolved_at + len(_RESOLVED) : expect_at]
        try:
            axes = json.loads(self._data[match.end() : resolved_at])
            if text not in self._resolved:
                self._resolved[text] = json.loads(text)
        except ValueError:
            return None
        return axes, self._resolved[text]

    def _where(self, start: int) -> str:
        return _place(self.path, self._data, start)


def load(path: Path | str) -> Report:
    """Read the report `path`, a file or a directory that holds `report.jsonl`.

    Raises ReportError, one sentence, if it is missing, empty, cut off, from another schema, holds a broken line or a
    cell twice, or has not as many cells as its end line says. In reports above `EAGER_BYTES` a line that is broken
    inside is reported when the line is first used.
    """
    file = _find(Path(path))
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ReportError(f"cannot read {file}: {error.strerror}") from error
    if not data:
        raise ReportError(f"{file} is empty; the run that wrote it did not finish")
    body_start = data.find(b"\n") + 1 or len(data)
    header = _in_file(decode_header, _json(data[:body_start], f"{file}, line 1"), f"{file}, line 1")
    body_end = _check_end(file, data)
    report = Report(file, header, data, _index(file, data, body_start, body_end))
    declared = _json(data[body_end:], str(file))["cells"]
    if declared != len(report):
        raise ReportError(f"{file} has {len(report)} cells, and its end line says {declared!r}")
    if len(data) <= EAGER_BYTES:
        for _ in report:
            pass
    return report


def _find(path: Path) -> Path:
    if not path.is_dir():
        if path.exists():
            return path
        raise ReportError(f"{path} does not exist; give a report file or a directory with {REPORT_FILE}")
    if (path / REPORT_FILE).exists():
        return path / REPORT_FILE
    if (path / PARTIAL_FILE).exists():
        raise ReportError(f"{path} has only {PARTIAL_FILE}; the run that wrote it did not finish")
    raise ReportError(f"{path} has no {REPORT_FILE}; it is not the directory of a finished run")


def _check_end(file: Path, data: bytes) -> int:
    """Offset of the end line. Raises ReportError if the last line is not one."""
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    if data.endswith(b"\n") and start:
        try:
            end = json.loads(data[start:])
        except ValueError:
            end = None
        if isinstance(end, dict) and end.get("kind") == "end" and "cells" in end:
            return start
    raise ReportError(f"{file} has no end line; it was cut off while it was written or copied")


def _index(file: Path, data: bytes, start: int, stop: int) -> dict[str, tuple[int, int]]:
    """Cell id -> span of its line."""
    spans: dict[str, tuple[int, int]] = {}
    while start < stop:
        end = data.find(b"\n", start)
        match = _CELL_START.match(data, start, end)
        if match is not None and data[end - 1] == 125:  # "}"
            name = match[1].decode()
        else:
            name = _parse_cell(data[start:end], _place(file, data, start)).id
        if name in spans:
            raise ReportError(f"{_place(file, data, start)}: cell {name!r} is in the report already")
        spans[name] = (start, end)
        start = end + 1
    return spans


def _parse_cell(line: bytes, where: str) -> CellResult:
    body = _json(line, where)
    if not isinstance(body, dict) or body.get("kind") != "cell":
        raise ReportError(f"{where}: the line is not a cell")
    return _in_file(decode_cell, body, where)


def _timeless(data: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    at = data.rfind(b'"seconds"', start, end)
    match = _SECONDS.match(data, at, end) if at >= 0 else None
    return (data[start:end], b"") if match is None else (data[start:at], data[match.end() : end])


def _place(file: Path, data: bytes, start: int) -> str:
    newlines = data.count(b"\n", 0, start)
    return f"{file}, line {newlines + 1}"


def _json(line: bytes, where: str) -> Json:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ReportError(f"{where} is broken at column {error.colno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{where} is broken: it is not UTF-8 text") from error


def _in_file(decode: Callable[[Json], _Record], body: Json, where: str) -> _Record:
    try:
        return decode(body)
    except ReportError as error:
        raise ReportError(f"{where}: {error}") from error
