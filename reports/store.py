"""Reports on disk: written cell by cell during a run, and read back whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView
from contextlib import suppress
from gzip import GzipFile
from hashlib import blake2b, sha256
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from time import monotonic
from types import EllipsisType, TracebackType
from typing import Any, Final, Self, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, force_setattr, replace

from specmatrix.files import LARGEST, opened
from specmatrix.json_text import reject_duplicates
from specmatrix.reports.atomic import check_place, publish
from specmatrix.reports.effective import EffectiveValues
from specmatrix.reports.rules import check_cell
from specmatrix.reports.schema import (
    MARKDOWN_FILE,
    MAX_SAID,
    PAGE_FILE,
    RED_STATES,
    REPORT_FILE,
    SCHEMA,
    SUMMARY_FILE,
    CellRecord,
    CellResult,
    End,
    Header,
    ReportError,
    StartLine,
    StartRecord,
    is_waived,
)
from specmatrix.reports.wording import count, shorten

T = TypeVar("T")
Line: TypeAlias = Header | StartLine | CellRecord[str] | End
PARTIAL_FILE: Final = REPORT_FILE + ".partial"
# The last version that reads an older schema.
READERS: Final = {1: "commit a470250 of specmatrix, the last one that reads schema 1"}
GZIP: Final = b"\x1f\x8b"


class _Version(Struct, tag_field="kind", tag="header"):
    """The part of a first line that says whether the rest can be read."""

    schema: int


_LINE: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line)
_WHOLE: Final = msgspec.json.Decoder(CellResult)
_HEADER: Final = msgspec.json.Decoder(Header)
_END: Final = msgspec.json.Decoder(End)
_VERSION: Final = msgspec.json.Decoder(_Version)
# What a cell says but for the start, and for what varies from run to run.
_CONTENT: Final = attrgetter(*CellRecord.__struct_fields__[: CellRecord.__struct_fields__.index("seconds")])


class ReportWriter:
    """Streams cells to `directory/report.jsonl.partial`, which becomes `report.jsonl` only in `close()`.

    Until then the report, summary and pages of an earlier run stay as they are. An interrupted run leaves its partial
    file for inspection; it has no end line, so it never reads as whole, and a directory that holds one is not read as
    that of a finished run. A full disk removes the partial file.

    Raises ReportError with one sentence: the place cannot be written, the disk is full, another run writes there, a
    cell comes twice or breaks a rule, a number is not finite.
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
        self._digest = sha256()
        first = _encode(header, "the header")
        check_place(directory, REPORT_FILE, PARTIAL_FILE, SUMMARY_FILE, MARKDOWN_FILE, PAGE_FILE)
        try:
            self._file = open(self.partial, "ab", opener=_at_once)  # noqa: SIM115 - closed by close() or abort()
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Devices report size 0 and cannot be truncated.
            if os.fstat(self._file.fileno()).st_size:
                self._file.truncate(0)
        except BlockingIOError:
            self.abort()
            raise ReportError(f"another run is writing a report in {directory}") from None
        except OSError as error:
            raise ReportError(f"cannot write in {directory}: {error.strerror}") from error
        self._append(first)

    def write(self, cell: CellResult) -> None:
        """Append one cell, after its start if that is new; both are in the file when this returns."""
        if cell.id in self._cells:
            raise ReportError(f"cell {cell.id!r} is in the report twice; a cell is written once")
        what = f"cell {cell.id!r}"
        values = asdict(cell.start)
        key = blake2b(_encode(StartLine(id="", **values), what), digest_size=6).hexdigest()
        evidence = {name: count for name, count in cell.evidence.items() if count}
        line = _encode(replace(cell, start=key, evidence=evidence, seconds=round(cell.seconds, 6)), what)
        try:
            check_cell(cell, self._header)
        except ValueError as fault:
            raise ReportError(str(fault)) from None
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
        digest = self._digest.hexdigest()
        end = End(len(self._cells), self._evidence, self._not_run, self._waived, held, digest)
        self._append(_encode(end, "the end line"))
        try:
            # Pages of an earlier run must not remain next to this one's report.
            for stale in (SUMMARY_FILE, MARKDOWN_FILE, PAGE_FILE):
                self.path.with_name(stale).unlink(missing_ok=True)
            publish(self._file, self.path)
        except OSError as error:
            self._fail(error)
        self.abort()
        return self.path

    def abort(self) -> None:
        """Stop without finishing; what was written so far stays in the partial file. Safe to call twice."""
        with suppress(OSError):  # of a full disk, which was reported
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._file.closed:
            self.close()

    def _append(self, line: bytes) -> None:
        if self._file.closed:
            raise ReportError(f"the report {self.path} is closed; nothing can be added to it")
        try:
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            self._fail(error)
        self._digest.update(line + b"\n")

    def _fail(self, error: OSError) -> None:
        self.abort()
        with suppress(OSError):
            self.partial.unlink()
        raise ReportError(
            f"cannot write {self.path}: {error.strerror} after {len(self._cells)} cells; nothing is left there"
        ) from error


