"""Git as a process: what it says when it fails, and what a hook or a user's configuration cannot change."""

from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.git import GitFailed, commit_of, git


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "--message", "one")
    return folder


def test_the_output_ends_without_blanks_and_begins_as_it_is(checkout: Path):
    assert git(checkout, "log", "--format=  %s%n") == "  one"
    assert commit_of(checkout, "HEAD") == git(checkout, "rev-parse", "HEAD")


def test_a_refusal_is_one_sentence_with_what_git_said(checkout: Path, tmp_path: Path):
    with pytest.raises(GitFailed, match=r"^git rev-parse failed in .*: fatal: not a git repository") as caught:
        git(tmp_path, "rev-parse", "HEAD")
    assert "\n" not in str(caught.value)
    with pytest.raises(GitFailed, match=r"^git config failed in .*: exit status 1$"):
        git(checkout, "config", "--get", "no.such")
    for name in ("nowhere", "--help", ""):
        with pytest.raises(ConfigError, match=rf"^'{name}' is not a commit of "):
            commit_of(checkout, name)


def test_a_machine_without_git_and_a_missing_folder_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"^git cannot run in .*gone: No such file or directory$"):
        git(tmp_path / "gone", "status")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^git is not installed$"):
        commit_of(tmp_path, "HEAD")


def test_neither_a_hook_that_runs_this_program_nor_one_of_the_repository_matters(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hook = checkout / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    git(checkout, "checkout", "--quiet", "--detach")
    assert not (tmp_path / "ran").exists()


def test_this_package_calls_git_in_one_place():
    folders = ("engine", "kernels", "reports", "matrix", "ci", "benchmarks", "specmatrix")
    found = {
        str(path.relative_to(HOME))
        for folder in folders
        for path in (HOME / folder).rglob("*.py")
        if '["git"' in path.read_text(encoding="utf-8")
    }
    assert found == {"specmatrix/git.py"}
