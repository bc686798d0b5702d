"""The shell scripts of the workflows, with real reports and a real git repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.reports.schema import ShardRecord
from specmatrix.reports.store import load
from tests.support.made_reports import write_report


@pytest.fixture
def script(tmp_path):
    """Runs a script in its own folder, with this interpreter's specmatrix."""
    program = tmp_path / "specmatrix"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m specmatrix "$@"\n')
    program.chmod(0o755)

    def run(name: str, *words: str, **settings: str):
        source = os.environ.get("PYTHONPATH", str(HOME / ".lint"))
        environment = {**os.environ, "SPECMATRIX": str(program), "PYTHONPATH": source, **settings}
        command = ["bash", str(HOME / "ci" / "github" / name), *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def shards(folder: Path, red=()):
    for number, cells in enumerate(({"a": {}, "b": {}}, {"c": {}}), 1):
        shard = ShardRecord(number, 2, 3, "0" * 12)
        write_report(folder / "shards" / f"specmatrix-shard-cpu-{number}-of-2", cells, red, shard=shard)


def test_shards_are_merged_and_reviewed_beside_the_stored_base(script, tmp_path):
    shards(tmp_path, red=("b", "c"))
    base = write_report(tmp_path / "before", {cell: {} for cell in "abc"}, red=("c",))
    (tmp_path / "data" / "base").mkdir(parents=True)
    shutil.copy(base / "report.jsonl", tmp_path / "data" / "base" / "cpu-pr.jsonl.gz")
    summary = tmp_path / "summary.md"
    done = script("review.sh", TIERS="cpu", SHARDS="2", LINK="https://example.org/1", GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1, done.stderr
    assert "cpu / pr: red, 1 red now and not before, 1 red on the base already" in done.stdout
    assert "::error title=b (cpu / pr)::" in done.stdout and "Red now and not before" in summary.read_text()
    assert len(load(tmp_path / "out" / "whole" / "cpu")) == 3


def test_a_lost_shard_fails_the_review_with_its_number(script, tmp_path):
    shards(tmp_path)
    shutil.rmtree(tmp_path / "shards" / "specmatrix-shard-cpu-2-of-2")
    done = script("review.sh", TIERS="cpu", SHARDS="2", LINK="https://example.org/1")
    assert done.returncode == 1 and "shard 2/2 is missing" in done.stderr
    assert "cpu: red, no report: cannot read out/whole/cpu/report.jsonl: No such file or directory" in done.stdout


def test_a_tier_without_a_report_is_red_beside_a_green_one_also_where_it_is_rendered_again(script, tmp_path):
    write_report(tmp_path / "shards" / "specmatrix-shard-cpu-1-of-1", {"a": {}})
    summary = tmp_path / "summary.md"
    settings = {"TIERS": "cpu,gpu1", "SHARDS": "1", "LINK": "https://example.org/1"}
    done = script("review.sh", **settings, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 1 and "cpu / pr: green" in done.stdout
    assert "❌ gpu1: no report" in summary.read_text() and "::error title=no report of gpu1::" in done.stdout
    kept = {path.parent.name for path in (tmp_path / "out" / "whole").glob("*/*")}
    assert kept == {"cpu", "gpu1"}  # a folder without a file would be missing in the artifact
    settings = {"SERVER": "https://example.org", "REPOSITORY": "o/n", "GITHUB_TOKEN": "x"}
    hub = tmp_path / "hub"
    subprocess.run(["git", "init", "--quiet", "--bare", str(hub)], check=True)
    done = script("store.sh", "out/whole/cpu", "out/whole/gpu1", **settings, REMOTE=f"file://{hub}")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "data" / "base").iterdir()] == ["cpu-pr.jsonl.gz"]


def test_reports_of_main_become_the_base_and_the_history_of_a_branch(script, tmp_path):
    hub = tmp_path / "hub" / "owner"
    subprocess.run(["git", "init", "--quiet", "--bare", str(hub / "name")], check=True)
    settings = {"SERVER": "https://example.org", "REPOSITORY": "owner/name", "GITHUB_TOKEN": "secret"}
    settings["REMOTE"] = f"file://{hub / 'name'}"
    for number, cells in enumerate(({"a": {}}, {"a": {}, "b": {}}, {"a": {}, "b": {}})):
        report = write_report(tmp_path / f"run{number}" / "cpu", cells)
        done = script("store.sh", str(report), **settings)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(tmp_path / "data")
    words = ["git", "-C", str(hub / "name"), "ls-tree", "-r", "--name-only", "specmatrix-data"]
    names = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "base/cpu-pr.jsonl.gz" in names
    assert sum(name.startswith("history/") and name.endswith(".parquet") for name in names) == 2
    log = subprocess.run(
        ["git", "-C", str(hub / "name"), "log", "--oneline", "specmatrix-data"], capture_output=True, text=True
    )
    assert len(log.stdout.splitlines()) == 2
