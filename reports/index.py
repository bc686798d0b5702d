"""Where the lines of a report's cells lie: as its end line tells, or found by going through the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from zlib import crc32

from specmatrix.reports.lines import Line, Text, front, parse_cell, place, same_but_for_time, without_time
from specmatrix.reports.schema import CellResult, CellState, Json, ReportError

_LETTERS: Final[dict[CellState, str]] = {"PASS": "P", "FAIL": "F", "NOT MEASURED": "N", "INFRA": "I"}
_STATES: Final = {letter: state for state, letter in _LETTERS.items()}
# Hexadecimal digits of a fingerprint: 64 bits, for at most a million lines.
PRINT: Final = 16
# Two reports that are summed at once would take two cores from whoever compares them.
_ONE: Final = Lock()
CHANGED: Final = "the report was changed after it was written"


class IndexWriter:
    """Collects what the end line tells of the cells' lines, in the order of the file.

    ids. lengths: bytes, newline included. states: a letter each. prints: a fingerprint each of everything in front of
    the running time. crc32: of all lines.
    """

    def __init__(self) -> None:
        self.ids: Final[dict[str, None]] = {}
        self._lengths: Final[list[int]] = []
        self._states: Final[list[str]] = []
        self._prints: Final[list[str]] = []
        self._crc32 = 0

    def add(self, cell: CellResult, line: bytes) -> None:
        """Take the line of a cell, without its newline."""
        self.ids[cell.id] = None
        self._lengths.append(len(line) + 1)
        self._crc32 = crc32(line + b"\n", self._crc32)
        self._states.append(_LETTERS[cell.state])
        self._prints.append(blake2b(without_time(line), digest_size=PRINT // 2).hexdigest())

    def to_json(self) -> dict[str, Json]:
        """The value of the key `index` in the end line."""
        return {
            "ids": list(self.ids),
            "lengths": self._lengths,
            "states": "".join(self._states),
            "prints": "".join(self._prints),
            "crc32": self._crc32,
        }


class Index(NamedTuple):
    """The lines of the cells of a file.

    rows: cell id to the number of its line, from 0. starts: offsets of the lines, and that of what follows the last.
    states: None where only the line tells. prints: PRINT digits per line, or "" if nobody told them. crc32: of all
    lines, as told and as another thread reads them.
    """

    data: Text
    rows: dict[str, int]
    starts: Sequence[int]
    states: Sequence[CellState | None]
    prints: str
    crc32: tuple[int, Future[int]] | None = None

    @property
    def ids(self) -> KeysView[str]:
        """All cell ids in file order."""
        return self.rows.keys()

    def confirm(self) -> None:
        """Wait until all lines were gone through. ReportError if they are not those of which the end line tells."""
        if self.crc32 is not None and self.crc32[0] != self.crc32[1].result():
            raise ReportError(f"its cells are not those that its end line tells; {CHANGED}")

    def line(self, cell: str) -> Line:
        """The line of a cell. KeyError for an unknown id; ReportError if it says another id or state than was told."""
        row = self.rows[cell]
        start, end = self.starts[row], self.starts[row + 1] - 1
        found = front(self.data, start, end)
        if found is None:
            return Line(start, end, -1, None)
        name, line = found
        if name != cell or line.state != self.states[row]:
            raise ReportError(
                f"line {row + 2} is of cell {name!r}, {line.state}, and the end line says {cell!r}, "
                f"{self.states[row]}; {CHANGED}"
            )
        return line

    def same(self, other: Index, cells: Iterable[str]) -> Iterator[bool]:
        """Of each of `cells`, which both hold, whether its lines are the same but for the running time: by their
        fingerprints, or by their bytes where one report tells no fingerprints."""
        if not (self.prints and other.prints):
            wanted = list(cells)
            yield from same_but_for_time(self.data, map(self.line, wanted), other.data, map(other.line, wanted))
            return
        mine, theirs, rows, other_rows = self.prints, other.prints, self.rows, other.rows
        for cell in cells:
            at, there = rows[cell] * PRINT, other_rows[cell] * PRINT
            yield mine[at : at + PRINT] == theirs[there : there + PRINT]


def told(data: Text, entry: Json, start: int, stop: int) -> Index | None:
    """What the end line tells of the lines in data[start:stop]; None if it tells nothing, or of other lines.

    It is believed until `confirm` is asked.
    """
    if not isinstance(entry, dict):
        return None
    ids, lengths, states, prints, total = map(entry.get, ("ids", "lengths", "states", "prints", "crc32"))
    if not (isinstance(ids, list) and isinstance(lengths, list) and set(map(type, lengths)) <= {int}):
        return None
    if not (isinstance(states, str) and isinstance(prints, str) and isinstance(total, int)):
        return None
    rows = {cell: row for row, cell in enumerate(ids) if isinstance(cell, str)}
    starts = list(accumulate(lengths, initial=start))
    sizes = {len(rows), len(ids), len(lengths), len(states), len(prints) / PRINT}
    if len(sizes) > 1 or starts[-1] != stop or min(lengths, default=1) < 1 or not set(states) <= _STATES.keys():
        return None
    with memoryview(data) as whole:
        reader = ThreadPoolExecutor(1)
        sums = total, reader.submit(_sum, whole[start:stop])
        reader.shutdown(wait=False)
    return Index(data, rows, starts, [_STATES[letter] for letter in states], prints, sums)


def _sum(lines: memoryview) -> int:
    with _ONE:
        return crc32(lines)


def found(file: Path, data: Text, start: int, stop: int) -> Index:
    """Go through the lines in data[start:stop]. ReportError for a cell that comes twice, or a line that does not even
    look like a cell."""
    rows: dict[str, int] = {}
    starts: list[int] = []
    states: list[CellState | None] = []
    while start < stop:
        end = data.find(b"\n", start)
        known = front(data, start, end)
        name, line = known or (parse_cell(file, data, Line(start, end, -1, None), None).id, None)
        if name in rows:
            raise ReportError(f"{place(file, data, start)}: cell {name!r} is in the report already")
        rows[name] = len(starts)
        starts.append(start)
        states.append(line and line.state)
        start = end + 1
    return Index(data, rows, [*starts, stop], states, "")
