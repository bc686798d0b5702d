"""Changes that a person has accepted, each with a reason and an expiry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from specmatrix.reports.schema import ReportError

KINDS: Final = ("rewrite", "lost")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`what` is a pattern (`*` and `?`) over signatures such as `spec_version: v2 -> v1` for kind `rewrite`, and over
    cell ids for kind `lost`. `expiry` is an ISO date, inclusive."""

    kind: str
    what: str
    reason: str
    expiry: str


class Acknowledged:
    """The acknowledgements that hold on one day, and which of them were used."""

    def __init__(self, entries: tuple[Acknowledgement, ...] = (), today: str = "") -> None:
        self._entries = tuple(entry for entry in entries if today[:10] <= entry.expiry)
        self._used: set[Acknowledgement] = set()

    def reason(self, kind: str, what: str) -> str:
        """The reason under which `what` is accepted, or "" if it is not."""
        for entry in self._entries:
            if entry.kind == kind and fnmatchcase(what, entry.what):
                self._used.add(entry)
                return entry.reason
        return ""

    def unused(self) -> tuple[str, ...]:
        """Acknowledgements of things that did not happen; they should be removed."""
        return tuple(f"{entry.kind} {entry.what}" for entry in self._entries if entry not in self._used)


def read_acknowledgements(path: Path) -> tuple[Acknowledgement, ...]:
    """The entries of a JSON file: a list of objects with `kind`, `what`, `reason`, `expiry`.

    Raises ReportError, one sentence, for a missing file, a broken one, an unknown kind, an empty reason or a bad date.
    """
    try:
        rows = json.loads(path.read_text())
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ReportError(f"{path} holds {type(rows).__name__}, allowed is a list of acknowledgements")
    return tuple(_entry(row, f"{path}, entry {number}") for number, row in enumerate(rows, start=1))


def _entry(row: object, where: str) -> Acknowledgement:
    names = ("kind", "what", "reason", "expiry")
    if not isinstance(row, dict) or sorted(row) != sorted(names) or not all(isinstance(row[n], str) for n in names):
        raise ReportError(f"{where}: allowed is an object with the texts {', '.join(names)}")
    entry = Acknowledgement(**row)
    if entry.kind not in KINDS:
        raise ReportError(f"{where}: kind is {entry.kind!r}, allowed are {', '.join(KINDS)}")
    if not entry.reason.strip():
        raise ReportError(f"{where}: the reason is empty; say why {entry.what!r} is accepted")
    try:
        date.fromisoformat(entry.expiry)
    except ValueError:
        raise ReportError(f"{where}: expiry is {entry.expiry!r}, allowed is a date such as 2026-12-31") from None
    return entry
