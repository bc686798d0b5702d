"""Checks that all ranks agree step by step: ledger journals, plans, accepted tokens and draft tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate, State
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell


@dataclass
class RanksGate(PackageGate):
    """All ranks report equal digests for every step of the run."""

    name: str = "ranks"
    needs: frozenset[Capability] = frozenset({Capability.RANKS})

    def applies(self, cell: Cell) -> bool:
        """Cells with several ranks."""
        return cell.ranks > 1

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if no step was compared."""
        outcome = self.judge_agreement(prepared, run.ranks)
        launched = None if run.work is None else len(run.work.forwards)
        if outcome.state is State.PASS and launched not in (None, outcome.numbers["planned"]):
            text = f"{outcome.numbers['planned']} plans were compared, but this engine launched {launched} steps"
            return replace(outcome, state=State.FAIL, message=text)
        return outcome

    def judge_agreement(self, prepared: PreparedCell, found: Agreement | None) -> Outcome:
        """Check the ranks' reports, also those of an engine that stopped because its ranks diverged."""
        if found is None:
            return self.not_measured("no rank reported its steps")
        different = len(set(found.digests))
        numbers: dict[str, Number] = {
            "ranks": found.ranks,
            "planned": found.planned,
            "read": found.read,
            "divergent": int(found.divergence is not None),
        }
        if found.divergence is not None:
            return Outcome(self.name, State.FAIL, numbers, message=found.divergence)
        if found.ranks != prepared.cell.ranks:
            text = f"{found.ranks} ranks reported their steps; the cell has {prepared.cell.ranks}"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if not found.planned or found.planned != found.read:
            compared = f"{found.planned} plans and {found.read} results were compared"
            return self.not_measured(f"{compared}; expected equally many and at least one", numbers)
        text = f"the ranks' final digests have {different} different values, although every compared step agrees"
        return self.verdict(numbers, text if different > 1 else "")
