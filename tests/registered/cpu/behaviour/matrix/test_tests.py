"""`specmatrix tests` as typed: shards that join to the whole tier, in three forms, one sentence for what is wrong."""

import json
import re

import pytest

from specmatrix import HOME
from specmatrix.ci.commands.tests import list_tests
from specmatrix.cli import main
from specmatrix.errors import ConfigError

pytestmark = pytest.mark.register(est_seconds=3, stage="pr")

ROOT = HOME


def printed(capsys, *words: str):
    assert main(["tests", *words]) == 0
    return capsys.readouterr().out


def test_the_shards_join_to_every_test_file_of_the_tier(capsys):
    shards = [printed(capsys, "--shard", f"{number}/3", "--paths").splitlines() for number in (1, 2, 3)]
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/registered/cpu").rglob("test_*.py")}
    marked = re.compile(r'register\(est_seconds=\d+, stage="nightly"\)')
    nightly = {path for path in there if marked.search((ROOT / path).read_text(encoding="utf-8"))}
    assert sorted(path for shard in shards for path in shard) == sorted(there - nightly)
    assert {path for path in there if path.startswith("tests/registered/cpu/nightly/")} <= nightly


def test_the_table_ends_in_the_sum(capsys):
    *rows, last = printed(capsys, "--tier", "gpu2").splitlines()
    assert "     30 s  tests/registered/gpu2/test_matrix.py" in rows
    seconds = sum(int(row.split(" s ")[0]) for row in rows)
    assert last == f"{seconds:7} s  {len(rows)} files of tier gpu2, stage pr, shard 1/1"


def test_the_sum_of_one_file_is_its_own(capsys):
    row, last = printed(capsys, "--tier", "gpu4", "--shard", "1/2").splitlines()
    assert last == f"{row.split(' s ')[0]} s  1 file of tier gpu4, stage pr, shard 1/2"


def test_the_json_holds_the_seconds(capsys):
    shown = json.loads(printed(capsys, "--tier", "gpu1", "--stage", "nightly", "--json"))
    assert (shown["tier"], shown["stage"], shown["shard"]) == ("gpu1", "nightly", "1/1")
    assert shown["est_seconds"] == sum(file["est_seconds"] for file in shown["files"]) > 0
    assert {file["path"].split("/")[2] for file in shown["files"]} == {"gpu1"}


def test_two_forms_at_once_are_refused(capsys):
    assert main(["tests", "--paths", "--json"]) == 2
    assert capsys.readouterr().err == "specmatrix: --paths and --json are mutually exclusive\n"


def test_where_no_tests_lie_is_said(tmp_path):
    with pytest.raises(ConfigError) as caught:
        list_tests("cpu", "pr", "1/1", paths=False, json_=False, root=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has no registered tests; run this in a checkout, not in an installed package"
    )
