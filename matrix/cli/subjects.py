"""`specmatrix subjects`: the engines that cells can run on, and the contract that they must satisfy."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from specmatrix.errors import ConfigError, shown, text_of
from specmatrix.matrix.cli.contract import verdict
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.subjects import skeleton
from specmatrix.matrix.subjects.contract import check_contract
from specmatrix.matrix.subjects.environment import CPU_ENGINE, ENVIRONMENTS, ON_CPU, SGLANG
from specmatrix.matrix.subjects.http.endpoint import endpoint_of
from specmatrix.matrix.subjects.protocol import Capability, Subject
from specmatrix.matrix.subjects.registry import installed_subject, known_subjects, load_subject
from specmatrix.reports.atomic import write_text
from specmatrix.reports.render.console import print_answer, table_console
from specmatrix.reports.wording import count
from specmatrix.stopping import Stopped

MISSING: Final = "not installed"
SKELETON: Final = Path(skeleton.__file__)


def subjects(context: typer.Context, json_: bool = False) -> int:
    """Print each subject's name, version and gates; one that cannot be loaded says why, with status 1."""
    if context.invoked_subcommand:
        return 0
    rows = []
    for name in known_subjects():
        try:
            rows.append(_facts(load_subject(name)))
        except ConfigError as error:
            nothing: dict[str, Any] = {"shows": [], "cannot": {}, "judged_by": [], "excluded": {}}
            rows.append({"name": name, "version": None, **nothing, "error": str(error)})
    red = any(row["error"] for row in rows)
    if json_:
        print_answer({"schema": 1, "subjects": rows}, "", json_)
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


def show(name: str, json_: bool = False) -> int:
    """Print everything about a subject. ConfigError if there is none of this name, or it cannot be loaded."""
    row = _facts(load_subject(name))
    lines = [f"{name}: {row['version'] or MISSING}", f"shows: {', '.join(row['shows'])}"]
    lines += [f"does not show {capability}: {why}" for capability, why in row["cannot"].items()]
    for algorithm, rule in row["acceptance"].items():
        loss = f", with a total variation of {rule['loss']:g} at most" if rule["loss"] else ""
        lines.append(f"accepts sampled drafts of {algorithm} by {rule['rule']}{loss}: {rule['chosen_by']}")
    lines.append(f"judged by: {', '.join(row['judged_by'])}")
    reasons: dict[str, list[str]] = {}
    for gate, why in row["excluded"].items():
        reasons.setdefault(why, []).append(gate)
    lines += [f"not judged by {', '.join(gates)}: {why}" for why, gates in reasons.items()]
    return print_answer({"schema": 1, **row}, "\n".join(lines), json_)


def _facts(subject: Subject) -> dict[str, Any]:
    """The data on a subject that both commands print. ConfigError if its profile excludes an unknown gate."""
    applied = applied_gates(subject.profile)
    return {
        "name": subject.name,
        "version": subject.version(),
        "shows": [str(name) for name in Capability if name in subject.profile.capabilities],
        "acceptance": {name or "all": rule._asdict() for name, rule in subject.profile.acceptance.items()},
        "cannot": {str(capability): reason for capability, reason in subject.profile.cannot.items()},
        "judged_by": [gate.name for gate in applied.gates],
        "excluded": dict(applied.excluded),
        "error": None,
    }


def check(
    name: str, url: str | None = None, launch: str | None = None, api_key: str | None = None, json_: bool = False
) -> int:
    """Run the contract for a subject, law by law; 0 if it holds. ConfigError if there is none of this name, or it is
    missing."""
    subject = installed_subject(name, endpoint_of(url, None, launch, api_key))
    done = list[dict[str, Any]]()
    with closing(check_contract(subject)) as laws:  # so that its engine ends first if the user interrupts
        try:
            for law in laws:
                if not json_:
                    print(f"  {law.name:43}", end="", flush=True)
                began = perf_counter()
                broken, seconds = law.check(), perf_counter() - began
                done.append({"name": law.name, "seconds": seconds, "broken": broken and broken._asdict()})
                if not json_:
                    lines = [f"{what + ':':10}{text}" for what, text in (broken._asdict() if broken else {}).items()]
                    print(verdict(lines, f"{seconds:6.1f} s"), flush=True)
        except Stopped as stop:
            raise stop.saying(f"interrupted after {count(len(done), 'law')} of the contract") from None
    held = sum(part["broken"] is None for part in done)
    record = {"schema": 2, "subject": name, "checks": done}
    print_answer(record, f"{name}: {held} of {len(done)} laws of the contract hold", json_)
    return int(held < len(done))


def new(file: Path) -> int:
    """Write a subject to fill in. ConfigError if the file exists."""
    if file.exists():
        raise ConfigError(f"{text_of(file)} exists; name a new file")
    write_text(file, SKELETON.read_text(encoding="utf-8"))
    print(f"{file} is a subject to fill in, at each TODO; check it with: specmatrix subjects check {file}:MySubject")
    return 0


def install(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"a subject with its own environment: {' or '.join(ENVIRONMENTS)}")
    ],
    into: Path | None = None,
    version: str | None = None,
) -> int:
    """Make the environment of an engine, which takes minutes and perhaps gigabytes, and say where it is."""
    if name not in ENVIRONMENTS:
        allowed = " or ".join(ENVIRONMENTS)
        raise ConfigError(f"subject {shown(name)} has no environment of its own; it must be {allowed}")
    environment = ENVIRONMENTS[name]
    place = environment.folder() if into is None else into
    print(f"{environment.package} {environment.install(place, version)} is in {place}")
    if environment is SGLANG:
        command = f"{environment.python(place)} -m sglang.launch_server {ON_CPU}"
        print(f"to start a server: {CPU_ENGINE} {command}")
    elif place.absolute() != environment.folder().absolute():
        print(f"to use it: export {environment.variable}={place.absolute()}")
    return 0
