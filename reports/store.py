"""Reports on disk: written cell by cell during a run, and read back whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView
from gzip import GzipFile
from hashlib import blake2b
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from time import monotonic
from types import EllipsisType, TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, force_setattr, replace

from specmatrix.engine.core.config.json_text import once
from specmatrix.files import LARGEST, opened
from specmatrix.reports.atomic import check_place, publish, write_all
from specmatrix.reports.collector import paused
from specmatrix.reports.effective import Words
from specmatrix.reports.rules import contradiction
from specmatrix.reports.schema import (
    MARKDOWN_FILE,
    PAGE_FILE,
    RED_STATES,
    REPORT_FILE,
    SCHEMA,
    SUMMARY_FILE,
    CellRecord,
    CellResult,
    CellState,
    End,
    Header,
    ReportError,
    StartLine,
    StartRecord,
    is_waived,
)
from specmatrix.reports.wording import count, shorten

T = TypeVar("T")
PARTIAL_FILE: Final = REPORT_FILE + ".partial"


# Below this size every cell is decoded at load (about 0.3 s per 32 MB); above it when it is first used.
EAGER_BYTES: Final = 32_000_000
# Characters of an error's text that come from the file.
MOST_SAID: Final = 240
# The last version that reads an older schema.
READERS: Final = {1: "commit a470250 of specmatrix, the last one that reads schema 1"}
GZIP: Final = b"\x1f\x8b"
_TIME: Final = b',"seconds":'


class _Axes(Struct, tag_field="kind", tag="cell"):
    """The part of a cell's line that says which values it has."""

    axes: dict[str, str]


class _Front(Struct, tag_field="kind", tag="cell", gc=False):
    """The part of a cell's line that every reader needs."""

    id: str
    state: CellState
    start: str


class _Version(Struct, tag_field="kind", tag="header"):
    """The part of a first line that says whether the rest can be read."""

    schema: int


_LINE: Final = msgspec.json.Decoder(Header | StartLine | CellRecord[str] | End)
_FRONT: Final = msgspec.json.Decoder(Header | StartLine | _Front | End)
_CELL: Final = msgspec.json.Decoder(CellRecord[str])
_WHOLE: Final = msgspec.json.Decoder(CellResult)
_AXES: Final = msgspec.json.Decoder(_Axes)
_HEADER: Final = msgspec.json.Decoder(Header)
_END: Final = msgspec.json.Decoder(End)
_VERSION: Final = msgspec.json.Decoder(_Version)
# What these read of a line, another reads whole, or an equal line of the other report.
_PARTS: Final = (_FRONT, _AXES)


