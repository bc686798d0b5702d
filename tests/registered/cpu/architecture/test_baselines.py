"""The baselines are whole green reports, and `make run` compares with one without changing its exit status."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.reports.compare import compare
from specmatrix.reports.store import load
from specmatrix.reports.summary import summarise

FOLDER = HOME / "reports" / "baselines"
REPORTS = sorted(FOLDER.glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.name)
def test_a_baseline_is_a_green_run_of_its_tier_and_stage(path: Path):
    report = load(path)
    assert f"{report.header.tier}-{report.header.stage}.jsonl.gz" == path.name
    assert summarise(report).red == 0 and not report.header.dirty and report.header.shard is None
    assert compare(report, report).verdict == "green"
    row = f"| `{path.name}` | {len(report)} cells, commit {report.header.commit[:7]}"
    assert row in (FOLDER / "README.md").read_text()


def made(*words: str) -> list[str]:
    """The commands of `make run` with these words, which are not executed."""
    command = ["make", "-n", "-o", ".venv/.ready", "run", *words]
    return subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True).stdout.splitlines()


def test_make_run_names_the_baseline_of_its_tier_and_stage():
    [named] = {path for line in made() for path in re.findall(r"compare (\S+)", line)}
    assert HOME / named in REPORTS
    lines = made("TIER=gpu1", "STAGE=smoke")
    assert any("run --tier gpu1 --stage smoke " in line and "--out out/smoke;" in line for line in lines)
    assert any("compare reports/baselines/gpu1-smoke.jsonl.gz out/smoke " in line for line in lines)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_make_run_ends_with_the_comparison_and_the_status_of_the_run(tmp_path: Path, status: int):
    program = tmp_path / "specmatrix"
    program.write_text(f'#!/bin/sh\necho "CALLED $1"\n[ "$1" = run ] && exit {status}\nexit 1\n')
    program.chmod(0o755)
    words = ["make", "-s", "-o", ".venv/.ready", "run", f"BIN={tmp_path}", f"OUT={tmp_path / 'out'}"]
    done = subprocess.run(words, cwd=HOME, capture_output=True, text=True)
    assert done.returncode == (2 if status else 0)  # make's own status for a recipe that failed
    assert f"Error {status}" in done.stderr or not status
    assert re.findall("CALLED (.*)", done.stdout) == (["run"] if status == 2 else ["run", "compare"])
