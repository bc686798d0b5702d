"""The executor for more than one machine: cells as Ray tasks.

Ray places the tasks, reports those that are lost, and ends all of them with the run. The run's sources travel with it,
so every node runs the same commit. A task whose worker or node is lost runs again on another node, without the cells
whose records have arrived; a cell that loses ATTEMPTS of them in a row is recorded as INFRA, and the others go on.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Thread, current_thread, main_thread
from time import monotonic
from typing import Any, Final

import ray
from msgspec import structs
from ray import ObjectRef, exceptions
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from specmatrix import HOME
from specmatrix.ci.local import THREADS, TICK_SECONDS, ShardJob, freeze, job_runner, lost_cell
from specmatrix.ci.planner import Host, ShardPlan
from specmatrix.errors import ConfigError, described, shown, text_of
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.tiers import VISIBLE, Tier
from specmatrix.matrix.faults.plant import PACKAGES
from specmatrix.matrix.run.provenance import files_hash, installed_versions, merged_host, this_host
from specmatrix.matrix.run.runner import Runner
from specmatrix.reports.schema import CellResult, Json
from specmatrix.reports.wording import count
from specmatrix.stopping import SIGNALS, deferred

# Time limits for a cluster to answer, for its nodes to run the first task, and for nodes to join if none is left.
CONNECT_SECONDS: Final = 60.0
PROBE_SECONDS: Final = 120.0
NODE_SECONDS: Final = 300.0
# Times that a cell may lose its worker or node.
ATTEMPTS: Final = 3
# A task on GPUs has its own process, which takes seconds to start, so it holds groups for about this long.
TASK_SECONDS: Final = 30.0
ADDRESS: Final = re.compile(r"auto|(ray://)?([\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")
HEAD: Final = "node:__internal_head__"
SOURCES: Final = ("*.py", "*.yaml", "*.json")
NODE_ID: Final = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A living node, with its resources in whole numbers."""

    id: str
    name: str
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """A connection, and the resources that a task of the run needs. hosts: the nodes that have them, in a plan's form;
    host: the same nodes in the form of a report's header. versions: of this machine, and so of every node."""

    address: str
    cpus: int
    gpus: int
    per_gpu: int
    versions: Mapping[str, str]
    hosts: tuple[Host, ...] = ()
    host: Mapping[str, Json] = field(default_factory=dict)

    def nodes(self) -> list[ClusterNode]:
        """The living nodes that have enough for a task."""
        return [node for node in living() if node.cpus >= self.cpus and node.gpus >= self.gpus]

    def run_plan(
        self, plan: ShardPlan, job: ShardJob, on_progress: Callable[[list[str]], None] = lambda current: None
    ) -> Iterator[CellResult]:
        """The records of all cells of the plan, in the order in which they finish; as that of `ci/local.py`.

        ConfigError if the cluster ends first.
        """
        # Signals are deferred while Ray runs: a handler's exception inside its extension becomes a SystemError.
        with deferred():
            queue = Queue(actor_options={"num_cpus": 0, "resources": {HEAD: 0.001}})
            tasks = Tasks(self, replace(job, tree=None), queue)
        try:
            with deferred():
                for cells in batches(plan):
                    tasks.submit(Task(cells))
            while tasks.submitted:
                on_progress([task.current for task in tasks.submitted.values() if task.node] or ["waiting for a node"])
                with deferred():
                    records = list(tasks.receive())
                yield from records
        except (RayError, ConnectionError) as error:
            raise ConfigError(f"the Ray cluster at {self.address} was lost: {text_of(error)}") from error
        finally:
            with deferred(), suppress(RayError, ConnectionError):
                for task in tasks.submitted:
                    ray.cancel(task, force=True)
                tasks.queue.shutdown(force=True)


@dataclass(slots=True)
class Task:
    """Cells without a record. losses: of the first one so far, a sentence on each; avoid: the nodes that had them.

    number: of the attempt. node: the one that runs it, None until it starts. heard: time of its last message.
    """

    cells: tuple[Cell, ...]
    losses: tuple[str, ...] = ()
    avoid: frozenset[str] = frozenset()
    number: int = 0
    node: ClusterNode | None = None
    heard: float = 0.0

    @property
    def current(self) -> str:
        """The id of the cell that runs."""
        return self.cells[0].id if self.cells else "ending"


