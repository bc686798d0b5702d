"""Reports on disk: written cell by cell during a run, and read back whole or not at all."""

from __future__ import annotations

import errno
import gc
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, ValuesView
from contextlib import contextmanager, suppress
from gzip import BadGzipFile, GzipFile
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from time import monotonic
from types import EllipsisType, TracebackType
from typing import IO, Any, Final, Self, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from specmatrix.files import opened
from specmatrix.reports.atomic import check_place, claimed, held, is_at, publish
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
    CellLine,
    CellRecord,
    CellResult,
    CounterValues,
    End,
    GateResult,
    GateValues,
    Header,
    Json,
    NamesRecord,
    ReportError,
    StartRecord,
)
from specmatrix.reports.wording import shorten

Line: TypeAlias = StartRecord | NamesRecord | CellLine
PARTIAL_FILE: Final = REPORT_FILE + ".partial"
GZIP: Final = b"\x1f\x8b"
# Of a report, unpacked: some 700,000 cells.
MAX_BYTES: Final = 2**29


class _Version(Struct, tag_field="kind", tag="header"):
    """The part of a first line that says whether the rest can be read."""

    schema: int


_LINES: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line)
_WHOLE: Final = msgspec.json.Decoder(CellResult)
_HEADER: Final = msgspec.json.Decoder(Header)
_END: Final = msgspec.json.Decoder(End)
_VERSION: Final = msgspec.json.Decoder(_Version)
# What a line says but for its id, what it refers to by number, and what varies from run to run.
_FIELDS: Final = CellRecord.__struct_fields__
_REST: Final = _FIELDS[_FIELDS.index("evidence") + 1 : _FIELDS.index("seconds")]
_CONTENT: Final = attrgetter("state", "axes", "repro", "gates.values", "gates.others", "evidence.values", *_REST)
_REFERENCES: Final = attrgetter("start", "gates.names", "evidence.names")


class ReportWriter:
    """Streams cells to `directory/report.jsonl.partial`, which becomes `report.jsonl` only in `close()`.

    Until then the report, summary and pages of an earlier run stay as they are. An interrupted run leaves its partial
    file for inspection; it has no end line, so it never reads as whole, and a directory that holds one is not read as
    that of a finished run. A full disk removes the partial file.

    not_run: selected cells that the run ended before; the report then is not a pass. gpu_seconds: how long GPUs were
    held, times their number, for cells that ran elsewhere; None if that is not known.

    Raises ReportError with one sentence: the place cannot be written, the disk is full, another run writes there, a
    cell comes twice or breaks a rule, a number is not finite.
    """

    def __init__(self, directory: Path, header: Header) -> None:
        self.path: Final = directory / REPORT_FILE
        self.partial: Final = directory / PARTIAL_FILE
        self._header = header
        self._cells: set[str] = set()
        self._numbers: dict[type[Struct], dict[bytes, int]] = {StartRecord: {}, NamesRecord: {}}
        self._evidence: Counter[str] = Counter()
        self._began = monotonic()
        self.not_run: Iterable[str] = ()
        self.gpu_seconds: float | EllipsisType | None = ...
        self._written: tuple[int, ...] = ()
        self._digest = sha256()
        first = _encode(header, "the header", _HEADER)
        check_place(directory, REPORT_FILE, PARTIAL_FILE, SUMMARY_FILE, MARKDOWN_FILE, PAGE_FILE)
        try:
            self._file = claimed(self.partial)
        except BlockingIOError:
            raise ReportError(f"another run is writing a report in {directory}") from None
        except OSError as error:
            raise ReportError(f"cannot write in {directory}: {error.strerror}") from error
        self._append(first)

    def write(self, cell: CellResult) -> None:
        """Append one cell, after its start and its names if they are new; all are in the file when this returns."""
        if cell.id in self._cells:
            raise ReportError(f"cell {cell.id!r} is in the report twice; a cell is written once")
        try:
            check_cell(cell)
        except ValueError as fault:
            raise ReportError(str(fault)) from None
        what = f"cell {cell.id!r}"
        evidence = {name: count for name, count in cell.evidence.items() if count}
        names = NamesRecord(tuple((gate.name, tuple(gate.numbers)) for gate in cell.gates))
        judged = (replace(gate, numbers={}) for gate in cell.gates)
        line = replace(
            cell,
            start=self._number(cell.start, what),
            axes={name: value for name, value in cell.axes.items() if self._header.axes.get(name) != value},
            gates=GateValues(
                self._number(names, what),
                tuple(number for gate in cell.gates for number in gate.numbers.values()),
                tuple(gate for gate in judged if gate != GateResult(gate.name, "PASS")),
            ),
            evidence=CounterValues(
                self._number(NamesRecord((("evidence", tuple(evidence)),)), what), tuple(evidence.values())
            ),
            seconds=round(cell.seconds, 6),
        )
        self._append(_encode(line, what, _LINES))
        self._cells.add(cell.id)
        self._evidence.update(evidence)

    def close(self) -> Path:
        """Write the end line, flush to disk and give the report its name, which is returned."""
        spent = self.gpu_seconds
        if spent is ...:
            named = self._header.host.get("gpus")
            gpus = len(named) if isinstance(named, list) else 0
            spent = round((monotonic() - self._began) * gpus, 3) if gpus else None
        digest = self._digest.hexdigest()
        end = End(len(self._cells), self._evidence, digest, tuple(self.not_run), spent)
        self._append(_encode(end, "the end line", _END))
        try:
            with held(self.path.parent):
                # Pages of an earlier run must not remain next to this one's report.
                for stale in (SUMMARY_FILE, MARKDOWN_FILE, PAGE_FILE):
                    self.path.with_name(stale).unlink(missing_ok=True)
                publish(self._file, self.path)
        except OSError as error:
            self._fail(error)
        self._written = _stamp(self._file)
        self.abort()
        return self.path

    def read(self) -> Report:
        """The report that `close` named. ReportError if that is another run's by now."""
        report = load(self.path)
        if report.stamp != self._written:
            raise overtaken(self.path)
        return report

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

    def _number(self, record: StartRecord | NamesRecord, what: str) -> int:
        """The number of a record among the lines of its kind, to which it is appended if it is new."""
        line, known = _encode(record, what, _LINES), self._numbers[type(record)]
        if line not in known:
            self._append(line)
        return known.setdefault(line, len(known))

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
        with suppress(OSError):
            if is_at(self._file, self.partial):
                self.partial.unlink()
        self.abort()
        raise ReportError(
            f"cannot write {self.path}: {error.strerror} after {len(self._cells)} cells; nothing is left there"
        ) from error


