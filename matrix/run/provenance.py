"""The provenance of a run (code, data, machine, rules), as the header of its report."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from specmatrix import HOME, __version__
from specmatrix.engine.core.observe.counters import COUNTERS, GPU, RANKS, ZERO
from specmatrix.errors import ConfigError
from specmatrix.git import git
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.cells.tiers import tier as find_tier
from specmatrix.matrix.cover.lockfile import LOCK_FILE, own_lock_file, stage_cells
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.matrix.gates.gate import Gate
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.run.plugins import files_of_user
from specmatrix.matrix.subjects.protocol import Capability, Subject
from specmatrix.matrix.zoo.registry import TARGETS, TEST, oracle_file, zoo_hash
from specmatrix.reports.schema import (
    ADDRESS,
    REFERENCE,
    UNKNOWN,
    CounterDemand,
    Header,
    Json,
    SubjectRecord,
    WaiverRule,
)

ROOT: Final = HOME
PACKAGES: Final = ("torch", "transformers")


def run_header(
    tier: str,
    stage: str,
    seed: int,
    gates: Iterable[Gate],
    subject: Subject | None = None,
    waivers: tuple[WaiverRule, ...] = (),
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
    return address if re.fullmatch(ADDRESS, address) else ""


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
    return f"v{__version__}" if installed else _git("rev-parse", "HEAD") or UNKNOWN


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
        return UNKNOWN


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


def demanded(stage: str, gpus: int) -> CounterDemand | None:
    """The counters that a run of the stage's cells on `gpus` GPUs must hit; None if the stage, or a tier of several
    GPUs, has too few cells to hit all."""
    if stage != STAGE or gpus > 1:
        return None
    cells = len(of_gpus(stage_cells(stage), gpus))
    never = (*ZERO, *(RANKS if gpus else GPU))
    return CounterDemand(tuple(name for name in COUNTERS if name not in never), ZERO, cells)
