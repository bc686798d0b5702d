"""Printed commands run as they are."""

import sys
from pathlib import Path

import pytest

from specmatrix.reports.render.console import as_called

COMMAND = "specmatrix run --cells 'eagle3.k4' --seed 0"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment `.venv` in the working directory that is not on PATH."""
    console = tmp_path / "my work" / ".venv" / "bin" / "specmatrix"
    console.parent.mkdir(parents=True)
    console.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(console.with_name("python")))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path / "my work")
    return console


def test_an_environment_that_is_not_active_is_named_from_here(installed: Path):
    assert as_called(COMMAND) == ".venv/bin/specmatrix run --cells 'eagle3.k4' --seed 0"


def test_from_elsewhere_it_is_named_so_that_a_shell_finds_it(installed: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(installed.parent)
    assert as_called("specmatrix") == "./specmatrix"
    monkeypatch.chdir("/usr")
    assert as_called(COMMAND) == f"'{installed}' run --cells 'eagle3.k4' --seed 0"


def test_an_active_environment_needs_the_name_alone(installed: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(installed.parent))
    assert as_called(COMMAND) == COMMAND


def test_another_installation_on_the_path_is_not_used(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = tmp_path / "bin" / "specmatrix"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert as_called(COMMAND).startswith(".venv/bin/specmatrix run ")


def test_a_checkout_that_is_not_installed_is_run_as_a_module(installed: Path):
    installed.unlink()
    assert as_called(COMMAND) == f"'{installed.with_name('python')}' -m {COMMAND}"


def test_other_commands_are_unchanged(installed: Path):
    assert as_called("pytest tests") == "pytest tests"
