"""Checks that adaptive steps chose every round's depth as specified, from what was actually accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.conformance.simulated import wrong_depth
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate, State
from specmatrix.matrix.gates.journal_rounds import first_journal_mismatch
from specmatrix.matrix.oracles.adaptive import AdaptiveMismatch, AdaptiveReplay, widest
from specmatrix.matrix.subjects.observations import Trace
from specmatrix.matrix.subjects.protocol import Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.sessions import WAVES
from specmatrix.reports.schema import REFERENCE

# Random rounds of each cell, 200 at a time in 20 ms.
SIMULATED: Final = 8


@dataclass
class AdaptiveGate(PackageGate):
    """Replays the controller's trace with an independent implementation, and compares its rounds with the journal and
    its observations with the answers.

    Trace and journal start with the engine, so an error in an earlier cell of the same start also fails here. This
    engine's controller also decides random rounds, with batches and acceptance that no workload meets.
    """

    name: str = "adaptive"
    needs: frozenset[Capability] = frozenset({Capability.TRACE, Capability.JOURNAL, Capability.COUNTERS})

    def applies(self, cell: Cell) -> bool:
        """Cells with adaptive depth; if the engine makes it static, `config` and `effective` report that."""
        return cell.adapts

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without a complete trace or without a journal."""
        trace = run.trace
        if trace is None or run.journal is None:
            missing = "trace of adaptive steps" if trace is None else "ledger journal"
            return self.not_measured(f"the subject provides no {missing}")
        if trace.lost:
            return self.not_measured(f"the adaptive-steps trace no longer holds its first {trace.lost} rounds")
        if not trace.observations:
            return self.not_measured("the adaptive-steps trace holds no observed round")
        earlier = run.earlier or Trace((), ())
        skipped = len(earlier.rounds), len(earlier.observations)
        replay = AdaptiveReplay(
            prepared.cell,
            int(run.resolved["lag"]),
            self.thresholds["average"],
            skipped,
            int(run.resolved["cuda_graph_max_bs"]),
        )
        try:
            replay.walk(trace)
        except AdaptiveMismatch as mismatch:
            return Outcome(self.name, State.FAIL, _numbers(replay, trace, skipped), message=str(mismatch))
        fault = (
            first_journal_mismatch(run.journal, trace.rounds, widest(replay.slots))
            or wave_not_batched(prepared.cell, [size for size, _ in trace.rounds[skipped[0] :]])
            or _misobserved(run, trace, skipped[1])
            or _miscounted(run, replay)
        )
        shape = prepared.predicted
        if not fault and prepared.subject == REFERENCE and not isinstance(shape, ConfigError):
            begin = crc32(f"{prepared.cell.id} {prepared.seed}".encode())
            random = range(begin, begin + SIMULATED)
            fault = wrong_depth(prepared.cell, shape, self.thresholds["average"], random)
        numbers = _numbers(replay, trace, skipped)
        return self.verdict(numbers, fault)


def wave_not_batched(cell: Cell, sizes: Sequence[int]) -> str:
    """A sentence if some wave's requests never share a round although no limit separates them, else ""."""
    together = (cell.batch, cell.slots, cell.prefill_chunk) == ("ramp", "auto", "off")
    left = iter(sizes)
    for number, wave in enumerate(WAVES):
        if together and sizes and wave not in left:
            return f"the {wave} requests of wave {number} never share a verify round; the largest batch is {max(sizes)}"
    return ""


def _misobserved(run: Run, trace: Trace, skipped: int) -> str:
    """A sentence if the controller's observations (width, accepted drafts) differ from the answers', else ""."""
    observed = Counter((seen.width, drafts) for seen in trace.observations[skipped:] for drafts in seen.correct)
    reported: Counter[tuple[int, int]] = Counter()
    for answer in run.answers:
        widths, rounds = len(answer.round_widths), len(answer.accept_lengths)
        if widths != rounds:
            return f"{answer.name} reports {widths} round widths for {rounds} verify rounds"
        reported.update(zip(answer.round_widths, [length - 1 for length in answer.accept_lengths], strict=True))
    for width, drafts in sorted(observed.keys() | reported.keys()):
        seen, given = observed[width, drafts], reported[width, drafts]
        if seen != given:
            return (
                f"the controller observed {seen} rounds of width {width} with {drafts} accepted drafts; the answers "
                f"report {given}"
            )
    return ""


def _miscounted(run: Run, replay: AdaptiveReplay) -> str:
    for name in ("activated", "batch_switch", "switched_up", "switched_down", "held", "undrafted"):
        counter = f"adaptive.{name}"
        seen, due = run.evidence.get(counter, 0), replay.counts[counter]
        if seen != due:
            return f"counter {counter} is {seen}; the trace implies {due}"
    return ""


def _numbers(replay: AdaptiveReplay, trace: Trace, skipped: tuple[int, int]) -> dict[str, Number]:
    rounds, observations = trace.rounds[skipped[0] :], trace.observations[skipped[1] :]
    return {
        "rounds": len(rounds),
        "observations": len(observations),
        "replayed": len(trace.observations),
        "slots": len({seen.slot for seen in observations}),
        "widths": ", ".join(map(str, sorted({width for _, width in rounds}))),
        "up": replay.counts["adaptive.switched_up"],
        "down": replay.counts["adaptive.switched_down"],
        "held": replay.counts["adaptive.held"],
        "by_batch": replay.counts["adaptive.batch_switch"],
        "deviation": replay.deviation,
    }