class ReportWriter:
    """Streams cells to `directory/report.jsonl.partial`, which becomes `report.jsonl` only in `close()`.

    Until then the report, summary and pages of an earlier run stay as they are. An interrupted run leaves its partial
    file for inspection; it has no end line, so it never reads as whole, and a directory that holds one is not read as
    that of a finished run. A full disk removes the partial file.

    Raises ReportError with one sentence: the place cannot be written, the disk is full, another run writes there, a
    cell comes twice, a number is not finite.
    """

    def __init__(self, directory: Path, header: Header) -> None:
        self.path: Final = directory / REPORT_FILE
        self.partial: Final = directory / PARTIAL_FILE
        self._header = header
        self._cells: set[str] = set()
        self._starts: set[str] = set()
        self._evidence: Counter[str] = Counter()
        self._waived = 0
        self._not_run: tuple[str, ...] = ()
        self._began = monotonic()
        self._gpu_seconds: float | EllipsisType | None = ...
        self._descriptor: int | None = None
        first = _encode(header, "the header")
        check_place(directory, REPORT_FILE, PARTIAL_FILE, SUMMARY_FILE, MARKDOWN_FILE, PAGE_FILE)
        try:
            self._descriptor = os.open(self.partial, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o644)
            self._claim()
        except OSError as error:
            self.abort()
            raise ReportError(f"cannot write in {directory}: {error.strerror}") from error
        self._append(first)

    def write(self, cell: CellResult) -> None:
        """Append one cell, after its start if that is new; both are in the file when this returns."""
        if cell.id in self._cells:
            raise ReportError(f"cell {cell.id!r} is in the report twice; a cell is written once")
        if fault := contradiction(self._header, cell, cell.start):
            raise ReportError(f"cell {cell.id!r} {fault}")
        what = f"cell {cell.id!r}"
        values = asdict(cell.start)
        key = blake2b(_encode(StartLine(id="", **values), what), digest_size=6).hexdigest()
        evidence = {name: count for name, count in cell.evidence.items() if count}
        line = _encode(replace(cell, start=key, evidence=evidence, seconds=round(cell.seconds, 6)), what)
        if key not in self._starts:
            self._append(_encode(StartLine(id=key, **values), what))
            self._starts.add(key)
        self._append(line)
        self._cells.add(cell.id)
        self._evidence.update(evidence)
        self._waived += cell.state in RED_STATES and is_waived(cell, self._header.created)

    def leave_out(self, cells: Iterable[str]) -> None:
        """Name selected cells that the run ended before; the report then is not a pass."""
        self._not_run = tuple(cells)

    def hold(self, gpu_seconds: float | None) -> None:
        """Set how long GPUs were held, times their number, of cells that ran elsewhere; None if it is not known."""
        self._gpu_seconds = gpu_seconds

    def close(self) -> Path:
        """Write the end line, flush to disk and give the report its name, which is returned."""
        held = self._gpu_seconds
        if held is ...:
            named = self._header.host.get("gpus")
            gpus = len(named) if isinstance(named, list) else 0
            held = round((monotonic() - self._began) * gpus, 3) if gpus else None
        end = End(len(self._cells), self._evidence, self._not_run, self._waived, held)
        self._append(_encode(end, "the end line"))
        try:
            # Pages of an earlier run must not remain next to this one's report.
            for stale in (SUMMARY_FILE, MARKDOWN_FILE, PAGE_FILE):
                self.path.with_name(stale).unlink(missing_ok=True)
            publish(self._open(), self.partial, self.path)
        except OSError as error:
            self._fail(error)
        self.abort()
        return self.path

    def abort(self) -> None:
        """Stop without finishing; what was written so far stays in the partial file. Safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._descriptor is not None:
            self.close()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._open(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.abort()
            raise ReportError(f"another run is writing a report in {self.path.parent}") from None
        # Devices report size 0 and cannot be truncated.
        if os.fstat(self._open()).st_size:
            os.ftruncate(self._open(), 0)

    def _open(self) -> int:
        if self._descriptor is None:
            raise ReportError(f"the report {self.path} is closed; nothing can be added to it")
        return self._descriptor

    def _append(self, line: bytes) -> None:
        try:
            write_all(self._open(), line + b"\n")
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.abort()
        with contextlib.suppress(OSError):
            self.partial.unlink()
        raise ReportError(
            f"cannot write {self.path}: {error.strerror} after {len(self._cells)} cells; nothing is left there"
        ) from error


def cell_to_json(cell: CellResult) -> str:
    """A cell with its whole start, for another process. Raises ReportError for what JSON cannot hold."""
    return _encode(cell, f"cell {cell.id!r}", _WHOLE).decode()


def cell_from_json(text: str) -> CellResult:
    """What `cell_to_json` made a text of."""
    return _WHOLE.decode(text)


def _encode(record: Struct, what: str, reader: msgspec.json.Decoder[Any] = _LINE) -> bytes:
    """A record on one line, without the newline. Raises ReportError for what `reader` would not read back."""
    try:
        body = msgspec.to_builtins(record)
        # Half of a surrogate pair, as a broken file name may hold, has no place in UTF-8.
        line = json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode(errors="replace")
        reader.decode(line)
    except (TypeError, ValueError, RecursionError) as error:
        raise ReportError(
            f"{what} cannot be written as JSON: {error}; allowed are text, finite numbers and lists"
        ) from error
    return line


class _CellLine(NamedTuple):
    """What every reader needs of a cell, the number of its line, from 1, and where that lies in the file, in bytes."""

    state: CellState
    start: str
    number: int
    begin: int
    end: int


class Report:
    """A report on disk: its header, its engine starts by id, and its cells by id in file order.

    Cells are decoded on demand and kept. `same` compares two reports without decoding, so that 100,000 unchanged cells
    cost next to nothing; whatever a caller looks at is decoded and checked, and a broken line raises ReportError with
    its number.
    """

    def __init__(self, path: Path, data: bytes | mmap) -> None:
        self.path: Final = path
        self.starts: Final[dict[str, StartRecord]] = {}
        self._data = data
        self._rows: dict[str, _CellLine] = {}
        self._cells: dict[str, CellResult] = {}
        self._words: dict[str, Words] = {}
        self.header: Final = _header(path, data)
        end_at, end = _end(path, data)
        self.evidence: Final = end.evidence
        self.not_run: Final = end.not_run
        self.waived: Final = end.waived
        self.gpu_seconds: Final = end.gpu_seconds
        self._read(end_at)
        if end.cells != len(self._rows):
            raise ReportError(f"{path} has {len(self._rows)} cells, and its end line says {end.cells}")
        if ran := next((cell for cell in end.not_run if cell in self._rows), None):
            raise ReportError(f"{path} has cell {_named(ran)}, and its end line says that it did not run")

    def _read(self, stop: int) -> None:
        """Take the starts and where the cells lie from the lines between the header and `stop`."""
        readline = self._data.readline if isinstance(self._data, mmap) else BytesIO(self._data).readline
        begin, number = len(readline()), 1
        while begin < stop:
            line, number = readline(), number + 1
            record = _decode(_FRONT, line, self.path, number)
            if isinstance(record, _Front):
                if record.id in self._rows:
                    raise ReportError(f"{self.path}, line {number}: cell {_named(record.id)} is in the report already")
                if record.start not in self.starts:
                    fault = f"names start {_named(record.start)}, which no line before it has"
                    raise ReportError(f"{self.path}, line {number}: cell {_named(record.id)} {fault}")
                self._rows[record.id] = _CellLine(record.state, record.start, number, begin, begin + len(line))
            elif isinstance(record, StartLine) and record.id not in self.starts:
                _decode(_LINE, line, self.path, number)
                self.starts[record.id] = StartRecord(
                    **{name: getattr(record, name) for name in StartRecord.__struct_fields__}
                )
            else:
                raise ReportError(f"{self.path}, line {number}: a second header, end line or start of the same id")
            begin += len(line)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, cell: object) -> bool:
        return cell in self._rows

    def __iter__(self) -> Iterator[CellResult]:
        return (self[cell] for cell in self._rows)

    def __getitem__(self, cell: str) -> CellResult:
        """The record of the cell `cell`. Raises KeyError for an unknown id, ReportError for a broken line."""
        record = self._cells.get(cell)
        if record is None:
            decoded = self._decode(cell, _CELL)
            if fault := contradiction(self.header, decoded, self.starts[self._rows[cell].start]):
                raise ReportError(f"{self.path}, line {self._rows[cell].number}: cell {_named(cell)} {fault}")
            # The line names its start; in memory a cell holds it.
            force_setattr(decoded, "start", self.starts[self._rows[cell].start])
            record = self._cells[cell] = cast(CellResult, decoded)
        return record

    def _decode(self, cell: str, decoder: msgspec.json.Decoder[T]) -> T:
        row = self._rows[cell]
        return _decode(decoder, self._data[row.begin : row.end], self.path, row.number)

    def ids(self) -> KeysView[str]:
        """All cell ids in file order."""
        return self._rows.keys()

    def state(self, cell: str) -> CellState:
        """The state of a cell, without decoding it."""
        return self._rows[cell].state

    def start(self, cell: str) -> str:
        """The id of a cell's start, without decoding the cell."""
        return self._rows[cell].start

    def red(self) -> list[str]:
        """The ids of all cells that fail the run if they are not waived, in file order."""
        return [cell for cell, row in self._rows.items() if row.state in RED_STATES]

    def values(self, cell: str) -> dict[str, str]:
        """The effective axis values of a cell, whatever became of it."""
        record, start = self._cells.get(cell), self._rows[cell].start
        if start not in self._words:
            self._words[start] = Words(self.starts[start].resolved or {})
        return self._words[start].of(self._decode(cell, _AXES).axes if record is None else record.axes)

    def effective(self, cell: str) -> dict[str, str] | None:
        """The effective axis values of a cell that ran and passed, else None."""
        row = self._rows[cell]
        return None if row.state != "PASS" or self.starts[row.start].resolved is None else self.values(cell)

    def same(self, other: Report, cells: Iterable[str]) -> list[str]:
        """Those of `cells` whose lines and starts are the same in both reports, running time aside."""
        shared = {name for name, start in self.starts.items() if other.starts.get(name) == start}
        mine, theirs = self._rows, other._rows
        return [
            cell
            for cell in cells
            if mine[cell].start in shared and _untimed(self._data, mine[cell]) == _untimed(other._data, theirs[cell])
        ]


