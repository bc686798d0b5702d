"""Checks that the configuration took effect: the engine reports it, and counters show that its code paths ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specmatrix.matrix.gates.evidence import EVIDENCE, GPU_EVIDENCE, Evidence
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate, State
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# Start of the message on a counter that is wrongly zero or non-zero.
COUNTER: Final = "counter "
# Readback values without which the running engine is unknown.
REQUIRED: Final = (
    "algorithm", "num_steps", "topk", "num_draft_tokens", "lag", "page_size", "num_pages", "radix_cache",
    "chunked_prefill_size", "max_running_requests",
)  # fmt: skip


@dataclass
class EffectiveGate(PackageGate):
    """The running values equal the resolved ones, the drafter kept its protocol, all evidence that applies holds."""

    name: str = "effective"
    needs: frozenset[Capability] = frozenset({Capability.READBACK, Capability.COUNTERS, Capability.RESOLUTION})
    evidence: tuple[Evidence, ...] = (*EVIDENCE, *GPU_EVIDENCE)

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if a required value is not reported, or if all counters are zero."""
        missing = [key for key in REQUIRED if key not in run.readback or key not in run.resolved]
        if missing:
            return Outcome(
                self.name, State.NOT_MEASURED, message=f"the subject does not report {missing[0]} of the running engine"
            )
        if not any(run.evidence.values()):
            return Outcome(
                self.name, State.NOT_MEASURED, message="all counters are zero, so there is no evidence of what ran"
            )
        common = [key for key in run.readback if key in run.resolved]
        differing = [key for key in common if run.readback[key] != run.resolved[key]]
        required = [row for row in self.evidence if row.when(prepared.cell, run)]
        unseen = [row for row in required if not row.holds(run)]
        numbers: dict[str, Number] = {
            "keys": len(common),
            "differences": len(differing),
            "workers": len(run.readback.get("workers", ())) + len(run.readback.get("ranks", ())),
            "required": len(required),
            "unseen": len(unseen),
        }
        if error := run.readback.get("drafter_error"):
            return Outcome(self.name, State.FAIL, numbers, message=str(error))
        if strays := list(_strays(run)):
            return Outcome(self.name, State.FAIL, {**numbers, "differences": len(strays)}, message=strays[0])
        if differing:
            key = differing[0]
            text = f"{key} was resolved to {run.resolved[key]!r}, but the engine runs {run.readback[key]!r}"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if unseen:
            return Outcome(self.name, State.FAIL, numbers, message=_unseen(unseen[0], run))
        return Outcome(self.name, State.PASS, numbers)


def nearest_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Reorder the outcomes so that a missing counter comes last: it mostly follows from another gate's finding."""
    return sorted(outcomes, key=lambda one: one.gate == EffectiveGate.name and one.message.startswith(COUNTER))


def _strays(run: Run) -> Iterator[str]:
    """Yield a sentence for each option whose running value in a worker or rank differs from the resolved one."""
    for worker, options in run.readback.get("workers", {}).items():
        for name, value in options.items():
            if value != run.resolved[name]:
                yield f"{name} was resolved to {run.resolved[name]!r}, but the {worker} runs {value!r}"
    for number, rank in enumerate(run.readback.get("ranks", ())):
        for name in rank:
            if name in run.resolved and rank[name] != run.resolved[name]:
                yield f"{name} was resolved to {run.resolved[name]!r}, but rank {number} runs {rank[name]!r}"
        if rank.get("workers") != run.readback.get("workers"):
            yield f"the workers of rank {number} are {rank.get('workers')!r}, of rank 0 {run.readback['workers']!r}"


def _unseen(row: Evidence, run: Run) -> str:
    wanted = "more than 0" if row.seen else "0"
    return f"{COUNTER}{row.counter.replace('|', ' or ')} is {row.hits(run)}, expected {wanted}: {row.why}"
