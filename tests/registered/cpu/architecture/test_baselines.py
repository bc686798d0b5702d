"""The baselines are whole green reports, and `make run` compares with one without changing its exit status."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.matrix.run.waivers import load_waivers, waive
from specmatrix.reports.compare import compare
from specmatrix.reports.store import Report, load
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


V1_CHAIN, V2_CHAIN, NEXT_CHAIN = "0.5.12.post1-v1-chain", "0.5.12.post1-v2-chain", "0.5.13.post1-v2-chain"


def sglang(name: str) -> Report:
    """A stored report of SGLang's own servers."""
    return load(FOLDER / "sglang" / f"{name}.jsonl.gz")


@pytest.mark.parametrize(
    ("base", "head", "regressed"),
    [(V1_CHAIN, V2_CHAIN, 11), (V2_CHAIN, NEXT_CHAIN, 0), ("0.5.12.post1-v1-tree", "0.5.13.post1-v2-tree", 12)],
)
def test_what_v2_changed_on_sglangs_own_servers_is_seen(base: str, head: str, regressed: int):
    found = compare(sglang(base), sglang(head))
    assert {state: n for state, n in found.counts.items() if n or state == "REGRESSED"} == {
        "REGRESSED": regressed,
        "SAME": 40 - regressed,
    }
    page = (HOME / "docs" / "incidents.md").read_text()
    assert not regressed or f"{regressed} cells regressed" in page or f"{regressed} of 40 cells regressed" in page


@pytest.mark.parametrize("path", sorted((FOLDER / "sglang").iterdir()), ids=lambda path: path.name)
def test_each_red_cell_of_sglangs_own_servers_is_a_known_finding(path: Path):
    rules, version = load_waivers(HOME / "examples" / "sglang-waivers.yaml"), path.name.partition("-")[0]
    report = load(path)
    red = [report[name] for name, line in report.lines.items() if line.state == "FAIL"]
    assert red and all(waive(cell, rules, "sglang", version).waived for cell in red)


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