def _untimed(data: bytes | mmap, row: _CellLine) -> bytes:
    """A line up to its running time, or all of it where that is not at its end, where the writer puts it."""
    at = data.rfind(_TIME, row.begin, row.end)
    return data[row.begin : at if data.find(b"}", at, row.end) == row.end - 2 else row.end]


@paused()
def load(path: Path | str) -> Report:
    """Read the report `path`, a file (plain or compressed by gzip) or a directory that holds `report.jsonl`.

    Raises ReportError, one sentence, if it is missing, empty, cut off, from another schema, holds a broken line or a
    cell twice, or has not as many cells as its end line says. In reports above `EAGER_BYTES` a value of the wrong type
    inside a cell is reported when the cell is first used.
    """
    file = Path(path)
    try:
        file = _find(file)
        with opened(file) as source:
            large = os.fstat(source.fileno()).st_size > EAGER_BYTES
            # Mapped, a large report is not copied. A writer never changes a finished one: it puts another in its place.
            data = mmap(source.fileno(), 0, access=ACCESS_READ) if large else source.read(LARGEST + 1)
        if len(data) > LARGEST and not large:  # a device may never end
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    except OSError as error:
        raise ReportError(f"cannot read {shorten(str(file), MOST_SAID)}: {error.strerror}") from error
    if data[:2] == GZIP:
        data = _unpacked(file, data)
        large = len(data) > EAGER_BYTES
    if not data:
        raise ReportError(f"{file} is empty; the run that wrote it did not finish")
    report = Report(file, data)
    if not large:
        counted = Counter[str]()
        for cell in report:
            counted.update(cell.evidence)
        if +counted != +Counter(report.evidence):
            raise ReportError(f"{file}: the counters of its cells do not add up to those of its end line")
        waived = sum(is_waived(report[cell], report.header.created) for cell in report.red())
        if report.waived not in (None, waived):
            raise ReportError(f"{file} has {count(waived, 'waived cell')}, and its end line says {report.waived}")
    return report


