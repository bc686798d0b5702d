"""The provenance of a run (code, data, machine, rules), as the header of its report, and the record of a cell: its
requested and effective configuration and its result. All records are built here."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from traceback import TracebackException, extract_tb
from typing import Any, Final

from msgspec import structs

from specmatrix import HOME, __version__
from specmatrix.engine.core.observe.step_counter import COUNTERS, GPU, RANKS, ZERO
from specmatrix.errors import ConfigError, EngineBug, NotFiniteError, RequestError
from specmatrix.git import git
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.tiers import repro
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.lockfile import LOCK_FILE, own_lock_file, stage_cells
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.matrix.gates.gate import Gate, Outcome, State
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.run.plugins import files_of_user
from specmatrix.matrix.subjects.engine_process import EngineFailed
from specmatrix.matrix.subjects.protocol import Capability, EngineCommand, RunningEngine, Stalled, Subject
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.zoo.registry import TARGETS, TEST, oracle_file, zoo_hash
from specmatrix.reports import schema
from specmatrix.reports.schema import REFERENCE, CellResult, CellState, Header, Json, StartRecord, SubjectRecord

ROOT: Final = HOME
PACKAGES: Final = ("torch", "transformers")


def run_header(
    tier: str,
    stage: str,
    seed: int,
    gates: Iterable[Gate],
    subject: Subject | None = None,
    waivers: tuple[schema.WaiverRule, ...] = (),
) -> Header:
    """The header of a run that starts now on this machine. subject: None for the reference engine."""
    described = SubjectRecord(REFERENCE, __version__, tuple(Capability)) if subject is None else subject_record(subject)
    return Header(
        tier=tier,
        stage=stage,
        seed=seed,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        dirty=bool(_git("status", "--porcelain", "--untracked-files=no")),
        versions=installed_versions(),
        host=this_host(find_tier(tier).gpus),
        lock_hash=files_hash([LOCK_FILE if subject is None else own_lock_file(subject.name)]),
        data_hash=files_hash([TEST, *map(oracle_file, TARGETS)]),
        zoo_hash=zoo_hash(),
        thresholds={gate.name: dict(gate.thresholds) for gate in gates},
        waivers=waivers,
        counters=demanded(stage, find_tier(tier).gpus) if described.name == REFERENCE else None,
        subject=described,
        repository=web_address(_git("remote", "get-url", "origin")),
        axes={axis.name: axis.default for axis in AXES},
        files=files_of_user(),
    )


def web_address(remote: str) -> str:
    """The address at which a browser finds a remote of git, without credentials; "" if it has none."""
    found = re.fullmatch(r"(?:https://|ssh://)(?:[^@/]*@)?([\w.-]+)(?::\d+)?/(.+?)(?:\.git)?/?", remote)
    found = found or re.fullmatch(r"[\w.-]+@([\w.-]+):(.+?)(?:\.git)?/?", remote)
    address = f"https://{found[1]}/{found[2]}" if found else ""
    return address if re.fullmatch(schema.ADDRESS, address) else ""


def installed_versions() -> dict[str, str]:
    """The versions that a run depends on, by name."""
    packages = {name: _version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages, "specmatrix": __version__}


def this_host(gpus: int = 0) -> dict[str, Json]:
    """The header's description of this machine. gpus: of the tier; with 0 no GPU is named, whatever the machine has."""
    return {"cpu": _cpu(), "cores": os.cpu_count(), "gpus": gpu_names() if gpus else []}


