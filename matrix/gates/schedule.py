"""Checks that an engine did the work that its workload needs, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from zlib import crc32

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.conformance.simulated import first_failure
from specmatrix.matrix.gates.conditions import widest
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State
from specmatrix.matrix.oracles.forwards import DraftShape, SparePositions, needless_forwards, wrong_budgets
from specmatrix.matrix.oracles.ledger import groups_of
from specmatrix.matrix.oracles.needed_work import Sizes, WorkDone, WorkMismatch
from specmatrix.matrix.oracles.page_group import STATE
from specmatrix.matrix.oracles.prefix import span_of
from specmatrix.matrix.oracles.work import WorkReplay
from specmatrix.matrix.subjects.protocol import Capability, Journal, Run, Stalled
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.reports.schema import REFERENCE

# Random schedules of each cell in tight memory, of 2 ms each.
SIMULATED: Final = 24


@dataclass
class ScheduleGate(PackageGate):
    """Predicts every step with a second scheduler, and compares what was admitted, reused, evicted, retracted, computed
    and read with the journal and with the forwards that ran.

    The journal starts with the engine, so needless work in an earlier cell of the same start also fails here. Where
    memory is tight, this engine's scheduler also runs random schedules on a device that computes
    nothing, with what no workload meets.
    """

    name: str = "schedule"
    needs: frozenset[Capability] = frozenset({Capability.JOURNAL, Capability.WORK})

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without a journal, without a log of the work, or if no forward was seen."""
        log = run.work
        if run.journal is None or log is None or not log.moments:
            missing = "ledger journal" if run.journal is None else "log of its work"
            return self.not_measured(f"the subject provides no {missing}")
        resolved, names = run.resolved, {one.id: one.name for one in run.served}
        sizes = Sizes(
            pages=resolved["num_pages"],
            page=resolved["page_size"],
            chunk=resolved["chunked_prefill_size"],
            rows=resolved["max_running_requests"],
            lag=resolved["lag"],
            width=widest(run),
            span=span_of(prepared.cell, resolved),
            caches=resolved["radix_cache"],
            window=None if resolved["window"] is None else (resolved["window"], resolved["window_pages"]),
            branches=resolved["topk"] if resolved.get("speculative_ragged_verify") else 0,
            mixed=resolved.get("enable_mixed_chunk", False),
            **_states(run.journal),
        )
        replay = WorkReplay(run.journal, sizes, log.sent, {one.id: one.tokens for one in run.served}, names)
        try:
            done = replay.run(log.moments)
        except WorkMismatch as mismatch:
            blame = Blame(names[mismatch.request]) if mismatch.request in names else None
            numbers = _numbers(replay.done, run, 1)
            return Outcome(self.name, State.FAIL, numbers, message=str(mismatch), blame=blame)
        fault = self._needless(prepared.cell, run, done)
        if not fault and prepared.subject == REFERENCE and prepared.cell.memory == "tight":
            first = crc32(f"{prepared.cell.id} {prepared.seed}".encode())
            fault = first_failure(range(first, first + SIMULATED), sizes.lag)
        numbers = _numbers(done, run, int(bool(fault)))
        return self.verdict(numbers, fault, "" if numbers["forwards"] else "no forward of the networks was seen")

    def judge_stall(self, stalled: Stalled) -> Outcome:
        """The verdict on an engine that did not end."""
        blame = Blame(stalled.request) if stalled.request else None
        numbers: dict[str, Number] = {"steps": stalled.steps, "needless": 1}
        return Outcome(self.name, State.FAIL, numbers, message=str(stalled), blame=blame)

    def _needless(self, cell: Cell, run: Run, done: WorkDone) -> str:
        """A sentence on the first step whose forwards differ from those needed, else ""."""
        assert run.work is not None
        steps, shape = [step for step in done.steps if step.rows], DraftShape.of(cell, run.resolved)
        if len(steps) != len(run.work.forwards):
            return f"{len(run.work.forwards)} steps were launched, and {len(steps)} are in the journal"
        graph = int(self.thresholds["spare_graph_positions"]) if run.resolved["cuda_graph_max_bs"] else None
        spare = SparePositions(int(self.thresholds["spare_positions"]), graph)
        for number, (step, ran) in enumerate(zip(steps, run.work.forwards, strict=True)):
            if fault := needless_forwards(step, ran, shape, spare):
                return f"launch {number}: {fault}"
        if table := run.resolved["speculative_dspark_sps_table_path"]:
            return wrong_budgets(run.work.budgets, table, shape.nodes - 1)
        return ""


def _states(journal: Journal) -> dict[str, int]:
    """The sizes of recurrent states."""
    page, groups = groups_of(journal)
    found = [(pages, sizes[0]) for kind, pages, *sizes in groups if kind == STATE]
    return {"states": found[0][0], "interval": found[0][1] * page} if found else {}


def _numbers(done: WorkDone, run: Run, needless: int) -> dict[str, Number]:
    assert run.work is not None
    forwards = [shape for step in run.work.forwards for shape in (*step.target, *step.draft)]
    return {
        "steps": len(done.steps),
        "overlapped": done.overlapped,
        "computed": done.computed,
        "reused": done.reused,
        "evicted": done.evicted,
        "retracted": done.retracted,
        "dropped": done.dropped,
        "peak_pages": done.held,
        "forwards": len(forwards),
        "read": sum(step.read for step in run.work.forwards),
        "budgets": sum(one.budget is not None for one in run.work.budgets),
        "needless": needless,
    }
