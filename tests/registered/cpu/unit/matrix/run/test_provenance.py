"""The header of a run."""

import os
import platform
from datetime import datetime
from pathlib import Path

import pytest
import torch

from specmatrix import __version__
from specmatrix.git import git
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run import provenance
from specmatrix.matrix.run.coverage_demand import demanded
from specmatrix.matrix.subjects.in_process import ReferenceSubject
from specmatrix.matrix.subjects.protocol import Capability, Profile
from specmatrix.reports.store import ReportWriter, load


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


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/owner/name.git", "https://github.com/owner/name"),
        ("https://user:secret@host.example/a/b/c/", "https://host.example/a/b/c"),
        ("git@github.com:owner/name.git", "https://github.com/owner/name"),
        ("ssh://git@host.example:2222/owner/name", "https://host.example/owner/name"),
        ("http://host.example/owner/name", ""),
        ("/srv/git/name.git", ""),
        ("../name", ""),
        ("https://host.example/a b", ""),
        ("https://host.example", ""),
        ("", ""),
    ],
)
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
