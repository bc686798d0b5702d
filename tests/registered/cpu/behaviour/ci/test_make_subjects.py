"""`make subjects` runs every engine's cells, also after red ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from specmatrix import HOME


@pytest.mark.parametrize("red", ["transformers", "openvino", "onnxruntime-genai", "mlx-lm", "vllm", "none"])
def test_a_red_subject_fails_the_command_after_the_other_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, red: str):
    shutil.copy(HOME / "Makefile", tmp_path)
    for name in ("requirements.txt", "pyproject.toml", ".venv/.ready", "said"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    command = tmp_path / ".venv" / "bin" / "specmatrix"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$1 $3" >> said\n[ "$1 $3" != "run {red}" ]\n', encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.delenv("MAKEFLAGS", raising=False)  # as where another make runs the tests
    done = subprocess.run(["make", "subjects"], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode == 0) == (red == "none"), done.stderr
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    environments = ("openvino", "onnxruntime-genai", "mlx-lm", "vllm")
    assert said == ["run transformers", *(f"{what} {name}" for name in environments for what in ("subjects", "run"))]
