"""Reports on disk: written cell by cell during a run, and read back whole or not at all; atomic writes and locks."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from gzip import GzipFile
from hashlib import sha256
from io import BufferedWriter
from pathlib import Path
from secrets import token_hex
from time import monotonic
from types import EllipsisType
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from specmatrix.plain_text import visible
from specmatrix.reports import schema
from specmatrix.reports.effective import EffectiveValues
from specmatrix.reports.schema import MAX_SAID, PAGES, REPORT_FILE, CellResult, End, Header, ReportError, StartRecord
from specmatrix.reports.wording import shorten


def write_text(path: Path, text: str) -> None:
    """Atomically write UTF-8 text, with control characters escaped. Raises as `replaced`."""
    with replaced(path) as file:
        # File names may contain lone surrogates, which UTF-8 cannot encode.
        file.write(visible(text).encode(errors="replace"))


@contextmanager
def replaced(path: Path) -> Iterator[BufferedWriter]:
    """A temporary file that replaces `path` when the context ends, so that readers never see a partial file. Its random
    name follows no symlink and collides with no other writer.

    Raises ReportError if the disk is full or the directory is not writable; any exception leaves `path` unchanged.
    """
    partial = path.with_name(f".{token_hex(8)}.partial")
    try:
        with writes(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as file:
                yield file
                publish(file, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def writes(path: Path) -> Iterator[None]:
    """Converts OSErrors to ReportErrors that name `path`."""
    try:
        yield
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from error


def claimed(path: Path) -> BufferedWriter:
    """Create and lock `path`; closing it releases the lock. ReportError if another process holds it.

    An unlocked file is the leftover of an interrupted run. It is removed, not truncated, because it may be a hard link.
    Symlinks are not followed.
    """
    # O_NONBLOCK: opening a FIFO must not wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
    while True:
        with writes(path), ExitStack() as stack:
            file = stack.enter_context(open(path, "ab", opener=lambda name, _: os.open(name, flags, 0o644)))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ReportError(f"another run is writing a report in {path.parent}") from None
            # The previous owner may have renamed it before releasing the lock.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                if not os.fstat(file.fileno()).st_size:
                    stack.pop_all()
                    return file
                path.unlink()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks `folder`, so that its files come from one run. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # file systems without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_place(folder: Path, *names: str) -> None:
    """Create `folder`, and raise ReportError now, not after hours, if files of these names cannot be written there."""
    with writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (folder / name).is_dir():
                raise OSError(errno.EISDIR, f"{name} is a directory there")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def publish(file: BufferedWriter, path: Path) -> None:
    """Flush an open file and rename it to `path`. Raises OSError."""
    file.flush()
    Path(file.name).replace(path)


Line: TypeAlias = StartRecord | schema.CellLine
PARTIAL_FILE: Final = REPORT_FILE + ".partial"
# Largest unpacked report that is read: about 700,000 cells.
MAX_BYTES: Final = 2**29


_LINES: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line)
_WHOLE: Final = msgspec.json.Decoder(CellResult)
_HEADER: Final = msgspec.json.Decoder(Header)
_END: Final = msgspec.json.Decoder(End)


class ReportWriter(AbstractContextManager["ReportWriter"]):
    """Streams cells to `directory/report.jsonl.partial`, which becomes `report.jsonl` only in `close()`.

    Until then the report, summary and pages of an earlier run stay as they are. An interrupted run leaves its partial
    file for inspection; it has no end line, so it never reads as whole, and a directory that holds one is not read as
    that of a finished run.

    not_run: selected cells that never started; with any, the report is not a pass. gpu_seconds: GPU-seconds of cells
    that ran elsewhere, None if unknown; by default the time since the start times the number of the host's GPUs.
    causes: of groups of red cells, by the id of their first cell.

    Raises ReportError if the directory is not writable, the disk is full, another run writes there, a cell is written
    twice or breaks a rule, or a number is not finite.
    """

    def __init__(self, directory: Path, header: Header) -> None:
        self.path, self.partial = directory / REPORT_FILE, directory / PARTIAL_FILE
        self._header, self._cells = header, set[str]()
        self._starts: dict[bytes, int] = {}
        self._evidence: Counter[str] = Counter()
        self._began = monotonic()
        self.not_run: Iterable[str] = ()
        self.gpu_seconds: float | EllipsisType | None = ...
        self.causes: Mapping[str, schema.Cause] = {}
        self.digest, self._digest = "", sha256()
        first = _encode(header, "the header", _HEADER)
        check_place(directory, REPORT_FILE, PARTIAL_FILE, *PAGES)
        self._file = claimed(self.partial)
        self._append(first)

    def write(self, cell: CellResult) -> None:
        """Append a cell, preceded by its start's line if that is new, and flush."""
        what = f"cell {cell.id!r}"
        if cell.id in self._cells:
            raise ReportError(f"{what} is in the report twice; a cell is written once")
        schema.check_cell(cell)
        evidence = {name: count for name, count in cell.evidence.items() if count}
        line = replace(
            cell,
            start=self._number(cell.start, what),
            axes={name: value for name, value in cell.axes.items() if self._header.axes.get(name) != value},
            evidence=evidence,
            seconds=round(cell.seconds, 6),
        )
        self._append(_encode(line, what, _LINES))
        self._cells.add(cell.id)
        self._evidence.update(evidence)

    def close(self) -> Path:
        """Write the end line, rename the partial file to the report, and return its path."""
        if self.gpu_seconds is ...:
            gpus = len(cast(Sequence[schema.Json], self._header.host.get("gpus") or ()))
            self.gpu_seconds = round((monotonic() - self._began) * gpus, 3) if gpus else None
        self.digest = self._digest.hexdigest()
        end = End(len(self._cells), self._evidence, self.digest, tuple(self.not_run), self.gpu_seconds, self.causes)
        self._append(_encode(end, "the end line", _END))
        with writes(self.path), self._file, held(self.path.parent):
            # Pages of an earlier run must not stay beside this report.
            for stale in PAGES:
                self.path.with_name(stale).unlink(missing_ok=True)
            publish(self._file, self.path)
        return self.path

    @contextmanager
    def read(self) -> Iterator[Report]:
        """The closed report, locked against other runs within the context. ReportError if another run has replaced
        it.
        """
        with held(self.path.parent):
            report = load(self.path)
            if report.digest != self.digest:
                raise ReportError(f"another run has written {self.path} meanwhile; give each run a folder of its own")
            yield report

    def abort(self) -> None:
        """Stop without an end line and keep the partial file. Idempotent."""
        with suppress(OSError):  # a full disk, already reported
            self._file.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif not self._file.closed:
            self.close()

    def _number(self, start: StartRecord, what: str) -> int:
        """Index of a start's line, which is appended if it is new."""
        line = _encode(start, what, _LINES)
        if line not in self._starts:
            self._append(line)
        return self._starts.setdefault(line, len(self._starts))

    def _append(self, line: bytes) -> None:
        with writes(self.path):
            self._file.write(line + b"\n")
            self._file.flush()
        self._digest.update(line + b"\n")


