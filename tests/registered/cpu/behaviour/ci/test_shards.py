"""A run divided over hosts: the plan, its shards, and the merged report."""

import json
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace

import specmatrix
from specmatrix.ci import local
from specmatrix.ci.planner import of_shard
from specmatrix.cli import main
from specmatrix.matrix.cover.selection import chosen_cells
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run.provenance import record, run_header
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.store import ReportWriter, load
from tests.support import scripted_workers

SELECTOR = "batch in (mixed_lengths, pair)"
CELLS = chosen_cells("cpu", "smoke", [SELECTOR], None)
RUN = ["run", "--stage", "smoke", "--cells", SELECTOR, "--workers", "1"]


def write(out: Path, shard: str, left=0, cells=CELLS, seconds=MappingProxyType({}), taken=0.0, **changes: object):
    """A report of a shard whose cells pass; `left` of them did not run."""
    part, own = of_shard(cells, seconds, shard, 0)
    header = replace(run_header("cpu", "smoke", 0, GATES), shard=part, **changes)
    with ReportWriter(out, header) as writer:
        for cell in own[left:]:
            passed = record(prepare(cell, "cpu", 0), "PASS", outcomes=(Outcome("config", State.PASS),))
            writer.write(replace(passed, seconds=taken))
        writer.not_run = [cell.id for cell in own[:left]]
    return out


def merge(*words: object) -> int:
    return main(["merge", *map(str, words)])


def test_shards_run_apart_merge_to_the_whole_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(local, "work", scripted_workers.fails_drafts)
    outs = [tmp_path / name for name in ("a", "b")]
    found = [main([*RUN, "--shard", f"{number}/2", "--out", str(out)]) for number, out in enumerate(outs, 1)]
    assert main([*RUN, "--out", str(tmp_path / "whole")]) == max(found) == 1
    capsys.readouterr()
    assert merge(*reversed(outs), "--out", tmp_path / "all") == 1
    out = capsys.readouterr().out.splitlines()
    merged, whole = load(tmp_path / "all"), load(tmp_path / "whole")
    assert out[-1] == f"report: {tmp_path}/all/report.html" and f"of {len(CELLS)} cells did not pass" in out[-2]
    assert {cell.id: cell.state for cell in merged} == {cell.id: cell.state for cell in whole}
    assert {cell.id for cell in merged} == {cell.id for cell in CELLS} and merged.header.shard is None
    assert all(0 < len(load(out)) < len(CELLS) for out in outs)
    # The merged report is one like any other.
    assert main(["compare", str(tmp_path / "whole"), str(tmp_path / "all")]) == 0
    assert len(specmatrix.load(tmp_path / "all").cells) == len(CELLS)
    assert json.loads((tmp_path / "all/summary.json").read_text())["cells"] == len(CELLS)
    assert (tmp_path / "all/report.md").exists()


def test_rounds_behind_the_same_text_are_compared_over_shards(tmp_path):
    """Of the second cell's request a round is cut short; no shard holds both cells."""
    outs = [tmp_path / name for name in ("a", "b")]
    words = ["run", "--stage", "product", "--cells", "eagle3.s3.v1.pair or eagle3.s3.v2.pair"]
    for number, out in enumerate(outs, 1):
        assert main([*words, "--shard", f"{number}/2", "--out", str(out)]) == 0
    first, second = map(load, outs)
    assert merge(*outs, "--out", tmp_path / "green") == 0
    assert not any("same_texts" in gate.numbers for cell in load(tmp_path / "green") for gate in cell.gates)
    with ReportWriter(tmp_path / "c", second.header) as writer:
        (cell,) = second
        gate = cell.gate("acceptance")
        (name, (*rounds, (text, tokens))), *_ = gate.numbers["same_texts"]
        cut = replace(gate, numbers={"same_texts": [[name, [*rounds, [text, tokens[:-1]]]]]})
        writer.write(replace(cell, gates=tuple(cut if one.name == gate.name else one for one in cell.gates)))
    assert merge(outs[0], tmp_path / "c", "--out", tmp_path / "red") == 1
    assert {cell.id: cell.state for cell in load(tmp_path / "red")} == {next(iter(first)).id: "PASS", cell.id: "FAIL"}


