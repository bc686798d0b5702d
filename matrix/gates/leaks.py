"""Checks that an engine at rest holds nothing of the requests and sessions that have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# Counts that an engine with a readback of `alive` must report.
COUNTED: Final = frozenset(
    {
        *("requests", "queued", "abandoned", "isolated", "owned", "stop_rules", "readers"),
        *("steps", "rows", "accounts", "held", "sessions", "closing", "busy_sessions", "request_objects", "executors"),
    }
)


@dataclass
class LeaksGate(PackageGate):
    """Every count of `alive` in the readback is zero, and none of COUNTED is missing.

    The engine counts, except for request objects, which are counted by weak references.
    """

    name: str = "leaks"
    needs: frozenset[Capability] = frozenset({Capability.READBACK, Capability.WORK})

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without a count."""
        alive: Mapping[str, int] = run.readback.get("alive", {})
        served = 0 if run.work is None else len(run.work.sent)
        numbers: dict[str, Number] = {"counts": len(alive), "sent": served, "left": sum(alive.values())}
        if not alive or not served:
            return self.not_measured("the subject does not count what is alive", numbers)
        if missing := sorted(COUNTED - alive.keys()):
            return self.not_measured(f"the subject does not count {', '.join(missing).replace('_', ' ')}", numbers)
        left = [f"{count} {name.replace('_', ' ')}" for name, count in alive.items() if count]
        return self.verdict(numbers, f"{', '.join(left)} left at rest, after {served} requests" if left else "")
