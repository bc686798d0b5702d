"""Waivers: known failures that do not fail a run until they expire. Waived cells still run.

They are a YAML file in the user's tree, a list of mappings; `docs/reading-a-report.md` shows one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Final

from msgspec import ValidationError, convert, structs
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from specmatrix.errors import ConfigError, shown
from specmatrix.files import read_text
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.gates.registry import gate_names
from specmatrix.matrix.subjects.registry import known_subjects
from specmatrix.reports.schema import CRASH, RED_STATES, REFERENCE, CellResult, Waiver, WaiverRule
from specmatrix.reports.yaml_text import parse_yaml

DEFAULT_FILE: Final = Path("specmatrix-waivers.yaml")


def load_waivers(path: Path | None) -> tuple[WaiverRule, ...]:
    """The waivers of a file; for None those of `DEFAULT_FILE` in the current folder, none without it.

    One-sentence ConfigError if the file is invalid.
    """
    if path is None:
        if not DEFAULT_FILE.exists():
            return ()
        path = DEFAULT_FILE
    try:
        read = parse_yaml(read_text(path))
    except OSError as error:
        raise ConfigError(f"cannot read the waivers {shown(str(path))}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the waivers {shown(str(path))} are not UTF-8 text") from error
    except ValueError as error:
        raise ConfigError(f"the waivers {shown(str(path))} are not YAML: {shown(str(error))}") from error
    if read is not None and not isinstance(read, list):
        raise ConfigError(f"the waivers {shown(str(path))} must be a list, got a {type(read).__name__}")
    return tuple(_rule(entry, f"waiver {number} of {path}") for number, entry in enumerate(read or (), 1))


def file_option(path: Path) -> str:
    """The option that names a file of waivers, for a shell."""
    return f"--waivers {shlex.quote(str(path))}"


def waive(
    result: CellResult, rules: Sequence[WaiverRule], subject: str, version: str | None, today: date | None = None
) -> CellResult:
    """A record with the waiver that covers it, the one that expires first, if waivers cover all of its red gates.

    A cell that passes a gate named by a `known` waiver becomes FAIL: the waiver is obsolete.
    """
    day = (today or date.today()).isoformat()
    own = [rule for rule in rules if _selects(rule, result, subject, version)]
    if result.state in RED_STATES:
        red = {gate.name: gate.message for gate in result.gates if gate.state != "PASS"} or {CRASH: result.error or ""}
        covering = [[one for one in own if one.gate == name and re.search(one.message, red[name])] for name in red]
        if all(covering):
            # Of several waivers for one gate the last to expire counts; the cell is waived while all gates are.
            rule = min((max(each, key=lambda rule: rule.expiry) for each in covering), key=lambda rule: rule.expiry)
            return structs.replace(result, waived=Waiver(rule.reason, rule.expiry, rule.issue))
        return result
    if result.state != "PASS":
        return result
    judged = {gate.name for gate in result.gates} | {CRASH}
    stale = [rule for rule in own if rule.kind == "known" and rule.gate in judged and day <= rule.expiry]
    if not stale:
        return result
    text = f"{stale[0].gate} passes again, but a waiver until {stale[0].expiry} says that it fails: {stale[0].reason}"
    return structs.replace(result, state="FAIL", error=text)


def _selects(rule: WaiverRule, result: CellResult, subject: str, version: str | None) -> bool:
    if rule.subject != subject:
        return False
    if rule.versions and (version is None or not SpecifierSet(rule.versions).contains(version, prereleases=True)):
        return False
    return parse_selector(rule.cells)(Cell(**result.axes))


def _rule(entry: object, where: str) -> WaiverRule:
    if isinstance(entry, dict) and "gate" not in entry:
        raise ConfigError(f"{where} has no gate, which it excuses")
    # One left out is any message; a blank one would be too, but reads as if it chose some.
    if isinstance(entry, dict) and isinstance(text := entry.get("message"), str) and not text.strip():
        raise ConfigError(f"message of {where} must be a regular expression that is not blank, got {shown(text)}")
    try:
        rule = convert(entry, WaiverRule)
    except ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    for fault in _faults(rule, where):
        raise ConfigError(fault)
    return rule


def _faults(rule: WaiverRule, where: str) -> Iterator[str]:
    if rule.gate not in (gates := (*gate_names(), CRASH)):
        yield f"gate of {where} must be one of {', '.join(gates)}, got {shown(rule.gate)}"
    if rule.subject != REFERENCE and rule.subject not in (known := known_subjects()):
        yield f"subject of {where} must be one of {', '.join(known)}, got {shown(rule.subject)}"
    try:
        date.fromisoformat(rule.expiry)
    except ValueError:
        yield f"expiry of {where} must be a date such as 2026-12-31, got {shown(rule.expiry)}"
    try:
        SpecifierSet(rule.versions)
    except InvalidSpecifier:
        yield f"versions of {where} must be a range such as '>=5.17,<5.20', got {shown(rule.versions)}"
    try:
        parse_selector(rule.cells)
    except ConfigError as error:
        yield f"cells of {where}: {error}"
    try:
        re.compile(rule.message)
    except re.error as error:
        yield f"message of {where} must be a regular expression: {error}"
