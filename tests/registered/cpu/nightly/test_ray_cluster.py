"""Everything that a run on a Ray cluster can lose, and what it says then. GPUs are logical resources here."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from specmatrix.ci import ray as executor
from specmatrix.ci.local import ShardJob
from specmatrix.ci.planner import plan
from specmatrix.ci.run_options import RunOptions
from specmatrix.cli import main
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import tier
from specmatrix.matrix.cover.selection import chosen_cells
from specmatrix.matrix.faults.plant import planted
from specmatrix.reports.schema import CellResult
from specmatrix.reports.store import load
from tests.support import scripted_tasks
from tests.support.ray_clusters import cluster_of, doomed, options, told

pytestmark = [
    # Ray leaves the log files of the nodes that it starts open.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CELLS = [Cell.from_id(text) for text in ("none.length", "none.pair.length", "none.p4.length", "eagle3.k4")]
RANKED = chosen_cells("gpu2", "nightly", None, None)[:3]
RUN = ["run", "--stage", "smoke", "--cells", "algorithm=none and batch=pair"]
NODE = r"node [\d.]+ \((\w{6})\)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attempts")


@pytest.fixture(scope="module")
def client_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(folder: Path, client_port: int) -> Iterator[Cluster]:
    """Two nodes with one GPU each and one with two."""
    nodes = [{"num_cpus": 1, "num_gpus": 1}, {"num_cpus": 1, "num_gpus": 1}, {"num_cpus": 2, "num_gpus": 2}]
    with cluster_of(0, nodes, folder, client_port) as made:
        yield made


@pytest.fixture
def attempts(folder: Path) -> Iterator[Path]:
    """The folder in which scripted tasks note their attempts, empty."""
    yield folder
    for path in folder.iterdir():
        path.unlink()


@pytest.fixture
def ran(cluster: Cluster, attempts: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[CellResult]]:
    def run(
        work: Callable[..., None],
        name: str = "cpu",
        cells: Sequence[Cell] = CELLS,
        per_gpu: int = 1,
        on: Cluster = cluster,
        on_progress: Callable[[list[str]], None] = lambda current: None,
        limit: float = 180.0,
    ) -> list[CellResult]:
        monkeypatch.setattr(executor, "work", work)
        job = ShardJob(RunOptions(seed=4, tier=name, stage="smoke"), limit=limit)
        with planted(None) as tree, executor.connected(on.address, tier(name), tree, per_gpu) as made:
            records = list(made.run_plan(plan(cells, {}, made.hosts, tier(name).gpus), job, on_progress))
        assert sorted(record.id for record in records) == sorted(cell.id for cell in cells)
        return records

    return run


def places(attempts: Path) -> set[tuple[str, str]]:
    """The nodes that ran a cell to its end, and the GPUs there."""
    found = (path.name.split("@") for path in attempts.iterdir() if "@" in path.name)
    return {(node, gpus) for _, node, gpus in found}


def check_free(cluster: Cluster) -> None:
    """Every node can give all that it has, so no task of an ended run holds anything."""
    ray.init(cluster.address, log_to_driver=False)
    try:
        tasks = []
        for row in ray.nodes():
            there = NodeAffinitySchedulingStrategy(row["NodeID"], soft=False)
            most = {f"num_{name.lower()}s": row["Resources"].get(name, 0) for name in ("CPU", "GPU")}
            tasks += [ray.remote(lambda: None).options(**most, scheduling_strategy=there).remote()] * row["Alive"]
        ray.get(tasks, timeout=60)
    finally:
        ray.shutdown()


def command(cluster: Cluster, work: str, *words: str) -> subprocess.Popen[str]:
    """`specmatrix run` on the cluster, with a scripted task."""
    code = (
        "import sys; from specmatrix.ci import ray; from specmatrix.cli import main; "
        f"from tests.support import scripted_tasks; ray.work = scripted_tasks.{work}; "
        f"sys.exit(main({[*RUN, '--on', cluster.address, *words]}))"
    )
    return subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_killed_worker_costs_no_cell(ran):
    records = ran(scripted_tasks.kills_its_worker_once)
    assert {record.state for record in records} == {"PASS"}
    assert all(re.fullmatch(rf"its worker on {NODE} died", loss) for record in records for loss in record.losses)
    assert [len(record.losses) for record in records] == [1] * len(CELLS)


def test_a_cell_that_kills_every_worker_is_lost_alone_after_attempts_on_three_nodes(ran):
    records = {record.id: record for record in ran(scripted_tasks.kills_its_worker_at_drafts)}
    lost = records.pop("eagle3.k4")
    assert {record.state for record in records.values()} == {"PASS"} and lost.state == "INFRA"
    assert lost.error is not None and lost.error.startswith("the cell has no result: 3 attempts were lost: its worker")
    assert len(set(re.findall(f"{NODE} died", lost.error))) == 3


def test_cells_whose_workers_die_before_they_start_are_lost_after_three_attempts(ran, attempts):
    records = ran(scripted_tasks.dies_before_it_starts)
    error = "the cell has no result: 3 attempts were lost: " + "; ".join(["its worker on a node died"] * 3)
    assert {(record.state, record.error) for record in records} == {("INFRA", error)}
    assert len(list(attempts.glob("eagle3.k4#*"))) == 3


def test_a_node_that_joins_with_another_version_runs_no_cell(ran):
    records = ran(scripted_tasks.is_of_another_version)
    assert {record.state for record in records} == {"INFRA"}
    assert all("has torch 2." in (record.error or "") for record in records)


def test_a_silent_cell_is_lost_at_once(ran, cluster):
    records = {record.id: record for record in ran(scripted_tasks.falls_silent, limit=3.0)}
    assert re.search(f"its worker on {NODE} was silent for more than 3 s", records.pop("eagle3.k4").error or "")
    assert {record.state for record in records.values()} == {"PASS"}
    check_free(cluster)


@pytest.mark.parametrize("per_gpu", [1, 3])
def test_a_gpu_cell_has_a_gpu_or_its_part_of_one(per_gpu, ran, attempts):
    ran(scripted_tasks.passes, "gpu1", per_gpu=per_gpu)
    assert places(attempts) and {gpus for _, gpus in places(attempts)} <= {"0", "1"}


def test_cells_of_two_ranks_have_both_gpus_of_one_node(ran, attempts, cluster):
    ran(scripted_tasks.passes, "gpu2", RANKED)
    ((node, gpus),) = places(attempts)
    assert gpus in ("0,1", "1,0")
    ray.init(cluster.address, log_to_driver=False)
    assert {row["NodeID"]: row["Resources"].get("GPU") for row in ray.nodes()}[node] == 2
    ray.shutdown()


def test_cells_that_no_node_can_run_any_more_are_lost(ran, attempts, monkeypatch):
    monkeypatch.setattr(executor, "NODE_SECONDS", 2.0)
    with cluster_of(0, [{"num_cpus": 1}], attempts) as small, doomed(small, max(small.worker_nodes), attempts):
        records = ran(scripted_tasks.loses_its_node, on=small)
    error = "the cell has no result: no node of the Ray cluster could run it for 2 s"
    assert {(record.state, record.error) for record in records} == {("INFRA", error)}


def test_a_node_that_joins_takes_what_a_lost_one_left(ran, attempts):
    with cluster_of(0, [{"num_cpus": 1}], attempts) as small, doomed(small, max(small.worker_nodes), attempts):

        def join(current: list[str]) -> None:
            if not small.worker_nodes:
                small.add_node(**options(num_cpus=1))

        records = ran(scripted_tasks.loses_its_node, on=small, on_progress=join)
    assert {record.state for record in records} == {"PASS"}
    losses = [loss for record in records for loss in record.losses]
    assert losses and all(re.fullmatch(rf"(its {NODE}|a node) was lost", loss) for loss in losses), losses


def test_a_worker_that_died_where_no_other_node_is_runs_there_again(ran, attempts):
    with cluster_of(0, [{"num_cpus": 1}], attempts) as small:
        records = ran(scripted_tasks.kills_its_worker_once, on=small)
    assert [(record.state, len(record.losses)) for record in records] == [("PASS", 1)] * len(CELLS)


def test_the_first_red_cell_ends_a_run_that_fails_fast(cluster, monkeypatch, attempts, tmp_path):
    monkeypatch.setattr(executor, "work", scripted_tasks.fails_drafts)
    words = ["run", "--stage", "smoke", "--cells", "batch=pair", "--fail-fast", "--on", cluster.address]
    assert main([*words, "--out", str(tmp_path)]) == 1
    report = load(tmp_path)
    assert report.not_run and len(list(report.red())) == 1
    check_free(cluster)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_that_is_stopped_or_killed_leaves_no_task(number, status, cluster, attempts, tmp_path):
    os.mkfifo(attempts / scripted_tasks.STARTED)
    with command(cluster, "never_ends", "--out", str(tmp_path)) as driver:
        assert told(attempts / scripted_tasks.STARTED)
        driver.send_signal(number)
        out, err = driver.communicate(timeout=60)
    assert (driver.returncode, out) == (status, "")
    if number != signal.SIGKILL:
        partial = tmp_path / "report.jsonl.partial"
        assert re.fullmatch(
            rf"interrupted after 0 of \d cells, 0 of them red; partial results are in {partial}, .*\n", err
        )
    check_free(cluster)


def test_two_runs_share_a_cluster(cluster, attempts, tmp_path):
    drivers = [command(cluster, "passes", "--json", "--out", str(tmp_path / name)) for name in ("a", "b")]
    for driver in drivers:
        out, err = driver.communicate(timeout=120)
        assert (driver.returncode, err) == (0, "")
        assert json.loads(out)["pass"] > 1


def test_a_client_gets_the_same(cluster, attempts, client_port, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(executor, "work", scripted_tasks.kills_its_worker_once)
    assert main([*RUN, "--on", f"ray://127.0.0.1:{client_port}", "--out", str(tmp_path)]) == 0
    assert len(re.findall(rf"ran again, as its worker on {NODE} died: none", capsys.readouterr().out)) >= 1


def test_a_planted_fault_travels_to_the_nodes(cluster, tmp_path):
    words = ["run", "--cells", "eagle3.s3.k4.n8.v2.mixed_lengths", "--fault", "bonus-stride", "--on", cluster.address]
    assert main([*words, "--out", str(tmp_path)]) == 1
    (record,) = load(tmp_path)
    assert record.gate("lossless").state == "FAIL"


def test_a_cluster_that_cannot_run_a_tier_is_refused(cluster, attempts, capsys):
    assert main(["run", "--tier", "gpu4", "--on", cluster.address]) == 2
    said = capsys.readouterr().err
    assert said.startswith("specmatrix: tier 'gpu4' needs a node with 4 CPUs and 4 GPUs, which the Ray cluster at ")
    assert said.count(" has 1 CPU and 1 GPU") == 2 and said.count(" has 2 CPUs and 2 GPUs") == 1
    with cluster_of(1, [], attempts) as small:
        assert main(["run", "--tier", "gpu1", "--on", small.address]) == 2
    assert re.search(r"needs a node with 1 CPU and 1 GPU, .* has 1 CPU and 0 GPUs\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (scripted_tasks.probe_of_another_torch, r"has torch 0\.1, the machine that starts the run has 2\..*; install"),
        (scripted_tasks.probe_of_other_sources, r"has sources \w{12}, the machine that starts the run has \w{12}"),
        (scripted_tasks.probe_that_fails, "cannot run specmatrix: ModuleNotFoundError: No module named 'msgspec'"),
    ],
)
def test_a_node_with_other_versions_or_sources_is_refused(probe, said, cluster, monkeypatch, capsys):
    monkeypatch.setattr(executor, "probe", probe)
    assert main([*RUN, "--on", cluster.address]) == 2
    assert re.match(f"specmatrix: {NODE} {said}", capsys.readouterr().err)


@pytest.mark.parametrize(("name", "gpus"), [("cpu", []), ("gpu1", ["H100"] * 4), ("gpu2", ["H100"] * 2)])
def test_the_header_names_the_gpus_of_the_nodes_that_the_tier_can_use(name, gpus, cluster, monkeypatch):
    monkeypatch.setattr(executor, "probe", scripted_tasks.probe_of_a_machine_with_three_gpus)
    with planted(None) as tree, executor.connected(cluster.address, tier(name), tree, 1) as made:
        assert made.host["gpus"] == gpus


def test_a_node_that_runs_no_task_is_refused(cluster, monkeypatch, capsys):
    monkeypatch.setattr(executor, "PROBE_SECONDS", 0.0)
    assert main([*RUN, "--on", cluster.address]) == 2
    assert re.match(f"specmatrix: {NODE} did not run its first task within 0 s\n", capsys.readouterr().err)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_never_answers_is_given_up(scheme):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = f"{scheme}127.0.0.1:{mute.getsockname()[1]}"
        code = (
            "import sys; from specmatrix.ci import ray; from specmatrix.cli import main; ray.CONNECT_SECONDS = 2.0; "
            f"sys.exit(main(['run', '--on', '{place}']))"
        )
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    said = f"specmatrix: no Ray cluster answered at {place} within 2 s\n"
    assert (found.returncode, found.stdout, found.stderr) == (2, "", said)


def test_a_cluster_that_is_lost_ends_the_run_with_one_sentence(attempts, tmp_path):
    os.mkfifo(attempts / scripted_tasks.STARTED)
    with cluster_of(0, [{"num_cpus": 1}], attempts) as small:
        driver = command(small, "never_ends", "--out", str(tmp_path))
        assert told(attempts / scripted_tasks.STARTED)
    out, err = driver.communicate(timeout=120)
    assert (driver.returncode, out) == (2, "")
    assert re.fullmatch(r"specmatrix: the Ray cluster at [\d.:]+ was lost: .*\n", err)
