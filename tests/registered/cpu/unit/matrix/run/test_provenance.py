"""The header of a run."""

import json
import os
import platform
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import torch

from specmatrix import HOME, __version__
from specmatrix.engine.core.observe.step_counter import COUNTERS, GPU, RANKS, ZERO
from specmatrix.git import git
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.faults.plant import planted
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run import provenance
from specmatrix.matrix.run.provenance import demanded
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Capability, Profile
from specmatrix.reports.store import ReportWriter, load
from tests.support.tables import table


def test_header_is_complete_and_writable(tmp_path: Path):
    header = provenance.run_header("cpu", "pr", 7, GATES)
    ReportWriter(tmp_path, header).close()
    assert load(tmp_path).header == header
    assert (header.tier, header.stage, header.seed) == ("cpu", "pr", 7)
    assert header.counters == demanded("pr", 0)
    assert datetime.fromisoformat(header.created).tzinfo is not None
    assert set(header.versions) == {"python", "torch", "transformers", "specmatrix"}
    assert set(header.thresholds) == {gate.name for gate in GATES}
    assert all(len(digest) == 12 for digest in (header.lock_hash, header.data_hash, header.zoo_hash))


def test_a_gpu_tier_names_its_gpus_and_the_cpu_tier_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", ("H100", "A100").__getitem__)
    assert provenance.run_header("gpu1", "pr", 0, ()).host["gpus"] == ["H100", "A100"]
    here = provenance.run_header("cpu", "pr", 0, ()).host
    assert here["gpus"] == [] and here["cores"] == os.cpu_count() and here["cpu"]


def test_several_machines_are_one_host_with_all_that_they_have():
    first, second = {"cpu": "EPYC", "cores": 2, "gpus": ["H100", "H100"]}, {"cpu": "Xeon", "cores": None, "gpus": None}
    hosts = [first, second, {"cpu": "EPYC", "cores": 3, "gpus": ["A100"]}, {}]
    assert provenance.merged_host(hosts) == {"cpu": "EPYC, Xeon, None", "cores": 5, "gpus": ["H100", "H100", "A100"]}


def test_a_package_that_is_not_installed_has_an_unknown_version(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("torch", "no-such-package"))
    known = {"python": platform.python_version(), "torch": torch.__version__, "specmatrix": __version__}
    assert provenance.installed_versions() == known | {"no-such-package": "unknown"}


@pytest.mark.parametrize(("remote", "address"), table(__file__)["remotes"])
def test_the_address_of_a_remote_in_the_web(remote: str, address: str):
    assert provenance.web_address(remote) == address


def test_a_release_is_named_by_its_version_and_a_copy_by_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.run_header("cpu", "pr", 0, ()).commit == f"v{__version__}"
    (tmp_path / "specmatrix").mkdir()
    assert provenance.run_header("cpu", "pr", 0, ()).commit == "unknown"


def test_a_checkout_is_named_by_its_commit_and_not_by_one_of_another_project(tmp_path: Path, monkeypatch):
    def commit(*words: str) -> None:
        author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        git(tmp_path, *author, "commit", "--quiet", *words, "--message", "one")

    (tmp_path / "specmatrix").mkdir()
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    git(tmp_path, "init", "--quiet")
    commit("--allow-empty")
    assert provenance.run_header("cpu", "pr", 0, ()).commit == "unknown", (
        "installed within a checkout of another project"
    )
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "untracked").touch()
    git(tmp_path, "add", "pyproject.toml")
    commit()
    header = provenance.run_header("cpu", "pr", 0, ())
    assert (header.commit, header.dirty) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert provenance.run_header("cpu", "pr", 0, ()).dirty


