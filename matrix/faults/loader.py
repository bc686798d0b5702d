"""Reads the faults: `catalogue/*.yaml`, by subject of the defect, and `delays.yaml`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from specmatrix.errors import ConfigError, shown, text_of
from specmatrix.matrix.faults.fault import Edit, Fault
from specmatrix.reports.yaml_text import parse_yaml
from specmatrix.user_file import DEFINED

FOLDER: Final = Path(__file__).parent
FIELDS: Final = f"a fault has {', '.join(Fault.__struct_fields__)}; an edit has {', '.join(Edit.__struct_fields__)}"


# Faults added by plug-ins.
_OWN: Final[list[Fault]] = []


def register_fault(fault: Fault) -> None:
    """Add a fault after the catalogue's. ConfigError if its id is taken or it is no Fault."""
    if not isinstance(fault, Fault):
        raise ConfigError(f"a fault must be a Fault, got {shown(fault)}")
    if fault.id in (known.id for known in all_faults()):
        raise ConfigError(f"fault {shown(fault.id)} exists already; choose another id")
    _OWN.append(fault)
    DEFINED.append(f"fault {fault.id}")


def all_faults() -> tuple[Fault, ...]:
    """The catalogue's faults and those of plug-ins."""
    return (*catalogue(), *_OWN)


@cache
def catalogue() -> tuple[Fault, ...]:
    """The faults that a gate must detect. ConfigError if their files are missing, as in an incomplete installation."""
    if not (files := sorted((FOLDER / "catalogue").glob("*.yaml"))):
        raise ConfigError(f"{FOLDER / 'catalogue'} holds no fault files (*.yaml); reinstall specmatrix")
    return tuple(fault for path in files for fault in read_faults(path))


@cache
def delays() -> tuple[Fault, ...]:
    """The faults that a comparison of two timed runs must detect; they are not part of the catalogue."""
    return read_faults(FOLDER / "delays.yaml")


def read_faults(path: Path) -> tuple[Fault, ...]:
    """Read the faults of a file. One-sentence ConfigError if it is invalid."""
    try:
        entries = parse_yaml(path.read_text(encoding="utf-8"), own=True)
    except ValueError as error:
        raise ConfigError(f"{path.name} is not YAML: {text_of(error)}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path.name} must be a list of faults, got {shown(entries)}")
    return tuple(_fault(entry, f"{path.name}: fault {number}") for number, entry in enumerate(entries, 1))


def _fault(entry: object, where: str) -> Fault:
    try:
        return msgspec.convert(entry, Fault)
    except msgspec.ValidationError as error:
        name = f" ({text_of(entry['id'])})" if isinstance(entry, dict) and "id" in entry else ""
        problem, _, place = str(error).partition(" - at ")
        raise ConfigError(f"{where}{name}: {problem}{_at(entry, place)}; {FIELDS}") from None


def _at(entry: Any, place: str) -> str:  # noqa: ANN401  # whatever YAML holds
    """The value that msgspec's message is about, by its path such as `$.also[0].old`."""
    keys = re.findall(r"\w+", place)
    for key in keys:
        entry = entry[int(key)] if isinstance(entry, list) else entry[key]
    return f" {shown(entry)} as {place.strip('`$.')}" if keys else ""
