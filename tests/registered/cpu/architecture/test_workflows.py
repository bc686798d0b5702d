"""The workflows: what they run exists, and each tier that has faults plants them every night."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from specmatrix import HOME
from specmatrix.cli import app
from specmatrix.matrix.faults.catalogue import CATALOGUE
from specmatrix.matrix.run.tiers import TIERS

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

WORKFLOWS = HOME / ".github" / "workflows"
NIGHTLY = WORKFLOWS / "nightly.yml"


def steps(file: Path) -> list[list[str]]:
    """The words of every command; expressions of a job are replaced by 1."""
    jobs: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    found = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    return [shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", text)) for text in found]


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of a specmatrix command, by name; an unknown one raises."""
    command = get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    options: dict[str, Any] = command.make_context(words[1], words[2:]).params
    return options


@pytest.mark.parametrize("file", sorted(WORKFLOWS.iterdir()), ids=lambda file: file.stem)
def test_commands_exist(file: Path):
    ours = [parsed(words) for words in steps(file) if words[0].endswith("/specmatrix")]
    assert all(options["tier"] in {tier.name for tier in TIERS} for options in ours)
    folders = [word for words in steps(file) if "pytest" in words for word in words if word.startswith("tests/")]
    assert all((WORKFLOWS.parents[1] / folder).is_dir() for folder in folders)


def test_every_tier_with_faults_plants_them_nightly():
    planted = {
        parsed(words)["tier"] for words in steps(NIGHTLY) if words[0].endswith("/specmatrix") and "faults" in words
    }
    assert planted == {tier.name for tier in TIERS if any(fault.runs_on(tier.name) for fault in CATALOGUE)} >= {"gpu1"}
