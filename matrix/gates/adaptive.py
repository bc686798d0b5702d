"""Did every round run as deep as the rule of adaptive steps says, on what was really accepted?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.journal_rounds import first_journal_mismatch
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.oracles.adaptive import AdaptiveMismatch, AdaptiveReplay, widest
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Capability, Run, Trace
from specmatrix.matrix.workloads.sessions import WAVES

THRESHOLDS: Final = {
    "average": Threshold(1e-9, "float64 rounding of a few products; the smallest wrong count moves it by 1e-3"),
}


@dataclass
class AdaptiveGate:
    """Replays the controller's trace by a second implementation, entry for entry; holds its rounds against the journal
    and its observations against the answers.

    Trace and journal begin with the engine, so what an earlier cell of the same start broke is red here too.
    """

    name: str = "adaptive"
    needs: frozenset[Capability] = frozenset({Capability.TRACE, Capability.JOURNAL, Capability.COUNTERS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))

    def applies(self, cell: Cell) -> bool:
        """Cells whose depth adapts; where the engine makes it static, `config` and `effective` say so."""
        return cell.adapts

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED without trace and journal, or where the trace has lost its beginning."""
        trace = run.trace
        if trace is None or run.journal is None:
            text = "the depth is static" if trace is None else "the subject shows no journal"
            return Outcome(self.name, State.NOT_MEASURED, message=text)
        if trace.lost:
            text = f"the trace has lost its first {trace.lost} rounds"
            return Outcome(self.name, State.NOT_MEASURED, message=text)
        if not trace.observations:
            return Outcome(self.name, State.NOT_MEASURED, message="no round was observed")
        earlier = run.earlier or Trace((), ())
        skipped = len(earlier.rounds), len(earlier.observations)
        replay = AdaptiveReplay(prepared.cell, int(run.resolved["lag"]), self.thresholds["average"], skipped)
        try:
            replay.walk(trace)
        except AdaptiveMismatch as mismatch:
            return Outcome(self.name, State.FAIL, _numbers(replay, trace, skipped), message=str(mismatch))
        fault = (
            first_journal_mismatch(run.journal[0], trace.rounds, widest(replay.slots))
            or wave_not_batched(prepared.cell, [size for size, _ in trace.rounds[skipped[0] :]])
            or _unlike(run, trace, skipped[1])
            or _miscounted(run, replay)
        )
        numbers = _numbers(replay, trace, skipped)
        return Outcome(self.name, State.FAIL if fault else State.PASS, numbers, message=fault)


def wave_not_batched(cell: Cell, sizes: Sequence[int]) -> str:
    """Where nothing holds a wave's requests apart, some round holds all of them, wave after wave; a sentence if not."""
    together = (cell.batch, cell.slots, cell.prefill_chunk) == ("waves", "auto", "off")
    left = iter(sizes)
    for number, wave in enumerate(WAVES):
        if together and sizes and wave not in left:
            return f"no round holds the {wave} requests of wave {number}; the rounds hold up to {max(sizes)}"
    return ""


def _unlike(run: Run, trace: Trace, skipped: int) -> str:
    """Each request's rounds, by width and accepted drafts, are those observed meanwhile; a sentence if not."""
    observed = Counter((seen.width, drafts) for seen in trace.observations[skipped:] for drafts in seen.correct)
    told: Counter[tuple[int, int]] = Counter()
    for answer in run.answers:
        if len(answer.round_widths) != len(answer.accept_lengths):
            return f"{answer.name} reports {len(answer.round_widths)} widths of {len(answer.accept_lengths)} rounds"
        told.update(zip(answer.round_widths, [length - 1 for length in answer.accept_lengths], strict=True))
    for width, drafts in sorted(observed.keys() | told.keys()):
        seen, said = observed[width, drafts], told[width, drafts]
        if seen != said:
            return (
                f"{seen} rounds of requests were observed {width} wide with {drafts} accepted drafts, the answers tell "
                f"of {said}"
            )
    return ""


def _miscounted(run: Run, replay: AdaptiveReplay) -> str:
    for probe in ("adaptive.activated", "adaptive.batch_switch", "adaptive.switched_up", "adaptive.switched_down"):
        if run.evidence.get(probe, 0) != replay.counts[probe]:
            return f"{probe} was hit {run.evidence.get(probe, 0)} times, the trace shows {replay.counts[probe]}"
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
        "by_batch": replay.counts["adaptive.batch_switch"],
        "deviation": replay.deviation,
    }
