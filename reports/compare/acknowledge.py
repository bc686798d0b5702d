"""Changes that a reviewer has accepted, each with a reason and an expiry date."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from specmatrix.engine.core.config.json_text import parse_json
from specmatrix.errors import shown, text_of
from specmatrix.files import read_text
from specmatrix.reports.schema import ReportError, check_day

KINDS: Final = ("rewrite", "lost")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`what`: a pattern (`*` and `?`) over signatures such as `spec_version: v2 -> v1` for kind `rewrite`, over cell
    ids for kind `lost`. `expiry`: an ISO date, inclusive."""

    kind: str
    what: str
    reason: str
    expiry: str


class Acknowledged:
    """The acknowledgements valid on one day, and which of them were used."""

    def __init__(self, entries: tuple[Acknowledgement, ...] = (), today: str = "") -> None:
        self._entries = tuple(entry for entry in entries if today[:10] <= entry.expiry)
        self._used: set[Acknowledgement] = set()

    def reason(self, kind: str, what: str) -> str:
        """The reason of the acknowledgement that covers `what`, or "" if none does."""
        for entry in self._entries:
            if entry.kind == kind and fnmatchcase(what, entry.what):
                self._used.add(entry)
                return entry.reason
        return ""

    def unused(self) -> tuple[str, ...]:
        """Acknowledgements that matched nothing and should be removed."""
        return tuple(f"{entry.kind} {entry.what}" for entry in self._entries if entry not in self._used)


def read_acknowledgements(path: Path) -> tuple[Acknowledgement, ...]:
    """The entries of a JSON file: a list of objects with `kind`, `what`, `reason`, `expiry`.

    Raises ReportError for a missing or broken file, an unknown kind, an empty reason or a bad date.
    """
    try:
        rows = parse_json(read_text(path))
    except OSError as error:
        raise ReportError(f"cannot read {text_of(path)}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ReportError(f"{path} is not JSON: it is not UTF-8 text") from None
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ReportError(f"{path} must hold a list of acknowledgements, got {type(rows).__name__}")
    return tuple(_entry(row, f"{path}, entry {number}") for number, row in enumerate(rows, start=1))


def _entry(row: object, where: str) -> Acknowledgement:
    names = ("kind", "what", "reason", "expiry")
    if not isinstance(row, dict) or sorted(row) != sorted(names) or not all(isinstance(row[n], str) for n in names):
        raise ReportError(f"{where} must be an object with the strings {', '.join(names)}")
    entry = Acknowledgement(**row)
    if entry.kind not in KINDS:
        raise ReportError(f"{where}: kind must be one of {', '.join(KINDS)}, got {shown(entry.kind)}")
    if not entry.reason.strip():
        raise ReportError(f"{where}: the reason is empty; say why {shown(entry.what)} is accepted")
    try:
        check_day("expiry", entry.expiry)
    except ValueError as error:
        raise ReportError(f"{where}: {error}") from None
    return entry