@dataclass(slots=True)
class Tasks:
    """The submitted tasks of a plan by their references, and the queue that their records come through."""

    cluster: Cluster
    job: ShardJob
    queue: Queue
    submitted: dict[ObjectRef[None], Task] = field(default_factory=dict)
    _attempts: int = 0
    _fitting: float = field(default_factory=monotonic)

    def submit(self, task: Task) -> None:
        """Submit the cells of a task to Ray, excluding the nodes that it avoids."""
        self._attempts += 1
        task.number = self._attempts
        options: dict[str, Any] = {
            "num_cpus": self.cluster.cpus,
            "num_gpus": self.cluster.gpus / self.cluster.per_gpu,
            "max_retries": 0,
            "name": f"specmatrix {task.cells[0].id}",
        }
        if task.avoid:
            options["label_selector"] = {NODE_ID: f"!in({','.join(sorted(task.avoid))})"}
        run = ray.remote(work).options(**options)
        self.submitted[run.remote(self.job, task.number, task.cells, self.queue, self.cluster.versions)] = task

    def receive(self) -> Iterator[CellResult]:
        """The records of about the next second, those of cells that are lost for good included."""
        done, _ = ray.wait([*self.submitted], num_returns=1, timeout=TICK_SECONDS)
        # Everything that a task sent before it ended is in the queue by now.
        numbered = {task.number: task for task in self.submitted.values()}
        nodes = {node.id: node for node in living()}
        for number, node, record in self.queue.get_nowait_batch(self.queue.qsize()):
            task = numbered.get(number)
            if task is None:  # from an abandoned attempt
                continue
            task.node = nodes.get(node, ClusterNode(node, node[:6], 0, 0))
            task.heard = monotonic()
            if record is not None:
                yield structs.replace(record, losses=task.losses)
                task.cells, task.losses, task.avoid = task.cells[1:], (), frozenset()
        for reference in done:
            yield from self._ended(reference)
        yield from self._check()

    def _ended(self, reference: ObjectRef[None]) -> Iterator[CellResult]:
        """Resubmit the remaining cells of a task, or record them as lost."""
        task = self.submitted.pop(reference)
        try:
            ray.get(reference)
            what = "its task ended without its record"
        except exceptions.TaskCancelledError:  # it waited for a node outside those that it avoids
            what = ""
        except RayError as error:
            what = loss(error, task.node)
        losses = (*task.losses, what) if what else task.losses
        avoid = task.avoid | {task.node.id} if task.node else task.avoid if what else frozenset()
        if task.cells and len(losses) < ATTEMPTS:
            self.submit(Task(task.cells, losses, avoid))
        elif task.cells:
            reason = f"{count(len(losses), 'attempt')} were lost: {'; '.join(losses)}"
            yield from self._given_up(task, reason, 1 if task.node else len(task.cells))

    def _check(self) -> Iterator[CellResult]:
        """Give up cells that went silent or that no node can run; let waiting tasks run on nodes that they avoid if no
        other is left."""
        now = monotonic()
        fitting = {node.id for node in self.cluster.nodes()}
        if fitting:
            self._fitting = now
        for reference, task in [*self.submitted.items()]:
            if task.node is not None and now - task.heard > self.job.limit:
                reason = f"its worker on node {task.node.name} was silent for more than {self.job.limit:g} s"
                yield from self._cancelled(reference, reason, 1)
            elif task.node is None and now - self._fitting > NODE_SECONDS:
                reason = f"no node of the Ray cluster could run it for {NODE_SECONDS:g} s"
                yield from self._cancelled(reference, reason, len(task.cells))
            elif task.node is None and task.avoid and fitting and fitting <= task.avoid:
                ray.cancel(reference)

    def _cancelled(self, reference: ObjectRef[None], reason: str, cells: int) -> Iterator[CellResult]:
        task = self.submitted.pop(reference)
        ray.cancel(reference, force=True)
        yield from self._given_up(task, reason, cells)

    def _given_up(self, task: Task, reason: str, cells: int) -> Iterator[CellResult]:
        """Record the first cells as lost, and resubmit the others."""
        if rest := task.cells[cells:]:
            self.submit(Task(rest))
        for cell in task.cells[:cells]:
            yield lost_cell(cell, self.job, reason)