def gpu_names() -> list[str]:
    """The name of each visible GPU."""
    # torch takes a second to import, and the CPU tier does not need it here.
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def merged_host(hosts: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Several machines as one: the names of their processors, the sum of their cores, all their GPUs."""
    names = dict.fromkeys(str(host.get("cpu")) for host in hosts)
    gpus = [gpu for host in hosts for gpu in host.get("gpus") or ()]
    return {"cpu": ", ".join(names), "cores": sum(host.get("cores") or 0 for host in hosts), "gpus": gpus}


def subject_record(subject: Subject) -> SubjectRecord:
    """The header's description of a subject. ConfigError if its profile excludes an unknown gate."""
    claims = tuple(name for name in Capability if name in subject.profile.capabilities)
    return SubjectRecord(subject.name, subject.version() or "", claims, applied_gates(subject.profile).excluded)


def files_hash(paths: Iterable[Path]) -> str:
    """12 hex digits over the names and contents of files; the order of `paths` does not matter."""
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        digest.update(f"{path.parent.name}/{path.name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _commit() -> str:
    """The commit of this checkout, or the version of an installation, which holds the packages itself."""
    installed = not (ROOT / "specmatrix").is_dir()
    return f"v{__version__}" if installed else _git("rev-parse", "HEAD") or schema.UNKNOWN


def _git(*words: str) -> str:
    """The output of git for this checkout; empty without git or a checkout.

    An installation may be inside a checkout of another project.
    """
    if not (ROOT / "pyproject.toml").is_file():
        return ""
    try:
        return git(ROOT, *words)
    except ConfigError:
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return schema.UNKNOWN


def _cpu() -> str:
    """The processor's name, from /proc/cpuinfo on Linux and from `platform` elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# Smaller stages omit expensive modes.
STAGE: Final = "nightly"


def demanded(stage: str, gpus: int) -> schema.CounterDemand | None:
    """The counters that a run of the stage's cells on `gpus` GPUs must hit; None if the stage, or a tier of several
    GPUs, has too few cells to hit all."""
    if stage != STAGE or gpus > 1:
        return None
    cells = len(of_gpus(stage_cells(stage), gpus))
    never = (*ZERO, *(RANKS if gpus else GPU))
    return schema.CounterDemand(tuple(name for name in COUNTERS if name not in never), ZERO, cells)


LAST_FRAMES: Final = 3


class BaselineError(Exception):
    """The baseline of a cell crashed, so the cell itself has no result. cause: the original exception."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"baseline: {type(cause).__name__}: {cause}")
        self.cause = cause


def judged(
    prepared: PreparedCell,
    outcomes: Sequence[Outcome],
    engine: RunningEngine | None = None,
    evidence: Mapping[str, int] | None = None,
    command: EngineCommand | None = None,
    first_red: schema.FailingRequest | None = None,
) -> CellResult:
    """The record of a cell with gate outcomes; NOT MEASURED without any."""
    states = {outcome.state for outcome in outcomes}
    lacking = State.NOT_MEASURED in states or not outcomes
    state: CellState = "FAIL" if State.FAIL in states else "NOT MEASURED" if lacking else "PASS"
    error = None if outcomes else "no gate applied to this cell"
    made = record(prepared, state, engine, evidence, outcomes, error, command)
    return structs.replace(made, first_red=first_red)


def with_outcome(result: CellResult, outcome: Outcome) -> CellResult:
    """The record of a cell that passed, with the outcome of one more gate."""
    made = structs.replace(result, state=outcome.state.value, gates=(*result.gates, _gate(outcome)))
    schema.check_cell(made)
    return made


def crashed(
    prepared: PreparedCell,
    error: Exception,
    command: EngineCommand | None = None,
    engine: RunningEngine | None = None,
    evidence: Mapping[str, int] | None = None,
    first_red: schema.FailingRequest | None = None,
) -> CellResult:
    """The record of a cell whose run raised: FAIL for an EngineBug, which the engine detected itself, for a request of
    the cell that the engine refused or gave numbers that are not finite, for a baseline that never ends, and for an
    engine that failed in its own process or refused a command that its subject translated, else INFRA. command: the
    translated cell, None if translation was not reached. engine: None if it did not start."""
    cause, part = (error.cause, "baseline: ") if isinstance(error, BaselineError) else (error, "")
    if isinstance(cause, EngineFailed) or (isinstance(cause, ConfigError) and prepared.subject != REFERENCE):
        found = record(prepared, "FAIL", engine, evidence, error=f"{part}{cause}", command=command)
        if isinstance(cause, EngineFailed):
            return structs.replace(found, verb=cause.verb, traceback=cause.traceback)
        return structs.replace(found, traceback=traceback_of(cause))
    frames = traceback.extract_tb(cause.__traceback__)
    places = [f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in frames[: -LAST_FRAMES - 1 : -1]]
    text = f"{part}{type(cause).__name__}: {cause}, in {' < '.join(places)}"
    state: CellState = "FAIL" if isinstance(cause, EngineBug | RequestError | NotFiniteError | Stalled) else "INFRA"
    found = record(prepared, state, engine, evidence, error=text, command=command)
    return structs.replace(found, verb=verb_of(cause), traceback=traceback_of(cause), first_red=first_red)


def lost(prepared: PreparedCell, reason: str, crashed: bool = False) -> CellResult:
    """The INFRA record of a cell that has no result for a reason unrelated to the cell itself; FAIL if its process
    `crashed`, in which the reference engine ran."""
    state: CellState = "FAIL" if crashed and prepared.subject == REFERENCE else "INFRA"
    return record(prepared, state, error=f"the cell has no result: {reason}")


def record(
    prepared: PreparedCell,
    state: CellState,
    engine: RunningEngine | None = None,
    evidence: Mapping[str, int] | None = None,
    outcomes: Sequence[Outcome] = (),
    error: str | None = None,
    command: EngineCommand | None = None,
) -> CellResult:
    """The record of a cell, ReportError if it contradicts itself. engine: None if it did not start. evidence: counter
    increments during its requests. command: the translated cell, None for the reference engine."""
    cell, asked = prepared.cell, asdict(prepared.configuration) if command is None else requested(command)
    start = StartRecord(asked) if engine is None else start_record(asked, engine.resolved, engine.start_hash)
    made: CellResult = schema.CellRecord(
        id=cell.id,
        state=state,
        start=start,
        axes=cell.values,
        repro=repro(cell.id, prepared.tier, prepared.seed, prepared.subject),
        expect=prepared.expectation,
        evidence=dict(evidence or {}),
        gates=tuple(_gate(outcome) for outcome in outcomes),
        error=error,
    )
    schema.check_cell(made)
    return made


def start_record(asked: Mapping[str, Any], resolved: Mapping[str, Any], start_hash: str) -> StartRecord:
    """An engine start, whose reasons and rewrites are among the resolved values."""
    left = dict(resolved)
    reasons = tuple(schema.ReasonRecord(**reason) for reason in left.pop("reasons", ()))
    rewrites = tuple(schema.RewriteRecord(**rewrite) for rewrite in left.pop("rewrites", ()))
    return StartRecord(asked, left, start_hash, reasons, rewrites)


def requested(command: EngineCommand) -> dict[str, Any]:
    """A command's flags, and the checkpoints with their variant if it names any."""
    models = {"checkpoints": dict(command.checkpoints), "variant": command.variant} if command.checkpoints else {}
    return {**command.flags, **models}


def _gate(found: Outcome) -> schema.GateResult:
    numbers = {name: "none" if number is None else number for name, number in found.numbers.items()}
    return schema.GateResult(found.gate, found.state.value, numbers, found.interval, found.message, found.accept)


# Characters kept of a traceback's end, where the cause is.
MAX_TRACEBACK: Final = 20_000
LEDGER: Final = ("open", "reserve", "launch", "settle", "cancel", "donate", "hold", "resume", "close", "evict", "check")
# Path suffix of a file -> function -> verb; the innermost matching frame wins.
VERBS: Final[Mapping[str, Mapping[str, str]]] = {
    "engine/core/memory/ledger.py": {name: name for name in LEDGER},
    "engine/core/schedule/scheduler.py": {"plan": "schedule"},
    "engine/loop.py": {"_launch": "launch", "_collect": "collect", "_resolve": "resolve"},
    "engine/device_step.py": {"_prefill": "prefill"},
    "engine/spec/verify.py": {"verify": "verify"},
    "engine/api.py": {"__init__": "start", "add": "add"},
    "matrix/subjects/in_process.py": {"start_engine": "start", "generate": "generate"},
}
# Hooks of any drafter, wherever it is defined.
HOOKS: Final = ("prime", "propose", "absorb")


def verb_of(error: BaseException) -> str:
    """The verb at fault, "" if no frame of the traceback is one."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.name in HOOKS:
            return frame.name
        for path, verbs in VERBS.items():
            if Path(frame.filename).as_posix().endswith(path) and frame.name in verbs:
                return verbs[frame.name]
    return ""


def traceback_of(error: BaseException) -> str:
    """The whole traceback with its causes, paths inside the packages from their root on."""
    text = "".join(TracebackException.from_exception(error).format()).replace(f"{HOME}/", "")
    return text if len(text) <= MAX_TRACEBACK else f"…{text[1 - MAX_TRACEBACK :]}"