def _at_once(path: str, flags: int) -> int:
    """A descriptor without waiting for the reader of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK, 0o644)


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


class Report:
    """A report from disk: its header, its engine starts by id, and its cells by id in file order."""

    def __init__(self, path: Path, header: Header, end: End) -> None:
        self.path, self.header = path, header
        self.evidence, self.not_run = end.evidence, end.not_run
        self.waived, self.gpu_seconds = end.waived, end.gpu_seconds
        self.starts: Final[dict[str, StartRecord]] = {}
        self._cells: dict[str, CellResult] = {}
        self._start_of: dict[str, str] = {}
        self._words: dict[str, EffectiveValues] = {}

    def add(self, record: Line) -> None:
        """Take the next line between the header and the end. ValueError if it cannot stand there."""
        if isinstance(record, CellRecord):
            name = _named(record.id)
            if record.id in self._cells:
                raise ValueError(f"cell {name} is in the report already")
            if record.start not in self.starts:
                raise ValueError(f"cell {name} names start {_named(record.start)}, which no line before it has")
            self._start_of[record.id] = record.start
            # The line names its start; in memory a cell holds it.
            force_setattr(record, "start", self.starts[record.start])
            self._cells[record.id] = cast(CellResult, record)
        elif isinstance(record, StartLine) and record.id not in self.starts:
            fields = StartRecord.__struct_fields__
            self.starts[record.id] = StartRecord(**{name: getattr(record, name) for name in fields})
        else:
            raise ValueError("a second header, end line or start of the same id")

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, cell: object) -> bool:
        return cell in self._cells

    def __iter__(self) -> Iterator[CellResult]:
        return iter(self._cells.values())

    def __getitem__(self, cell: str) -> CellResult:
        return self._cells[cell]

    def ids(self) -> KeysView[str]:
        """All cell ids in file order."""
        return self._cells.keys()

    def start(self, cell: str) -> str:
        """The id of a cell's start."""
        return self._start_of[cell]

    def red(self) -> list[str]:
        """The ids of all cells that fail the run if they are not waived, in file order."""
        return [cell.id for cell in self if cell.state in RED_STATES]

    def values(self, cell: str) -> dict[str, str]:
        """The effective axis values of a cell, whatever became of it."""
        start = self._start_of[cell]
        if start not in self._words:
            self._words[start] = EffectiveValues(self.starts[start].resolved or {})
        return self._words[start].of(self._cells[cell].axes)

    def effective(self, cell: str) -> dict[str, str] | None:
        """The effective axis values of a cell that ran and passed, else None."""
        found = self._cells[cell]
        return None if found.state != "PASS" or found.resolved is None else self.values(cell)

    def same(self, other: Report, cells: Iterable[str]) -> list[str]:
        """Those of `cells` that say the same in both reports, running time aside."""
        shared = {name for name, start in self.starts.items() if other.starts.get(name) == start}
        return [
            cell
            for cell in cells
            if (start := self._start_of[cell]) in shared
            and other._start_of[cell] == start
            and _CONTENT(self._cells[cell]) == _CONTENT(other._cells[cell])
        ]


def load(path: Path | str) -> Report:
    """Read the report `path`, a file (plain or compressed by gzip) or a directory that holds `report.jsonl`.

    Raises ReportError, one sentence, if it is missing, empty, cut off, from another schema, changed after it was
    written, holds a broken line or a cell twice, or has not as many cells as its end line says. Where the end line has
    no digest, every cell is checked as the writer checks it.
    """
    file = _find(Path(path))
    data = _read(file)
    header = _header(file, data)
    at, end = _end(file, data)
    body = memoryview(data)[:at]
    if end.digest and sha256(body).hexdigest() != end.digest:
        raise ReportError(f"{file} was changed after it was written, or copied badly; run the cells again")
    report = Report(file, header, end)
    for number, record in enumerate(_lines(file, body, trusted=bool(end.digest)), 1):
        try:
            if number > 1:
                report.add(record)
            if not end.digest and isinstance(record, CellRecord):
                check_cell(report[record.id], header)
        except ValueError as error:
            raise ReportError(f"{file}, line {number}: {_problem(error)}") from None
    _check_end(report, end)
    return report


