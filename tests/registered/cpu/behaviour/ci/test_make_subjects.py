"""`make subjects` runs every engine's cells with its waivers, also after red ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from specmatrix import HOME

SUBJECTS = ("transformers", "llamacpp", "openvino", "onnxruntime-genai", "mlx-lm", "vllm")


@pytest.mark.parametrize("red", [*SUBJECTS, "none"])
def test_a_red_subject_fails_the_command_after_the_other_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, red: str):
    shutil.copy(HOME / "Makefile", tmp_path)
    for name in ("requirements.txt", "pyproject.toml", ".venv/.ready", "said"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    command = tmp_path / ".venv" / "bin" / "specmatrix"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho $1 $3 $7 >> said\n[ "$1 $3" != "run {red}" ]\n', encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.delenv("MAKEFLAGS", raising=False)  # as where another make runs the tests
    done = subprocess.run(["make", "subjects"], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode == 0) == (red == "none"), done.stderr
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    runs = {name: f"run {name} examples/{name}-waivers.yaml" for name in SUBJECTS}
    assert all((HOME / run.split()[-1]).exists() for run in runs.values())
    installed = (line for name in SUBJECTS[1:] for line in (f"subjects {name}", runs[name]))
    assert said == [runs["transformers"], *installed]


def test_every_night_runs_each_of_them():
    job = yaml.safe_load((HOME / ".github/workflows/nightly.yml").read_text(encoding="utf-8"))["jobs"]["subjects"]
    assert tuple(job["strategy"]["matrix"]["subject"]) == SUBJECTS
    assert [step["run"] for step in job["steps"] if "run" in step] == ['make "subject-$SUBJECT"']
