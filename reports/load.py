"""Reading a report back: whole or not at all, and no faster than its reader needs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping
from itertools import compress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

from specmatrix.reports.codec import decode_header
from specmatrix.reports.collector import paused
from specmatrix.reports.effective import Words
from specmatrix.reports.index import CHANGED, Index, found, told
from specmatrix.reports.lines import (
    Launches,
    Line,
    Parts,
    Text,
    apart,
    assembled,
    axes_text,
    cut,
    parse_cell,
    parse_json,
    parse_launch,
    part,
    plain_entries,
)
from specmatrix.reports.schema import REPORT_FILE, CellResult, CellState, Header, Json, ReportError
from specmatrix.reports.writer import PARTIAL_FILE

# Below this size every line is parsed at load (about 0.5 s per 32 MB); above it a line is parsed when it is first used.
EAGER_BYTES: Final = 32_000_000


class Report:
    """A report on disk: its header, and its cells by id in file order.

    Lines are parsed on demand and kept. `same_lines` compares two reports without parsing, so that 100,000 unchanged
    cells cost no JSON; whatever a caller looks at is parsed and checked, and a broken line raises ReportError with
    its number.
    """

    def __init__(self, path: Path, header: Header, data: Text, index: Index, hits: Mapping[str, int] | None) -> None:
        self.path: Final = path
        self.header: Final = header
        self._data = data
        self._hits = hits
        self._index = index
        self._launches = Launches(data)
        self._parsed: dict[str, CellResult] = {}
        self._axes: dict[str, Mapping[str, Json]] = {}
        self._words: dict[bytes, Words] = {}
        self._values: dict[str, dict[str, str]] = {}

    def __len__(self) -> int:
        return len(self._index.rows)

    def __contains__(self, cell: object) -> bool:
        return cell in self._index.rows

    def __iter__(self) -> Iterator[CellResult]:
        return (self[cell] for cell in self._index.rows)

    def __getitem__(self, cell: str) -> CellResult:
        """The record of the cell `cell`. Raises KeyError for an unknown id, ReportError for a broken line."""
        record = self._parsed.get(cell)
        if record is None:
            record = self._parse(self._line(cell))
            if (record.id, record.state) != (cell, self._index.states[self._index.rows[cell]] or record.state):
                raise ReportError(f"{self.path}: cell {cell!r} is not what the end line says; {CHANGED}")
            self._parsed[cell] = record
        return record

    def confirm(self) -> None:
        """Raise ReportError if a large report's lines are not those that its end line tells. They are all read for it,
        beside other work; until then the end line is believed."""
        try:
            self._index.confirm()
        except ReportError as error:
            raise ReportError(f"{self.path}: {error}") from error

    def _line(self, cell: str) -> Line:
        try:
            return self._index.line(cell)
        except ReportError as error:
            raise ReportError(f"{self.path}, {error}") from error

    def _parse(self, line: Line) -> CellResult:
        return parse_cell(self.path, self._data, line, self._launches.span(line))

    def apart(self, other: Report, cell: str) -> tuple[CellResult, CellResult]:
        """The records of a cell that both reports hold, without the green gates and the witness that both tell in the
        same bytes."""
        mine, theirs = self._parts(cell), other._parts(cell)
        if mine is not None and theirs is not None:
            record, other_record = map(assembled, apart(mine, theirs))
            if record is not None and other_record is not None:
                self._axes[cell], other._axes[cell] = record.axes, other_record.axes
                return record, other_record
        return self[cell], other[cell]

    def _parts(self, cell: str) -> Parts | None:
        line = self._line(cell)
        return cut(self._data, line, self._launches.span(line))

    def ids(self) -> KeysView[str]:
        """All cell ids in file order."""
        return self._index.ids

    def state(self, cell: str) -> CellState:
        """The state of a cell, without its line where that is possible."""
        return self._index.states[self._index.rows[cell]] or self[cell].state

    def red(self) -> list[str]:
        """The ids of all cells that are not PASS, in file order."""
        rows = zip(self._index.rows, self._index.states, strict=True)
        return [cell for cell, state in rows if (state or self[cell].state) != "PASS"]

    def axes(self, cell: str) -> Mapping[str, Json]:
        """The axes of a cell, without the rest of its line where that is possible."""
        known = self._axes.get(cell)
        if known is not None:
            return known
        text = None if cell in self._parsed else axes_text(self._data, self._line(cell))
        try:
            return self[cell].axes if text is None else part(text)
        except ReportError:
            return self[cell].axes

    def launch(self, cell: str) -> tuple[bytes, Mapping[str, Json] | None]:
        """The resolved configuration of a cell, and a key that cells of the same launch share."""
        text = self._launches.text(self._line(cell))
        launch = None if text is None else parse_launch(text)
        return (cell.encode(), self[cell].resolved) if text is None or launch is None else (text, launch.resolved)

    def running(self, cells: Iterable[str]) -> Iterator[tuple[str, bytes, Mapping[str, Json]]]:
        """(cell, key, resolved configuration) of those of `cells` that ran and passed; see `launch`."""
        text_of = self._launches.text
        key, resolved = b"", None
        for cell in cells:
            if self.state(cell) == "PASS":
                text = text_of(self._line(cell))
                if text is None or text is not key:
                    key, resolved = self.launch(cell)
                if resolved is not None:
                    yield cell, key, resolved

    def values(self, cell: str) -> dict[str, str]:
        """The effective axis values of a cell, whatever became of it."""
        values = self._values.get(cell)
        if values is None:
            key, resolved = self.launch(cell)
            if key not in self._words:
                self._words[key] = Words(resolved or {})
            values = self._values[cell] = self._words[key].of(self.axes(cell))
        return values

    def effective(self, cell: str) -> dict[str, str] | None:
        """The effective axis values of a cell that ran and passed, else None."""
        return None if self.state(cell) != "PASS" or self.launch(cell)[1] is None else self.values(cell)

    def entries(self, cell: str) -> frozenset[bytes] | None:
        """The entries of a cell's axes (`reports.lines.entry`), or None if only a parse can tell."""
        text = axes_text(self._data, self._line(cell))
        return None if text is None else plain_entries(text)

    def hits(self) -> Mapping[str, int]:
        """The sum of the cells' witnesses: as the end line tells, else (in older reports) counted."""
        if self._hits is None:
            total: Counter[str] = Counter()
            for cell in self:
                total.update(cell.witness)
            self._hits = total
        return self._hits

    def same_lines(self, other: Report, cells: Iterable[str]) -> list[str]:
        """Those of `cells` that both reports hold with the same line, running time aside; of large reports, as their
        end lines tell."""
        wanted = list(cells)
        return list(compress(wanted, self._index.same(other._index, wanted)))


