"""Ray clusters of several nodes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from threading import Thread

import pytest
from ray.cluster_utils import Cluster

from specmatrix import HOME
from specmatrix.matrix.cells.tiers import VISIBLE
from tests.support.scripted_tasks import ATTEMPTS, DOOMED

MEMORY = 80 * 2**20


@contextmanager
def cluster_of(
    head: int, nodes: Sequence[Mapping[str, int]], attempts: Path, client_port: int | None = None
) -> Iterator[Cluster]:
    """A head with this number of CPUs, and nodes with these resources. attempts: the folder that scripted tasks use."""
    with pytest.MonkeyPatch.context() as patch:
        # Nodes inherit the environment; their workers import the scripted tasks, but nothing else of this checkout.
        with suppress(FileExistsError):
            (attempts.parent / "tests").symlink_to(HOME / "tests")
        patch.setenv("PYTHONPATH", str(attempts.parent))
        patch.setenv(ATTEMPTS, str(attempts))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Workers that no task of ours would get, as it has its own environment.
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        patch.delenv(VISIBLE, raising=False)
        first = options(num_cpus=head) | {"ray_client_server_port": client_port}
        made = Cluster(initialize_head=True, head_node_args=first)
        try:
            for node in nodes:
                made.add_node(**options(**node))
            yield made
        finally:
            made.shutdown()


def told(pipe: Path, seconds: float = 120.0) -> str:
    """What a task writes into a pipe. TimeoutError if it does not come."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not select([descriptor], [], [], seconds)[0]:
            raise TimeoutError(f"nothing was written into {pipe.name}")
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


@contextmanager
def doomed(cluster: Cluster, node: object, attempts: Path) -> Iterator[None]:
    """The node is killed when a task asks for it."""
    os.mkfifo(attempts / DOOMED)

    def kill() -> None:
        told(attempts / DOOMED)
        (attempts / DOOMED).unlink()
        cluster.remove_node(node, allow_graceful=False)

    killer = Thread(target=kill, daemon=True)
    killer.start()
    yield
    killer.join()


def options(**own: int) -> dict[str, object]:
    return {"object_store_memory": MEMORY, "include_dashboard": False, **own}