def _unpacked(file: Path, data: bytes | mmap) -> bytes:
    """The content of a compressed report, of at most `LARGEST` bytes: a small file may unpack without an end."""
    try:
        with GzipFile(fileobj=BytesIO(data)) as source:
            found = source.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ReportError(f"{file} is a damaged gzip file: {_problem(error)}") from None
    if len(found) > LARGEST:
        raise ReportError(f"{file} unpacks to more than {LARGEST:,} bytes; unpack it and read the plain file")
    return found


def _header(file: Path, data: bytes | mmap) -> Header:
    line = data[: data.find(b"\n") + 1 or len(data)]
    if line.startswith(BOM_UTF8):
        raise ReportError(f"{file} begins with a byte order mark; save it as UTF-8 without one")
    try:
        version = _VERSION.decode(line)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file}, line 1: the first line is not a report header: {_problem(error)}") from error
    if version.schema != SCHEMA:
        number = shorten(str(version.schema), MOST_SAID)
        raise ReportError(
            f"{file} has report schema {number}, and this version reads schema {SCHEMA}; run the cells again, or read "
            f"the report with {READERS.get(version.schema, 'the version that wrote it')}"
        )
    return _decode(_HEADER, line, file, 1)


def _end(file: Path, data: bytes | mmap) -> tuple[int, End]:
    """Offset of the end line, and the line. ReportError if the last line is none."""
    at = data.rfind(b"\n", 0, len(data) - 1) + 1
    with contextlib.suppress(ValueError, RecursionError):
        if data[-1:] == b"\n" and _END.decode(data[at:]):
            return at, _decode(_END, data[at:], file, "the end line")
    raise ReportError(f"{file} has no end line; it was cut off while it was written or copied")


def _decode(decoder: msgspec.json.Decoder[T], line: bytes, file: Path, number: int | str) -> T:
    try:
        record = decoder.decode(line)
        if decoder not in _PARTS:
            _check_keys(line, record)
    except (ValueError, RecursionError) as error:
        where = f"line {number}" if isinstance(number, int) else number
        raise ReportError(f"{file}, {where}: {_problem(error)}") from None
    return record


def _check_keys(line: bytes, record: object) -> None:
    """Raise ValueError if a line has an object with a duplicate key; the decoder would silently keep the last value.

    A cell without escapes is encoded again, which is fast: a line with a duplicate key has more colons than that.
    """
    written = isinstance(record, CellRecord) and b"\\u" not in line
    if not written or line.count(b":") != msgspec.json.encode(record).count(b":"):
        json.loads(line, object_pairs_hook=once)


def _named(text: str) -> str:
    return repr(shorten(text, MOST_SAID))


def _problem(error: Exception) -> str:
    """Why a line cannot be decoded, which may quote a value of any length."""
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else shorten(str(error), MOST_SAID)


def _find(path: Path) -> Path:
    if not path.is_dir():
        if path.name == PARTIAL_FILE:
            raise ReportError(f"{path} was left by an unfinished run; it is not a report")
        try:
            path.stat()
        except FileNotFoundError:
            raise ReportError(f"{path} does not exist; give a report file or a directory with {REPORT_FILE}") from None
        return path
    whole = (path / REPORT_FILE).exists()
    if (path / PARTIAL_FILE).exists():
        sentence = f"{path} has {'' if whole else 'only '}{PARTIAL_FILE}; the run that wrote it did not finish"
        raise ReportError(f"{sentence}; name {path / REPORT_FILE} to read the one before it" if whole else sentence)
    if whole:
        return path / REPORT_FILE
    raise ReportError(f"{path} has no {REPORT_FILE}; it is not the directory of a finished run")
