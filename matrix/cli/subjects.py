"""`specmatrix subjects`: the engines that cells can run on, and the contract that they must satisfy.

`specmatrix contract`: the conformance suite for draft algorithms, in a process that must return a verdict.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path
from textwrap import indent
from time import monotonic, perf_counter
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from specmatrix.child_process import ChildProcess
from specmatrix.errors import ConfigError, shown, text_of
from specmatrix.matrix.cli.flags import flags_of
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.subjects import skeleton
from specmatrix.matrix.subjects.contract import check_contract
from specmatrix.matrix.subjects.environment import CPU_ENGINE, ENVIRONMENTS, ON_CPU, SGLANG
from specmatrix.matrix.subjects.http.endpoint import endpoint_of
from specmatrix.matrix.subjects.protocol import Capability, Subject
from specmatrix.matrix.subjects.registry import installed_subject, known_subjects, load_subject
from specmatrix.reports.render.console import awaited, print_answer, table_console
from specmatrix.reports.store import write_text
from specmatrix.reports.wording import count
from specmatrix.stopping import Stopped
from specmatrix.temp_dir import TempDir

CHILD: Final = "specmatrix.matrix.conformance.child"
POLL_SECONDS: Final = 0.05
OUTPUT_TAIL: Final = 2000  # characters


class NoVerdictError(Exception):
    """The process ended or hung before its verdict; the message says how."""


def contract(algorithm: list[str] | None = None, timeout: float = 120.0, json_: bool = False) -> int:
    """Run the suite for the algorithms of a file, or for one by name; 0 if every engine start conforms.

    algorithm: the file or the name, and engine flags as typed. ConfigError on an invalid one.
    """
    word, asked = _parsed(algorithm or [])

    def say(text: str) -> None:
        if not json_:
            print(text, flush=True)

    algorithms: list[tuple[str, list[dict[str, Any]]]] = []
    reason = None
    with TempDir("contract") as folder:
        file = folder / "results.jsonl"
        file.touch()
        # -P: a file of the current folder must not replace an installed module.
        process = ChildProcess([sys.executable, "-P", "-u", "-m", CHILD, str(file), word, json.dumps(asked)])
        try:
            starts = awaited(results(process, file, timeout), f"testing {word}")
            for name, group in groupby(starts, lambda result: str(result["algorithm"])):
                done: list[dict[str, Any]] = []
                algorithms.append((name, done))
                for result in group:
                    done.append(result)
                    say(_line(result))
                say(_sum(name, done))
        except Stopped as stop:
            # The signal's sender is unknown, and may be the code under test.
            alive = process.wait(0) is None
            raise stop.saying(
                f"interrupted while {word} ran, which may have sent the signal" if alive else str(stop)
            ) from None
        except NoVerdictError as error:
            reason = str(error)
            say(f"NO VERDICT: {reason}")
        finally:
            process.stop()
    red = reason is not None or any(result["violations"] for _, done in algorithms for result in done)
    output = _printable(process.output_end(OUTPUT_TAIL)) if red else ""
    if output:
        say("\n  ".join(["end of the output:", *output.splitlines()]))
    if json_:
        shown = [_record(name, done) for name, done in algorithms]
        print(json.dumps({"schema": 2, "algorithms": shown, "no_verdict": reason, "output": output}, indent=2))
    return int(red)


def _parsed(words: list[str]) -> tuple[str, dict[str, str]]:
    names, asked = flags_of(words)
    if len(names) != 1:
        given = count(len(names), "algorithm")
        raise ConfigError(f"{given} given; give one Python file that registers algorithms, or one algorithm's name")
    if asked.get("tp_size", "1") != "1":
        raise ConfigError(
            f"tp_size must be 1 for contract, got {asked['tp_size']}; tensor parallelism is tested by cells with tp=2, "
            "4 or 8"
        )
    with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
        Path(names[0]).open("rb").close()  # an unreadable file is the user's mistake, not a missing verdict
    return names[0], asked


def results(process: ChildProcess, file: Path, timeout: float) -> Iterator[dict[str, Any]]:
    """The results that the process appends to the file. ConfigError if it refuses the algorithm; NoVerdictError if it
    ends without a verdict, or gives no result for `timeout` seconds."""
    with file.open("rb") as lines:
        unread, heard = b"", monotonic()
        while True:
            status = process.wait(POLL_SECONDS)
            *whole, unread = (unread + lines.read()).split(b"\n")
            for result in map(json.loads, whole):
                if "refused" not in result:
                    yield result
                    heard = monotonic()
                elif result["refused"] is None:
                    return
                else:
                    raise ConfigError(result["refused"])
            if status is not None:
                raise NoVerdictError(_ended(status))
            if monotonic() - heard > timeout:
                raise NoVerdictError(f"the process gave no result for {timeout:g} s and was killed")


def _ended(status: int) -> str:
    if status >= 0:
        return f"the process ended with exit status {status} before the last result"
    names = {number.value: number.name for number in signal.Signals}
    return f"the process was killed by {names.get(-status, f'signal {-status}')} before the last result"


def _printable(text: str) -> str:
    """The text without control characters, which a terminal would interpret."""
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)


def _line(result: Mapping[str, Any]) -> str:
    length = result["tokens_per_round"]
    speed = "" if length is None else f"{length:5.2f} tokens per round"
    return f"  {result['start']:40} {verdict(result['violations'], speed)}"


def verdict(violations: Sequence[str], measured: str) -> str:
    """The result column of a law or a start: PASS or FAIL with the measurement, and a line per violation."""
    head = f"{'FAIL' if violations else 'PASS'} {measured}".rstrip()
    return "\n".join([head, *(indent(each, "    ") for each in violations)])


def _sum(name: str, done: Sequence[Mapping[str, Any]]) -> str:
    if failed := sum(bool(result["violations"]) for result in done):
        return f"{name} VIOLATES the contract in {failed} of {count(len(done), 'engine start')}"
    return f"{name} satisfies the contract in {count(len(done), 'engine start')}"


def _record(name: str, done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    starts = [{key: result[key] for key in ("start", "tokens_per_round", "violations")} for result in done]
    return {"name": name, "passed": not any(result["violations"] for result in done), "starts": starts}


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
            raise stop.saying(f"interrupted after {count(len(done), 'check')} of the contract") from None
    held = sum(part["broken"] is None for part in done)
    record = {"schema": 2, "subject": name, "checks": done}
    print_answer(record, f"{name}: {held} of {len(done)} checks of the contract pass", json_)
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
