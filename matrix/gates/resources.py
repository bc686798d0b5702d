"""Checks an engine's use of its GPU: CUDA graphs in the steady state, memory, and early kernel launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specmatrix.engine.core.config.asked import GIB
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate
from specmatrix.matrix.subjects.observations import GraphRound, Resources
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

WIDTH: Final = 3
MASKS: Final = 5
ON_HOST: Final = 2  # from this value on


@dataclass
class ResourcesGate(PackageGate):
    """In the steady state nothing is captured or runs without a graph; memory is what was budgeted, and is reported;
    kernels start early where the GPU can.

    Actual values are counted by torch and the driver; expected ones are reported by the engine or follow from the
    shapes of the rounds.
    """

    name: str = "resources"
    needs: frozenset[Capability] = frozenset({Capability.RESOURCES, Capability.READBACK, Capability.COUNTERS})

    def applies(self, cell: Cell) -> bool:
        """Cells of one rank; on a CPU none, as the runner knows."""
        return cell.ranks == 1

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without the counts."""
        seen = run.resources
        if seen is None:
            return self.not_measured("the subject does not show what it takes of its GPU")
        unsteady = list(_unsteady(seen.rounds, seen.max_shapes))
        early = seen.early / max(1, seen.edges)
        numbers: dict[str, Number] = {
            "rounds": sum(bool(one.shape) for one in seen.rounds),
            "shapes": len({one.shape for one in seen.rounds if one.shape}),
            "captures": seen.captures,
            "replays": seen.replays,
            "unsteady": len(unsteady),
            "bypassed": seen.bypassed,
            "oversized": seen.oversized,
            "started_mb": round(seen.started_bytes / 2**20, 2),
            "budget_mb": round(seen.budget_bytes / 2**20, 2),
            "memory_ratio": seen.started_bytes / max(1, seen.budget_bytes),
            "graphs_mb": round(seen.pool_bytes / 2**20, 2),
            "edges": seen.edges,
            "early_share": early,
        }
        fault = unsteady[0] if unsteady else self._memory(seen, run, numbers)
        if not fault and seen.bypassed:
            fault = f"{seen.bypassed} rounds asked for no CUDA graph, although their batch and requests allow one"
        if not fault and seen.oversized:
            fault = f"{seen.oversized} rounds ran as CUDA graphs with more requests than cuda_graph_max_bs allows"
        if not fault and seen.captures and seen.can_launch_early and early < self.thresholds["early_share"]:
            fault = (
                f"{seen.early} of {seen.edges} kernels in CUDA graphs start early, allowed: at least a share of "
                f"{self.thresholds['early_share']:g}"
            )
        return self.verdict(numbers, fault)

    def _memory(self, seen: Resources, run: Run, numbers: Mapping[str, Number]) -> str:
        """A fault in the memory use, or ""."""
        least, most = self.thresholds["memory_least"], self.thresholds["memory_ratio"]
        if not least <= float(str(numbers["memory_ratio"])) <= most:
            return (
                f"the start took {numbers['started_mb']} MiB of the GPU, but {numbers['budget_mb']} MiB were budgeted "
                f"for it; allowed: {least:g} to {most:g} times as much"
            )
        graphs, stated = run.readback.get("graphs", 0), run.readback.get("graph_bytes", 0)
        if stated != seen.pool_bytes:
            return f"the engine reports {stated} bytes of CUDA graphs, torch's allocator {seen.pool_bytes}"
        if seen.pool_bytes > seen.limit_gb * GIB:
            return f"CUDA graphs take {seen.pool_bytes} bytes, above cuda_graph_max_gb {seen.limit_gb}"
        if graphs > seen.captures:
            return f"the engine reports {graphs} CUDA graphs, but torch captured {seen.captures}"
        return ""


def _unsteady(rounds: Sequence[GraphRound], most: int) -> Iterator[str]:
    """Yield a sentence for each round with other captures or replays than expected; `most` shapes are kept per
    width."""
    times: Counter[tuple[int, ...]] = Counter()
    kept: dict[int, dict[tuple[int, ...], bool]] = {}
    for number, one in enumerate(rounds):
        if not one.shape:
            times.clear()
            kept.clear()
            continue
        times[one.shape] += 1
        graphs = 2 if one.shape[MASKS] >= ON_HOST else 1  # a round is divided where the host computes masks
        due = tuple(graphs * count for count in _due(one.shape, kept.setdefault(one.shape[WIDTH], {}), most))
        if (one.captures, one.replays) != due:
            yield (
                f"round {number} is number {times[one.shape]} of its shape {one.shape} and had {one.captures} captures "
                f"and {one.replays} replays of graphs, expected {due[0]} and {due[1]}"
            )


def _due(shape: tuple[int, ...], kept: dict[tuple[int, ...], bool], most: int) -> tuple[int, int]:
    """The captures and replays of a round: none at the first time of its shape, a capture and a replay at the second,
    then replays.

    kept: the shapes of its width, least recently used first, and whether each has a graph. Beyond `most`, the oldest
    shape without a graph is forgotten, possibly this one; shapes with a graph are kept.
    """
    captured = kept.pop(shape, None)
    kept[shape] = captured is not None
    if captured is not None:
        return int(not captured), 1
    if len(kept) > most:
        del kept[next(other for other, has in kept.items() if not has)]
    return 0, 0
