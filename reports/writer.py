"""Writing a report while its run goes on."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from specmatrix.reports.atomic import publish, write_all
from specmatrix.reports.codec import encode_cell, encode_end, encode_header
from specmatrix.reports.index import IndexWriter
from specmatrix.reports.schema import (
    MARKDOWN_FILE,
    PAGE_FILE,
    REPORT_FILE,
    SUMMARY_FILE,
    CellResult,
    Header,
    ReportError,
)

PARTIAL_FILE: Final = REPORT_FILE + ".partial"


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
        self._index: Final = IndexWriter()
        self._hits: Counter[str] = Counter()
        self._descriptor: int | None = None
        first = encode_header(header)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.partial, os.O_WRONLY | os.O_CREAT, 0o644)
            self._claim()
        except OSError as error:
            self.abort()
            raise ReportError(f"cannot write a report in {directory}: {error.strerror}") from error
        self._append(first.encode())

    def write(self, cell: CellResult) -> None:
        """Append one cell; it is in the file when this returns."""
        if cell.id in self._index.ids:
            raise ReportError(f"cell {cell.id!r} is in the report twice; a cell is written once")
        line = encode_cell(cell).encode()
        self._append(line)
        self._index.add(cell, line)
        self._hits.update(cell.witness)

    def close(self) -> Path:
        """Write the end line, flush to disk and give the report its name, which is returned."""
        self._append(encode_end(len(self._index.ids), self._hits, self._index.to_json()).encode())
        try:
            # Pages of an earlier run must not stand beside this one's report.
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
            f"cannot write {self.path}: {error.strerror} after {len(self._index.ids)} cells; nothing is left there"
        ) from error