def _check_end(report: Report, end: End) -> None:
    """ReportError if the end line does not say what the cells say."""
    path = report.path
    if end.cells != len(report):
        raise ReportError(f"{path} has {len(report)} cells, and its end line says {end.cells}")
    if ran := next((cell for cell in end.not_run if cell in report), None):
        raise ReportError(f"{path} has cell {_named(ran)}, and its end line says that it did not run")
    if end.digest:
        return
    counted = Counter[str]()
    for cell in report:
        counted.update(cell.evidence)
    if +counted != +Counter(end.evidence):
        raise ReportError(f"{path}: the counters of its cells do not add up to those of its end line")
    waived = sum(is_waived(report[cell], report.header.created) for cell in report.red())
    if end.waived not in (None, waived):
        raise ReportError(f"{path} has {count(waived, 'waived cell')}, and its end line says {end.waived}")


def _lines(file: Path, body: memoryview, trusted: bool) -> Iterable[Line]:
    """The lines before the end line. trusted: they are as this package wrote them."""
    if trusted:
        with suppress(ValueError):  # another version of this package: the line is named below
            return _LINE.decode_lines(body)
    lines = bytes(body).split(b"\n")[:-1]
    return (_decode(_LINE, line, file, f"line {number}") for number, line in enumerate(lines, 1))


def _read(file: Path) -> bytes:
    try:
        with opened(file) as source:
            most = max(LARGEST, os.fstat(source.fileno()).st_size)  # a device has none, and may never end
            data = source.read(most + 1)
        if len(data) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    except OSError as error:
        raise ReportError(f"cannot read {shorten(str(file), MAX_SAID)}: {error.strerror}") from error
    if data[:2] == GZIP:
        data = _unpacked(file, data)
    if not data:
        raise ReportError(f"{file} is empty; the run that wrote it did not finish")
    return data


def _unpacked(file: Path, data: bytes) -> bytes:
    """The content of a compressed report, of at most `LARGEST` bytes: a small file may unpack without an end."""
    try:
        with GzipFile(fileobj=BytesIO(data)) as source:
            found = source.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ReportError(f"{file} is a damaged gzip file: {_problem(error)}") from None
    if len(found) > LARGEST:
        raise ReportError(f"{file} unpacks to more than {LARGEST:,} bytes; unpack it and read the plain file")
    return found


def _header(file: Path, data: bytes) -> Header:
    line = data[: data.find(b"\n") + 1 or len(data)]
    if line.startswith(BOM_UTF8):
        raise ReportError(f"{file} begins with a byte order mark; save it as UTF-8 without one")
    try:
        version = _VERSION.decode(line)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file}, line 1: the first line is not a report header: {_problem(error)}") from error
    if version.schema != SCHEMA:
        number = shorten(str(version.schema), MAX_SAID)
        raise ReportError(
            f"{file} has report schema {number}, and this version reads schema {SCHEMA}; run the cells again, or read "
            f"the report with {READERS.get(version.schema, 'the version that wrote it')}"
        )
    return _decode(_HEADER, line, file, "line 1")


def _end(file: Path, data: bytes) -> tuple[int, End]:
    """Offset of the end line, and the line. ReportError if the last line is none."""
    at = data.rfind(b"\n", 0, len(data) - 1) + 1
    with suppress(ValueError, RecursionError):
        if data[-1:] == b"\n" and _END.decode(data[at:]):
            return at, _decode(_END, data[at:], file, "the end line")
    raise ReportError(f"{file} has no end line; it was cut off while it was written or copied")


def _decode(decoder: msgspec.json.Decoder[T], line: bytes, file: Path, where: str) -> T:
    """A line, which has no object with a key twice: the decoder alone would silently keep the last value."""
    try:
        record = decoder.decode(line)
        json.loads(line, object_pairs_hook=reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file}, {where}: {_problem(error)}") from None
    return record


def _named(text: str) -> str:
    return repr(shorten(text, MAX_SAID))


def _problem(error: Exception) -> str:
    """Why a line cannot be decoded, which may quote a value of any length."""
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else shorten(str(error), MAX_SAID)


def _find(path: Path) -> Path:
    try:
        if not path.is_dir():
            if path.name == PARTIAL_FILE:
                raise ReportError(f"{path} was left by an unfinished run; it is not a report")
            path.stat()
            return path
    except FileNotFoundError:
        raise ReportError(f"{path} does not exist; give a report file or a directory with {REPORT_FILE}") from None
    except OSError as error:
        raise ReportError(f"cannot read {shorten(str(path), MAX_SAID)}: {error.strerror}") from error
    whole = (path / REPORT_FILE).exists()
    if (path / PARTIAL_FILE).exists():
        sentence = f"{path} has {'' if whole else 'only '}{PARTIAL_FILE}; the run that wrote it did not finish"
        raise ReportError(f"{sentence}; name {path / REPORT_FILE} to read the one before it" if whole else sentence)
    if whole:
        return path / REPORT_FILE
    raise ReportError(f"{path} has no {REPORT_FILE}; it is not the directory of a finished run")
