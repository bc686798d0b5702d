"""Ray clusters of several nodes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from ray.cluster_utils import Cluster

from specmatrix import HOME
from specmatrix.matrix.run.tiers import VISIBLE
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
        # Workers that no task of ours would get, as it has an environment of its own.
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


@contextmanager
def doomed(cluster: Cluster, node: object, attempts: Path) -> Iterator[None]:
    """The node is killed when a task asks for it."""
    os.mkfifo(attempts / DOOMED)

    def kill() -> None:
        (attempts / DOOMED).read_text()
        (attempts / DOOMED).unlink()
        cluster.remove_node(node, allow_graceful=False)

    killer = Thread(target=kill, daemon=True)
    killer.start()
    yield
    killer.join()


def options(**own: int) -> dict[str, object]:
    return {"object_store_memory": MEMORY, "include_dashboard": False, **own}