def load(path: Path | str) -> Report:
    """Read the report `path`, a file or a directory that holds `report.jsonl`.

    Raises ReportError, one sentence, if it is missing, empty, cut off, from another schema, holds a broken line or a
    cell twice, or has not as many cells as its end line says. In reports above `EAGER_BYTES` a line that is broken
    inside is reported when the line is first used.
    """
    file = _find(Path(path))
    return _report(file, _read(file))


def _read(file: Path) -> Text:
    """A small report as bytes; a large one is mapped, so that the disk's cache is not copied. A writer never changes a
    finished report: it puts another in its place."""
    try:
        size = file.stat().st_size
        if size <= EAGER_BYTES:
            return file.read_bytes()
        with file.open("rb") as opened:
            return mmap(opened.fileno(), size, access=ACCESS_READ)
    except OSError as error:
        raise ReportError(f"cannot read {file}: {error.strerror}") from error


@paused()
def _report(file: Path, data: Text) -> Report:
    if not data:
        raise ReportError(f"{file} is empty; the run that wrote it did not finish")
    body_start = data.find(b"\n") + 1 or len(data)
    try:
        header = decode_header(parse_json(data[:body_start]))
    except ReportError as error:
        raise ReportError(f"{file}, line 1: {error}") from error
    body_end, end = _read_end(file, data)
    # What is parsed whole needs nobody to tell what it holds.
    index = None if len(data) <= EAGER_BYTES else told(data, end.get("index"), body_start, body_end)
    hits, declared = end.get("probes"), end["cells"]
    if index is None:
        index = found(file, data, body_start, body_end)
    report = Report(file, header, data, index, hits if isinstance(hits, dict) else None)
    if declared != len(report):
        raise ReportError(f"{file} has {len(report)} cells, and its end line says {declared!r}")
    if len(data) <= EAGER_BYTES:
        for _ in report:
            pass
    return report


def _find(path: Path) -> Path:
    if not path.is_dir():
        if path.name == PARTIAL_FILE:
            raise ReportError(f"{path} is what came of a run that did not finish, and no report")
        if path.exists():
            return path
        raise ReportError(f"{path} does not exist; give a report file or a directory with {REPORT_FILE}")
    whole = (path / REPORT_FILE).exists()
    if (path / PARTIAL_FILE).exists():
        sentence = f"{path} has {'' if whole else 'only '}{PARTIAL_FILE}; the run that wrote it did not finish"
        raise ReportError(f"{sentence}; name {path / REPORT_FILE} to read the one before it" if whole else sentence)
    if whole:
        return path / REPORT_FILE
    raise ReportError(f"{path} has no {REPORT_FILE}; it is not the directory of a finished run")


def _read_end(file: Path, data: Text) -> tuple[int, Mapping[str, Json]]:
    """Offset of the end line, and what it says: the number of cells, and in newer reports the hits of probes and where
    the cells' lines lie. Raises ReportError if the last line is no end."""
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    if data[-1:] == b"\n" and start:
        try:
            end = json.loads(data[start:])
        except ValueError:
            end = None
        if isinstance(end, dict) and end.get("kind") == "end" and "cells" in end:
            return start, end
    raise ReportError(f"{file} has no end line; it was cut off while it was written or copied")
