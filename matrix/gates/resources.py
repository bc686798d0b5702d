"""Checks what an engine takes of its GPU: CUDA graphs in the steady state, memory, and early kernel launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specmatrix.engine.device.graph_cache import GIB
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Capability, GraphRound, Resources, Run

THRESHOLDS: Final = {
    "unsteady": Threshold(0, "a shape's first round compiles, its second is captured, and all others are replays"),
    "memory_ratio": Threshold(1.1, "1.017 at most: torch's allocator rounds up, and small tensors are not budgeted"),
    "memory_least": Threshold(0.55, "0.637 at least: prediction layers that no drafter loads are in the budget"),
    "early_share": Threshold(
        0.03, "of the edges between a graph's kernels, most of which are torch's: 0.145 in a tree of EAGLE3 in bf16"
    ),
}
WIDTH: Final = 3


@dataclass
class ResourcesGate:
    """In the steady state nothing is captured or runs without a graph; memory is what was budgeted, and is reported;
    kernels start early where the GPU can.

    What happened is torch's and the driver's count; what should have is the engine's own report, or follows from the
    shapes of the rounds.
    """

    name: str = "resources"
    needs: frozenset[Capability] = frozenset({Capability.RESOURCES, Capability.READBACK, Capability.COUNTERS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))

    def applies(self, cell: Cell) -> bool:
        """Cells of one rank; on a CPU none, as the runner knows."""
        return cell.ranks == 1

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without the counts."""
        seen = run.resources
        if seen is None:
            return Outcome(self.name, State.NOT_MEASURED, message="the subject does not show what it takes of its GPU")
        unsteady = list(_unsteady(seen.rounds, seen.most_shapes))
        early = seen.early / max(1, seen.edges)
        numbers: dict[str, Number] = {
            "rounds": sum(bool(one.shape) for one in seen.rounds),
            "shapes": len({one.shape for one in seen.rounds if one.shape}),
            "captures": seen.captures,
            "replays": seen.replays,
            "unsteady": len(unsteady),
            "bypassed": seen.bypassed,
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
        if not fault and seen.captures and seen.can_launch_early and early < self.thresholds["early_share"]:
            fault = (
                f"{seen.early} of {seen.edges} kernels in CUDA graphs start early, allowed: at least a share of "
                f"{self.thresholds['early_share']:g}"
            )
        return Outcome(self.name, State.FAIL if fault else State.PASS, numbers, message=fault)

    def _memory(self, seen: Resources, run: Run, numbers: Mapping[str, Number]) -> str:
        """What is wrong with the memory, or ""."""
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
    """A sentence for each round that is neither the first of its shape, nor captured and replayed as the second, nor
    replayed. Widths with more shapes than are kept, of which some never have a graph, are left out."""
    times: dict[tuple[int, ...], int] = {}
    widths: dict[int, set[tuple[int, ...]]] = {}
    for one in rounds:
        if one.shape:
            widths.setdefault(one.shape[WIDTH], set()).add(one.shape)
    for number, one in enumerate(rounds):
        if not one.shape:
            times.clear()
            continue
        times[one.shape] = times.get(one.shape, 0) + 1
        due = (0, 0) if times[one.shape] == 1 else (1 if times[one.shape] == 2 else 0, 1)
        if len(widths[one.shape[WIDTH]]) <= most and (one.captures, one.replays) != due:
            yield (
                f"round {number} is number {times[one.shape]} of its shape {one.shape} and had {one.captures} captures "
                f"and {one.replays} replays of graphs, expected {due[0]} and {due[1]}"
            )