def overtaken(path: Path) -> ReportError:
    """The error for a report in whose place there is a later one."""
    return ReportError(f"another run has written {path} meanwhile; give each run a folder of its own")


def _stamp(file: IO[bytes]) -> tuple[int, ...]:
    """What no two reports have in common."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def cell_to_json(cell: CellResult) -> str:
    """A cell with its whole start, for another process. Raises ReportError for what JSON cannot hold."""
    return _encode(cell, f"cell {cell.id!r}", _WHOLE).decode()


def cell_from_json(text: str) -> CellResult:
    """What `cell_to_json` made a text of."""
    return _WHOLE.decode(text)


def _encode(record: Struct, what: str, reader: msgspec.json.Decoder[Any]) -> bytes:
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
    """A report from disk: its header, its engine starts, and its cells by id in file order."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self.stamp: tuple[int, ...] = ()
        self.end(End(0, {}, ""))
        self.starts: Final[list[StartRecord]] = []
        self._names: Final[list[NamesRecord]] = []
        self._sizes: Final[list[int]] = []
        self._lines: dict[str, CellLine] = {}
        self._words: dict[int, EffectiveValues] = {}

    def add(self, record: StartRecord | NamesRecord | CellLine) -> None:
        """Add what a line holds. IndexError for a cell before its start or names, ValueError for one whose values are
        not as many as their names."""
        if isinstance(record, CellRecord):
            self.starts[record.start]
            sizes, gates, evidence = self._sizes, record.gates, record.evidence
            if sizes[gates.names] != len(gates.values) or sizes[evidence.names] != len(evidence.values):
                raise ValueError(f"cell {record.id!r} has values without names, or names without values")
            self._lines[record.id] = record
        elif isinstance(record, StartRecord):
            self.starts.append(record)
        else:
            self._names.append(record)
            self._sizes.append(sum(len(names) for _, names in record.groups))

    def end(self, line: End) -> None:
        """Set what the last line holds."""
        self.evidence, self.not_run, self.gpu_seconds = line.evidence, line.not_run, line.gpu_seconds

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the context no other run takes its place. ReportError if one has."""
        try:
            with held(self.path.parent):
                with self.path.open("rb") as file:
                    if _stamp(file) != self.stamp:
                        raise overtaken(self.path)
                yield
        except OSError as error:
            raise ReportError(f"cannot read {self.path}: {error.strerror}") from error

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, cell: object) -> bool:
        return cell in self._lines

    def __iter__(self) -> Iterator[CellResult]:
        return map(self.__getitem__, self._lines)

    def __getitem__(self, cell: str) -> CellResult:
        """A cell with its whole start, all its axes, and the names of its values."""
        line = self._lines[cell]
        gates, evidence = self._named(line.gates), self._named(line.evidence)
        others = {gate.name: gate for gate in line.gates.others}
        return replace(
            cast(CellResult, line),
            start=self.starts[line.start],
            axes={**self.header.axes, **line.axes},
            gates=tuple(replace(others.get(each) or GateResult(each, "PASS"), numbers=gates[each]) for each in gates),
            evidence=evidence.get("evidence", {}),
        )

    def _named(self, given: GateValues | CounterValues) -> dict[str, dict[str, Json]]:
        """Values under their names, in the groups of their line."""
        values = iter(given.values)
        return {group: dict(zip(names, values, strict=False)) for group, names in self._names[given.names].groups}

    @property
    def lines(self) -> ValuesView[CellLine]:
        """All cells as the file has them, in its order."""
        return self._lines.values()

    def ids(self) -> KeysView[str]:
        """All cell ids in file order."""
        return self._lines.keys()

    def red(self) -> list[str]:
        """The ids of all cells that fail the run if they are not waived, in file order."""
        return [cell.id for cell in self.lines if cell.state in RED_STATES]

    def values(self, cell: str) -> dict[str, str]:
        """The effective axis values of a cell, whatever became of it."""
        line = self._lines[cell]
        if line.start not in self._words:
            self._words[line.start] = EffectiveValues(self.starts[line.start].resolved or {})
        return self._words[line.start].of({**self.header.axes, **line.axes})

    def effective(self, cell: str) -> dict[str, str] | None:
        """The effective axis values of a cell that ran and passed, else None."""
        line = self._lines[cell]
        return None if line.state != "PASS" or self.starts[line.start].resolved is None else self.values(cell)

    def same(self, other: Report) -> list[str]:
        """The cells that say the same in both reports, running time aside; one without a result says nothing."""
        if self.header.axes != other.header.axes:
            return []
        equal: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}
        found = []
        for line in self.lines:
            if line.state == "INFRA" or (theirs := other._lines.get(line.id)) is None:
                continue
            if (key := (_REFERENCES(line), _REFERENCES(theirs))) not in equal:
                equal[key] = self._referred(*key[0]) == other._referred(*key[1])
            if equal[key] and _CONTENT(line) == _CONTENT(theirs):
                found.append(line.id)
        return found

    def _referred(self, start: int, gates: int, evidence: int) -> tuple[str, NamesRecord, NamesRecord]:
        return self.starts[start].digest, self._names[gates], self._names[evidence]


@contextmanager
def gc_paused() -> Iterator[None]:
    """Without collections, which would look for cycles among the records of a report again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if not gc.get_freeze_count():  # what was made counts as old, so that the next collection skips it
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@gc_paused()
def load(path: Path | str) -> Report:
    """Read the report `path`, a file (plain or compressed by gzip) or a directory that holds `report.jsonl`.

    Raises ReportError, one sentence, if it is missing, empty, cut off, from another schema, or changed after it was
    written. What a cell must not say is checked where it is written; the digest tells that nothing was changed since.
    """
    file = _find(Path(path))
    try:
        with opened(file) as source:
            stamp = _stamp(source)
            packed = source.peek(2)[:2] == GZIP
            whole = (GzipFile(fileobj=source) if packed else source).read(MAX_BYTES + 1)
            if len(whole) > MAX_BYTES:  # a device may never end, and a small file may unpack without one
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    except (EOFError, zlib.error, BadGzipFile) as error:
        raise ReportError(f"{file} is a damaged gzip file: {_problem(error)}") from None
    except OSError as error:
        raise ReportError(f"cannot read {shorten(str(file), MAX_SAID)}: {error.strerror}") from error
    report = _read(file, whole)
    report.stamp = stamp
    return report