def test_the_plan_names_the_cells_of_each_shard(capsys):
    words = ["plan", "--stage", "smoke", "--cells", SELECTOR, "--shards", "2"]
    assert main([*words, "--json"]) == 0
    (tier,) = json.loads(capsys.readouterr().out)["plans"]
    assert tier["tier"] == "cpu" and [shard["host"] for shard in tier["shards"]] == ["1/2", "2/2"]
    for shard in tier["shards"]:
        _, own = of_shard(CELLS, {}, shard["host"], 0)
        assert {cell.id for cell in own} == {cell for group in shard["groups"] for cell in group["cells"]}
    assert main(words) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("cpu 1/2: ") and second.startswith("cpu 2/2: ") and "cells, about " in first


def test_a_plan_divides_gpu_tiers_without_a_gpu_here(capsys):
    assert main(["plan", "--tier", "gpu1,gpu2", "--shards", "2", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [(plan["tier"], plan["gpus"], len(plan["shards"])) for plan in plans] == [("gpu1", 1, 2), ("gpu2", 2, 2)]
    for plan in plans:
        planned = [cell for shard in plan["shards"] for group in shard["groups"] for cell in group["cells"]]
        assert sorted(planned) == sorted(cell.id for cell in chosen_cells(plan["tier"], "pr", None, None))


def test_durations_come_from_a_report_or_a_history(tmp_path, capsys):
    write(tmp_path / "a", "1/1", taken=7.5)
    assert main(["history", "add", str(tmp_path / "a"), "--history", str(tmp_path / "history")]) == 0
    capsys.readouterr()

    def planned(*words: str):
        assert main(["plan", "--stage", "smoke", "--cells", SELECTOR, "--shards", "2", "--json", *words]) == 0
        (plan,) = json.loads(capsys.readouterr().out)["plans"]
        return plan

    measured = planned("--durations", str(tmp_path / "a"))
    assert measured == planned("--durations", str(tmp_path / "history")) and measured["seconds"] > planned()["seconds"]
    starts = len({cell.start_key for cell in CELLS})
    assert sum(shard["seconds"] for shard in measured["shards"]) == pytest.approx(7.5 * len(CELLS) + 0.5 * starts, 0.1)
    assert main(["plan", "--tier", "gpu1", "--shards", "2", "--durations", str(tmp_path / "history")]) == 2
    assert capsys.readouterr().err.rstrip().endswith("history has no run of tier gpu1")


def test_reports_that_are_not_the_shards_of_one_run_are_refused(tmp_path, capsys):
    a, b = write(tmp_path / "a", "1/2"), write(tmp_path / "b", "2/2")
    new = tmp_path / "new"

    def refused(*outs: Path, out: Path = new) -> str:
        assert merge(*outs, "--out", out) == 2
        assert not new.exists()
        said = capsys.readouterr().err.removeprefix("specmatrix: ").strip()
        return said.replace(str(tmp_path), "").replace("/report.jsonl", "")

    one = "; merge takes the shards of one run"
    assert refused(a) == "shard 2/2 is missing; merge takes the reports of all shards"
    assert refused(a, b, a) == "/a and /a are both shard 1/2; give one of them"
    assert refused(a, b, out=b) == "--out /b holds one of the reports that are merged; name another folder"
    assert refused(a, write(tmp_path / "c", "2/2", commit="abc")).endswith(f" and abc{one}")
    assert refused(a, write(tmp_path / "d", "2/2", seed=7)) == f"/a and /d differ in seed: 0 and 7{one}"
    subject = replace(load(a).header.subject, name="other")
    assert refused(a, write(tmp_path / "e", "2/2", subject=subject)) == f"/a and /e differ in subject{one}"
    assert refused(a, write(tmp_path / "f", "2/3")) == f"/a and /f differ in shards: 2 and 3{one}"
    assert refused(a, write(tmp_path / "g", "2/2", cells=CELLS[1:])) == f"/a and /g differ in selected cells{one}"
    assert refused(a, write(tmp_path / "h", "1/1")) == "/h is not a shard; run its cells with `specmatrix run --shard`"
    other = write(tmp_path / "i", "2/2", seconds=dict.fromkeys(load(a).lines, 0.001))
    assert "give every shard the same --durations" in refused(a, other)


def test_cells_that_a_shard_did_not_run_are_none_of_the_whole_run_either(tmp_path, capsys):
    second = {"cpu": "other", "cores": 3, "gpus": ["x"]}
    outs = write(tmp_path / "a", "1/2", left=1), write(tmp_path / "b", "2/2", host=second)
    assert merge(*outs, "--out", tmp_path / "all", "--json") == 1
    assert json.loads(capsys.readouterr().out)["not_run"] == 1
    mine = load(outs[0]).header.host
    assert load(tmp_path / "all").header.host == {
        "cpu": f"{mine['cpu']}, other", "cores": mine["cores"] + 3, "gpus": ["x"]
    }  # fmt: skip