def loss(error: RayError, node: ClusterNode | None) -> str:
    """How a task ended without the records of all of its cells."""
    where = "a node" if node is None else f"node {node.name}"
    if isinstance(error, NodeDiedError):
        return f"its {where} was lost" if node else f"{where} was lost"
    if isinstance(error, OutOfMemoryError):
        return f"Ray ended its worker on {where} because the node's memory was short"
    if isinstance(error, WorkerCrashedError):
        return f"its worker on {where} died"
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"its worker on {where} raised {described(cause)}"


def batches(plan: ShardPlan) -> list[tuple[Cell, ...]]:
    """The cells of each task: of one group, or on GPUs of several."""
    least = min(TASK_SECONDS, plan.seconds / 4) if plan.gpus else 0.0
    found: list[tuple[Cell, ...]] = []
    seconds = least
    for group in plan.queue:
        if seconds >= least:
            found.append(())
            seconds = 0.0
        found[-1] += group.cells
        seconds += group.seconds
    return found


def work(job: ShardJob, number: int, cells: Sequence[Cell], queue: Queue, versions: Mapping[str, str]) -> None:
    """The main function of a task: send its number, its node and None, then each cell's record instead of None."""
    node = ray.get_runtime_context().get_node_id()
    if different := difference(versions, versions_with(HOME)):  # a node that joined later
        raise ConfigError(different)
    queue.put((number, node, None))
    runner = runner_of(job)
    for cell in cells:
        queue.put((number, node, runner.run_cell(cell)))
    runner.close()


# The runners of this process, by job; a job's options hold lists, so it has no hash.
_runners: dict[str, Runner] = {}


def runner_of(job: ShardJob) -> Runner:
    """The runner of this process, which Ray uses for several tasks on CPUs: it keeps its baselines."""
    if (key := repr(job)) not in _runners:
        _runners[key] = job_runner(job)
        freeze()
    return _runners[key]


def probe(gpus: int) -> tuple[dict[str, str], dict[str, Json]]:
    """The versions of a node, and its description for a header. gpus: of the tier, as in `this_host`. The probe uses no
    GPU, but sees the node's."""
    return versions_with(HOME), this_host(gpus)


@cache
def versions_with(home: Path) -> dict[str, str]:
    """Versions that must be equal on every node: of packages, and a hash of those in `home`."""
    sources = (path for name in PACKAGES for kind in SOURCES for path in (home / name).rglob(kind))
    return installed_versions() | {"sources": files_hash(sources)}


@contextmanager
def connected(address: str, tier: Tier, tree: Path, per_gpu: int) -> Iterator[Cluster]:
    """A cluster whose nodes import the packages in `tree`, a copy that this changes, checked for what the tier needs.
    per_gpu: tasks that share one. ConfigError, one sentence, if it cannot run the tier's cells."""
    # Ray logs workers and nodes to standard output, which must stay valid JSON.
    with Path(os.devnull).open("w", encoding="utf-8") as null, redirect_stdout(null):
        _connect(address, tree, tier)
        try:
            versions = versions_with(tree / "specmatrix")
            cluster = Cluster(address, max(1, tier.gpus), tier.gpus, per_gpu, versions)
            with deferred():
                nodes = cluster.nodes()
                if not nodes:
                    raise ConfigError(too_small(cluster, tier))
            host = probed(nodes, cluster.versions, tier.gpus)
            hosts = tuple(Host(node.name, node.gpus, per_gpu if tier.gpus else node.cpus) for node in nodes)
            yield replace(cluster, hosts=hosts, host=host)
        finally:
            with deferred():
                ray.shutdown()