def cell_to_json(cell: CellResult) -> str:
    """Serialises a cell, its start included, for another process. ReportError if it cannot be JSON."""
    return _encode(cell, f"cell {cell.id!r}", _WHOLE).decode()


def cell_from_json(text: str) -> CellResult:
    """The inverse of `cell_to_json`."""
    return _WHOLE.decode(text)


def _encode(record: msgspec.Struct, what: str, reader: msgspec.json.Decoder[Any]) -> bytes:
    """One JSON line without the newline. ReportError if `reader` could not read it back."""
    try:
        body = msgspec.to_builtins(record)
        # Broken file names may contain lone surrogates, which UTF-8 cannot encode.
        line = json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode(errors="replace")
        reader.decode(line)
    except (TypeError, ValueError, RecursionError) as error:
        raise ReportError(
            f"{what} cannot be written as JSON: {error}; allowed are text, finite numbers and lists"
        ) from error
    return line


class Report:
    """A loaded report: header, engine starts, and cells by id in file order. `lines` holds cells as stored; indexing
    resolves their references."""

    def __init__(self, path: Path, header: Header, records: Iterable[Line], end: End) -> None:
        self.path, self.header, self.digest, self.causes = path, header, end.digest, end.causes
        self.evidence, self.not_run, self.gpu_seconds = end.evidence, end.not_run, end.gpu_seconds
        self.starts: Final = [record for record in records if isinstance(record, StartRecord)]
        self.lines: Final = {record.id: record for record in records if isinstance(record, schema.CellRecord)}
        self._words: dict[int, EffectiveValues] = {}
        if len(self.lines) != end.cells:
            raise ReportError(f"{path} has {len(self.lines)} cells, and its end line says {end.cells}")
        for line in self.lines.values():
            if line.start >= len(self.starts):
                raise ReportError(f"{path}: cell {line.id!r:.60} has no start")

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, cell: object) -> bool:
        return cell in self.lines

    def __iter__(self) -> Iterator[CellResult]:
        return map(self.__getitem__, self.lines)

    def __getitem__(self, cell: str) -> CellResult:
        """A cell with its start and all axes."""
        line = self.lines[cell]
        start, axes = self.starts[line.start], {**self.header.axes, **line.axes}
        return replace(cast(CellResult, line), start=start, axes=axes)

    def red(self) -> list[str]:
        """Ids of cells in a red state, waived or not, in file order."""
        return [cell.id for cell in self.lines.values() if cell.state in schema.RED_STATES]

    def values(self, cell: str) -> dict[str, str]:
        """Effective axis values of a cell, whatever its state."""
        line = self.lines[cell]
        if line.start not in self._words:
            self._words[line.start] = EffectiveValues(self.starts[line.start].resolved or {}, self.header.axes)
        return self._words[line.start].of(line.axes)

    def effective(self, cell: str) -> dict[str, str] | None:
        """Effective axis values of a cell that passed, else None."""
        line = self.lines[cell]
        return None if line.state != "PASS" or self.starts[line.start].resolved is None else self.values(cell)

    def same(self, other: Report) -> list[str]:
        """Ids of cells with equal records in both reports, timings aside; INFRA cells are never equal."""
        if self.header.axes != other.header.axes:
            return []
        known = {start.digest: number for number, start in enumerate(self.starts)}
        starts = [known.get(start.digest, -1) for start in other.starts]
        found = []
        for line in self.lines.values():
            if line.state == "INFRA" or (theirs := other.lines.get(line.id)) is None:
                continue
            as_here = replace(
                theirs,
                start=starts[theirs.start],
                seconds=line.seconds,
                engine_starts=line.engine_starts,
                losses=line.losses,
            )
            if as_here == line:
                found.append(line.id)
        return found


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disables the cyclic garbage collector, which would scan a report's records again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if not gc.get_freeze_count():  # the next collection skips the oldest generation
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@gc_paused()
def load(path: Path | str) -> Report:
    """Load a report from a file (plain or gzip) or from a directory that holds `report.jsonl`.

    Raises ReportError if it is missing, empty, truncated, of another schema, or modified after it was written. A cell's
    consistency is checked when it is written; here the digest proves that the file is unmodified.
    """
    file = Path(path)
    try:
        if file.name == PARTIAL_FILE or (file / PARTIAL_FILE).exists():
            whole = f"; name {file / REPORT_FILE} to read the one before it" * (file / REPORT_FILE).exists()
            raise ReportError(f"{file} is of a run that did not finish{whole}")
        file = file / REPORT_FILE if file.is_dir() else file
        with file.open("rb") as source:
            text = (GzipFile(fileobj=source) if source.peek(2)[:2] == b"\x1f\x8b" else source).read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:  # a device file or a small archive may yield endless data
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        hint = "; give the folder that `run --out` wrote" if isinstance(error, FileNotFoundError) else ""
        raise ReportError(f"cannot read {shorten(str(file), MAX_SAID)}: {why}{hint}") from error
    return _read(file, text)


def _read(file: Path, whole: bytes) -> Report:
    """Parse a file's content."""
    begin, last = whole.find(b"\n") + 1 or len(whole), whole.rfind(b"\n", 0, -1) + 1
    lines, part = memoryview(whole), f"its first line is not the header of a report of schema {schema.SCHEMA}"
    try:
        header = _HEADER.decode(lines[:begin])
        part = "it has no end line, so it was cut off while it was written or copied"
        end = _END.decode(lines[last:])
        if sha256(lines[:last]).hexdigest() != end.digest:
            raise ReportError(f"{file} was changed after it was written, or copied badly; run the cells again")
        part = "a line is broken"
        return Report(file, header, _LINES.decode_lines(lines[begin:last]), end)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{file}: {part}: {shorten(str(error), MAX_SAID)}") from None