def _read(file: Path, whole: bytes) -> Report:
    """The report in a file's content."""
    begin, last = whole.find(b"\n") + 1 or len(whole), whole.rfind(b"\n", 0, -1) + 1
    report, end = Report(file, _header(file, whole[:begin])), _end(file, whole[last:])
    lines = memoryview(whole)[:last]
    if sha256(lines).hexdigest() != end.digest:
        raise ReportError(f"{file} was changed after it was written, or copied badly; run the cells again")
    try:
        for record in _LINES.decode_lines(lines[begin:]):
            report.add(record)
    except IndexError:
        raise ReportError(f"{file} has a cell before its start or names") from None
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file}: {_problem(error)}") from None
    report.end(end)
    if end.cells != len(report):
        raise ReportError(f"{file} has {len(report)} cells, and its end line says {end.cells}")
    if ran := next((cell for cell in end.not_run if cell in report), None):
        raise ReportError(f"{file} has cell {shorten(ran, MAX_SAID)!r}, and its end line says that it did not run")
    return report


def _header(file: Path, line: bytes) -> Header:
    """The header in the first line."""
    if not line:
        raise ReportError(f"{file} is empty; the run that wrote it did not finish")
    try:
        if (schema := _VERSION.decode(line).schema) == SCHEMA:
            return _HEADER.decode(line)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file}, line 1: the first line is not a report header: {_problem(error)}") from error
    raise ReportError(
        f"{file} has report schema {shorten(str(schema), MAX_SAID)}, and this version reads schema {SCHEMA}; run the "
        "cells again, or read the report with the version that wrote it"
    )


def _end(file: Path, line: bytes) -> End:
    """The end line. ReportError if the last line is none."""
    with suppress(ValueError, RecursionError):
        if line.endswith(b"\n"):
            return _END.decode(line)
    raise ReportError(f"{file} has no end line; it was cut off while it was written or copied")


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
