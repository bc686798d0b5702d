"""Changes that a reviewer has accepted, each with a reason and an expiry date."""

from __future__ import annotations

from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from msgspec import Struct, convert

from specmatrix.errors import text_of
from specmatrix.files import read_text
from specmatrix.json_text import parse_json
from specmatrix.reports.schema import MAX_SAID, Day, Reason, ReportError
from specmatrix.reports.wording import shorten


class Acknowledgement(Struct, frozen=True, forbid_unknown_fields=True):
    """`what`: a pattern (`*` and `?`) over signatures such as `spec_version: v2 -> v1` for kind `rewrite`, over cell
    ids for kind `lost`. `expiry`: an ISO date, inclusive."""

    kind: Literal["rewrite", "lost"]
    what: str
    reason: Reason
    expiry: Day


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
        entries = convert(parse_json(read_text(path)), tuple[Acknowledgement, ...])
        for entry in entries:
            date.fromisoformat(entry.expiry)  # the pattern takes a 13th month
        return entries
    except OSError as error:
        raise ReportError(f"cannot read {text_of(path)}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ReportError(f"{path} is no list of acknowledgements: it is not UTF-8 text") from None
    except ValueError as error:
        raise ReportError(f"{path} is no list of acknowledgements: {shorten(str(error), MAX_SAID)}") from None