def _connect(address: str, tree: Path, tier: Tier) -> None:
    environment = dict.fromkeys(THREADS, "1") | ({} if tier.gpus else {VISIBLE: ""})
    package = tree / "specmatrix"
    for name in PACKAGES:  # as an installation has them
        (tree / name).rename(package / name)
    # No `working_dir`: nodes on one machine would overwrite each other's, and a submitted job may have one of its own.
    settings = {"py_modules": [str(package)], "excludes": ["__pycache__"], "env_vars": environment}
    failures: list[Exception] = []

    def connect() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(address, runtime_env=settings, logging_level=logging.CRITICAL, log_to_driver=False)
        except Exception as error:  # Ray raises many types; the main thread reports them
            failures.append(error)

    # `ray.init` has no time limit, and in the main thread it would take SIGTERM over.
    thread = Thread(target=connect, daemon=True)
    # Workers import from the current folder first, so it is that of the same sources.
    with _silent(), chdir(tree):
        thread.start()
        thread.join(CONNECT_SECONDS)
    if thread.is_alive():
        raise ConfigError(f"no Ray cluster answered at {address} within {CONNECT_SECONDS:g} s")
    if failures:
        raise ConfigError(f"cannot connect to a Ray cluster at {address}: {text_of(failures[0])}")
    # Ray's handlers print a stack before they call those of Python.
    for number in SIGNALS if current_thread() is main_thread() else ():
        signal.signal(number, signal.getsignal(number))


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress output to descriptor 2, where Ray logs every connection attempt."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def knock(address: str) -> None:
    """ConfigError on an invalid address, and at once if nothing listens there: Ray would keep retrying."""
    if not ADDRESS.fullmatch(address):
        raise ConfigError(f"--on must be auto, HOST:PORT or ray://HOST:PORT, got {shown(address)}")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {text_of(error)}") from None


def living() -> list[ClusterNode]:
    """The nodes of the cluster that are alive, by name."""
    found = []
    for row in ray.nodes():  # type: ignore[no-untyped-call]  # Ray leaves it untyped
        if row["Alive"]:
            resources = row["Resources"]
            name = f"{row['NodeManagerAddress']} ({row['NodeID'][:6]})"
            found.append(ClusterNode(row["NodeID"], name, int(resources.get("CPU", 0)), int(resources.get("GPU", 0))))
    return sorted(found, key=lambda node: (node.name, node.id))


def too_small(cluster: Cluster, tier: Tier) -> str:
    """An error text: no node can run a task, with the nodes' resources."""
    needs = f"{count(cluster.cpus, 'CPU')}" + f" and {count(cluster.gpus, 'GPU')}" * bool(cluster.gpus)
    nodes = living()
    there = "; ".join(f"{node.name} has {count(node.cpus, 'CPU')} and {count(node.gpus, 'GPU')}" for node in nodes[:4])
    more = f"; and {len(nodes) - 4} more" * (len(nodes) > 4)
    lacks = f"tier {shown(tier.name)} needs a node with {needs}, which the Ray cluster at {cluster.address} lacks"
    return f"{lacks}: {there}{more}"


def probed(nodes: Sequence[ClusterNode], versions: Mapping[str, str], gpus: int) -> dict[str, Json]:
    """The header's description of all nodes together. gpus: of the tier. ConfigError if one cannot run this machine's
    cells."""
    hosts, end, tasks = [], monotonic() + PROBE_SECONDS, {}
    with deferred():
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node.id, soft=False)
            tasks[ray.remote(probe).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(gpus)] = node
    late = [*tasks]
    while late and (left := end - monotonic()) > 0:
        with deferred():
            _, late = ray.wait(late, num_returns=len(late), timeout=min(left, TICK_SECONDS))
    for task, node in tasks.items():
        if task in late:
            raise ConfigError(f"node {node.name} did not run its first task within {PROBE_SECONDS:g} s")
        try:
            with deferred():
                found, host = ray.get(task)
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            raise ConfigError(f"node {node.name} cannot run specmatrix: {described(cause)}") from None
        if wrong := difference(versions, found):
            raise ConfigError(f"node {node.name} {wrong}")
        hosts.append(host | {"gpus": list(host.get("gpus") or ())[: node.gpus]})  # a machine may have more
    return merged_host(hosts)


def difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The first version that a node has and the run does not, as the end of a sentence; "" if there is none."""
    for name, version in wanted.items():
        if found.get(name) != version:
            return f"has {name} {found.get(name)}, the machine that starts the run has {version}; install the same"
    return ""
