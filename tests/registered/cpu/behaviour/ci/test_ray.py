"""Cells on a Ray cluster: each runs once, whatever is lost on the way; `nightly/test_ray_cluster.py` has the rest."""

from __future__ import annotations

import dataclasses
import socket
import sys

import pytest
from msgspec.structs import replace

from specmatrix.ci import ray as executor
from specmatrix.ci.local import ShardJob
from specmatrix.ci.planner import Host, plan
from specmatrix.ci.run_options import RunOptions
from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.selection import chosen_cells
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.gates.registry import GATES
from specmatrix.matrix.run import provenance
from specmatrix.matrix.run.provenance import record, run_header
from specmatrix.matrix.run.runner import reference_runner
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.reports.render.run import view
from specmatrix.reports.schema import CellResult
from specmatrix.reports.store import ReportWriter, load
from tests.support import scripted_tasks
from tests.support.ray_clusters import cluster_of, doomed

SELECTOR = "algorithm in (ngram, dflash)"
SHARED = "--workers with --on is the number of tasks that share a GPU"
RUN = ["run", "--stage", "smoke", "--cells", SELECTOR, "--seed", "3"]


def timeless(found: CellResult) -> CellResult:
    evidence = {name: number for name, number in found.evidence.items() if number}
    # What a run compares over its cells does not stay in their records.
    gates = tuple(
        replace(gate, numbers={name: number for name, number in gate.numbers.items() if name != "same_texts"})
        for gate in found.gates
    )
    return replace(found, gates=gates, seconds=0.0, engine_starts=0, losses=(), evidence=evidence)


@pytest.mark.nightly
def test_a_run_whose_node_is_killed_has_the_results_of_a_run_on_one_machine(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(executor, "work", scripted_tasks.loses_its_node)
    with cluster_of(1, [{"num_cpus": 1}], tmp_path) as cluster, doomed(cluster, max(cluster.worker_nodes), tmp_path):
        assert main([*RUN, "--on", cluster.address, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    report = load(tmp_path / "out")
    assert {cell.id: cell.state for cell in report} == {"ngram": "PASS", "dflash": "PASS"}
    # One machine is both nodes.
    assert report.header.host["cores"] == 2 * executor.this_host()["cores"]
    (lost,) = [cell for cell in report if cell.losses]
    assert timeless(lost) == timeless(reference_runner(seed=3).run_cell(Cell.from_id(lost.id)))
    (loss,) = lost.losses
    assert loss.startswith("its node ") and loss.endswith(" was lost")
    assert f"ran again, as {loss}: {lost.id}\n" in said
    assert f"ran again, as {loss}" in (tmp_path / "out" / "report.md").read_text()
    assert f"ran again: {loss}" in (tmp_path / "out" / "report.html").read_text()


def test_a_task_of_a_gpu_tier_holds_several_groups():
    made = plan(chosen_cells("cpu", "pr", None, None), {}, [Host("a", workers=4)])
    groups = [group.cells for group in made.queue]
    assert executor.batches(made) == groups
    tasks = executor.batches(dataclasses.replace(made, gpus=1))
    cells = [cell for task in tasks for cell in task]
    assert cells == [cell for group in groups for cell in group]
    # Every lane still gets several tasks, and a group stays whole.
    assert 12 <= len(tasks) < len(groups) / 2
    assert {task.index(group[0]) >= 0 for group in groups for task in tasks if set(group) <= set(task)} == {True}


def test_the_end_of_a_run_says_what_was_lost_and_how_often(tmp_path):
    cells = chosen_cells("cpu", "smoke", ["algorithm=none"], None)[:2]
    losses = [("its node a was lost", "its node b was lost"), ("its node a was lost",) * 2]
    with ReportWriter(tmp_path, run_header("cpu", "smoke", 0, GATES)) as writer:
        for cell, lost in zip(cells, losses, strict=True):
            green = Outcome("config", State.PASS)
            writer.write(replace(record(prepare(cell, "cpu", 0), "PASS", outcomes=(green,)), losses=lost))
    first, second = (cell.id for cell in cells)
    lost = [f"ran again, as its node a was lost: {first}, {second} (2 times)"]
    assert view(load(writer.path)).lost == [*lost, f"ran again, as its node b was lost: {first}"]


@pytest.mark.parametrize("address", ["local", "here", "http://a:1", "ray://", "a:1/b", "ray://a:b", ":1"])
def test_what_is_no_address_is_refused(address, capsys):
    assert main(["run", "--on", address]) == 2
    allowed = "--on must be auto, HOST:PORT or ray://HOST:PORT"
    assert capsys.readouterr() == ("", f"specmatrix: {allowed}, got {address!r}\n")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_refused_at_once(scheme, capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for place in (f"{scheme}127.0.0.1:{port}", f"{scheme}127.0.0.1:99999"):
        assert main(["run", "--on", place]) == 2
        assert capsys.readouterr().err.startswith(f"specmatrix: no Ray cluster answers at {place}: ")


def test_without_ray_the_command_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "specmatrix.ci.ray")
    assert main(["run", "--on", "auto"]) == 2
    said = "specmatrix: ray is not installed; install the extra: pip install 'specmatrix[ray]'\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "2"], f"{SHARED}; a task of cpu has a CPU core"),
        (["--tier", "gpu2", "--workers", "2"], f"{SHARED}; a task of gpu2 has 2 GPUs"),
        (["--tier", "gpu1", "--workers", "0"], "workers must be between 1 and"),
    ],
)  # fmt: skip
def test_options_that_a_cluster_does_not_take_are_refused(words, said, capsys):
    assert main(["run", "--on", "auto", *words]) == 2
    assert capsys.readouterr().err.startswith(f"specmatrix: {said}")


@pytest.mark.parametrize(("gpus", "named"), [(0, []), (2, ["H100", "H100"])])
def test_a_node_names_its_gpus_for_a_gpu_tier(gpus, named, monkeypatch):
    monkeypatch.setattr(provenance, "gpu_names", lambda: ["H100", "H100"])
    assert executor.probe(gpus)[1]["gpus"] == named


def test_the_tasks_of_a_run_in_one_process_share_a_runner_whatever_its_options_hold(monkeypatch):
    monkeypatch.setattr(executor, "_runners", {})
    monkeypatch.setattr(executor, "job_runner", lambda job: [job])
    monkeypatch.setattr(executor, "freeze", lambda: None)
    one, same, other = (ShardJob(RunOptions(cells=[name])) for name in ("none", "none", "ngram"))
    assert executor.runner_of(one) is executor.runner_of(same) is not executor.runner_of(other)