def test_hash_depends_on_names_and_contents_only(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.write_text(path.name)
    known = provenance.files_hash([one, two])
    assert provenance.files_hash([two, one, tmp_path / "missing"]) == known
    two.write_text("3")
    assert provenance.files_hash([one, two]) != known
    two.write_text("two")
    assert provenance.files_hash([one, two.rename(tmp_path / "three")]) != known


def test_a_subject_without_a_version_has_an_empty_one(monkeypatch: pytest.MonkeyPatch):
    subject = ReferenceSubject()
    found = provenance.subject_record(subject)
    assert (found.name, found.version) == (subject.name, __version__) and "journal" in found.capabilities
    monkeypatch.setattr(ReferenceSubject, "name", "other")
    assert provenance.run_header("cpu", "pr", 0, (), subject).counters is None, "the demand is the reference engine's"
    subject.profile = Profile(subject.profile.capabilities - {Capability.RESOLUTION, Capability.JOURNAL})
    assert provenance.subject_record(subject).excluded["ledger"] == "the subject does not show journal"
    monkeypatch.setattr(ReferenceSubject, "version", lambda self: None)
    assert provenance.subject_record(subject).version == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [("processor\t: 0\nmodel name\t: A: 1\nmodel name\t: B\n", "A: 1"), ("processor\t: 0\n", "other"), (None, "other")],
)
@pytest.mark.parametrize("processor", ["other", ""])
def test_the_processor_is_named_by_linux_or_by_platform(monkeypatch: pytest.MonkeyPatch, text, name, processor):
    def read(path: Path, encoding: str) -> str:
        assert (str(path), encoding) == ("/proc/cpuinfo", "utf-8")
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "wrong" if processor else "other")
    assert provenance.this_host()["cpu"] == name


MAIN = "import sys; from specmatrix.cli import main; sys.exit(main())"
RUN = ("-c", MAIN, "run", "--stage", "nightly", "--workers", "1")

ROOT = HOME
TWO = ["none.length", "none.v1.length"]
FILE = "tests/registered/cpu/test_matrix.py"


def test_only_the_whole_stage_demands_counters():
    assert demanded("pr", 0) is None
    demand = demanded("nightly", 0)
    assert demand is not None
    assert demand.cells == len([cell for cell in stage_cells("nightly") if not cell.gpus])
    on_gpu = demanded("nightly", 1)
    assert on_gpu is not None and set(on_gpu.hit) - set(demand.hit) == set(GPU) - set(ZERO)
    assert set(on_gpu.hit) | set(demand.zero) == set(COUNTERS) - {*RANKS}
    assert set(demand.hit) - set(on_gpu.hit) == set(RANKS)
    assert demanded("nightly", 2) is None, "a few cells hit few counters"
    assert set(demand.zero) == set(ZERO) == {"graph.waited", "stamp.wrong"}


@pytest.fixture(scope="module")
def tree():
    """A copy of the packages whose nightly stage holds two plain cells, which draft nothing."""
    with planted(None) as copy:
        lock = copy / "matrix" / "cover" / "cells.lock"
        head = lock.read_text(encoding="utf-8").partition("stage smoke")[0]
        lock.write_text(head + "stage smoke\n\nstage pr\n\nstage nightly\n" + "\n".join(TWO) + "\n", encoding="utf-8")
        (copy / FILE).parent.mkdir(parents=True)
        (copy / FILE).write_text((ROOT / FILE).read_text(encoding="utf-8"), encoding="utf-8")
        yield copy


def inside(tree: Path, *command: str) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [sys.executable, *command]
    return subprocess.run(words, cwd=tree, env={**os.environ, **own}, capture_output=True, text=True, check=False)


def counters(out: Path) -> dict[str, object]:
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))["counters"]


@pytest.mark.nightly
def test_an_unhit_counter_fails_the_run_and_a_selection_judges_none(tree, tmp_path):
    done = inside(tree, *RUN, "--out", str(tmp_path / "whole"))
    # First, and with the whole output: a machine without memory loses the cells.
    assert "red: 2 of 2 cells passed, but counter coverage failed" in done.stdout, done.stdout + done.stderr
    found = counters(tmp_path / "whole")
    assert (done.returncode, found["state"]) == (1, "FAIL") and "prefill.step" not in found["unhit"]
    assert {"spec.drafted", "retract.done", "session.opened"} <= set(found["unhit"])
    assert "required counters: prefill.chunked, " in done.stdout
    done = inside(tree, *RUN, "--limit", "1", "--out", str(tmp_path / "one"))
    assert done.returncode == 0, done.stdout
    assert "counter coverage is not checked: only 1 of the stage's 2 cells ran" in done.stdout
