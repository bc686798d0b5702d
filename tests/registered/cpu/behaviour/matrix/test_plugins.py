"""Other installed plugins beside this project's own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from specmatrix import HOME

ROOT = HOME


def outcome(folder, module, when):
    """pytest with this project's settings on two workers, and with a plugin that warns."""
    (folder / f"{module}.py").write_text(f"import warnings\ndef {when}: warnings.warn('of no concern', UserWarning)\n")
    (folder / "test_one.py").write_text("def test_one(): pass\n")
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    words = f"-p xdist.plugin -n 2 -q -p {module} -p no:cacheprovider".split()
    command = [sys.executable, "-m", "pytest", *words, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "when", [pytest.param("pytest_sessionstart(session)", marks=pytest.mark.nightly), "pytest_collection(session)"]
)
def test_a_foreign_plugins_warning_ends_no_run(tmp_path, when):
    found = outcome(tmp_path, "pytest_foreign", when)
    assert found.returncode == 0 and "1 passed" in found.stdout, found.stdout + found.stderr
    assert "of no concern" in found.stdout + found.stderr


def test_a_warning_of_any_other_module_is_an_error(tmp_path):
    found = outcome(tmp_path, "foreign", "pytest_sessionstart(session)")
    assert found.returncode != 0 and "of no concern" in found.stdout + found.stderr
