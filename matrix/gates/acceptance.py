"""Does the drafter accept what an independent implementation of the same round accepts?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.round_alignment import first_apart, first_left, oracle_rounds
from specmatrix.matrix.gates.session_baseline import turns_left, twinned
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.oracles.ngram_replay import NgramReplay, ReplayError, Round
from specmatrix.matrix.oracles.transformers import Combination, Oracle, oracle_index, oracle_of
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.reports.stats import ratio_change

THRESHOLDS: Final = {
    "low": Threshold(0.97, "a paired bootstrap over prompts sees a loss of 3 % at 32 prompts; sglang#34145 lost 20 %"),
    "high": Threshold(1.03, "more than the oracle accepts is as wrong: it reads tokens that it must not know"),
    "moved_low": Threshold(
        0.90, "only where every request was retracted, which moves round boundaries; measured intervals reach 0.96"
    ),
    "moved_high": Threshold(1.10, "as moved_low, to the other side"),
    "left": Threshold(
        0, "in float32 all greedy requests of the nightly cells, retracted ones too, have the oracle's very rounds"
    ),
}


@dataclass(frozen=True)
class Rounds:
    """Tokens and verify rounds of one prompt over the range that both sides decoded; the last round may be a part."""

    emitted: float
    engine: float
    oracle: float


class RoundsPair(NamedTuple):
    """Tokens of each verify round of one request, the engine's and the oracle's, and how often it was retracted.

    widths, reach: where the depth changes from round to round, the width of each round and what the oracle knows.
    """

    mine: Sequence[int]
    theirs: Sequence[int]
    retractions: int
    widths: Sequence[int] = ()
    reach: Sequence[int] = ()

    def left(self) -> int | None:
        """The first round that is not as long as the oracle says."""
        if self.widths:
            return first_apart(self.mine, self.widths, self.reach, self.retractions)
        return first_left(self.mine, self.theirs, self.retractions)


@dataclass
class AcceptanceGate:
    """Tokens per round against the oracle's, prompt by prompt, on greedy requests; turns against their twins."""

    name: str = "acceptance"
    needs: frozenset[Capability] = frozenset({Capability.COUNTERS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))
    oracle: Callable[[str], Oracle | None] = oracle_of

    def applies(self, cell: Cell) -> bool:
        """Cells with a drafter and greedy requests that run to their end on prompts that the oracle knows, or turns."""
        if cell.algorithm == "ngram":
            return True
        return _proven(cell) or twinned(cell)

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED where the oracle lacks the combination or no round was decoded."""
        if run.resolved.get("ngram") is not None:
            return self._replayed(run)
        cell = prepared.cell
        if not twinned(cell):
            return self._against_oracle(cell, run)
        outcome = self._against_oracle(cell, run) if _proven(cell) else Outcome(self.name, State.PASS)
        return self._against_twin(outcome, run)

    def _against_twin(self, outcome: Outcome, run: Run) -> Outcome:
        """The outcome of the first turns, unless a later turn leaves the rounds that its whole history has."""
        if run.twin is None:
            return Outcome(self.name, State.NOT_MEASURED, message="nobody ran the turns with their whole history")
        numbers, text = turns_left(run, run.twin)
        outcome = replace(outcome, numbers={**outcome.numbers, **numbers})
        if outcome.state is not State.PASS or run.resolved["dtype"] != "float32":
            return outcome
        if int(str(numbers["turns_left"])) > self.thresholds["left"]:
            return replace(outcome, state=State.FAIL, message=text)
        return outcome

    def _against_oracle(self, cell: Cell, run: Run) -> Outcome:
        oracle = self.oracle(cell.target)
        greedy = _adapted(cell, run, oracle) if cell.adapts else _fixed(cell, run, oracle)
        if isinstance(greedy, str):
            return Outcome(self.name, State.NOT_MEASURED, message=greedy)
        steady = [pair for pair in greedy if not pair.retractions]
        measured = [same_range(pair.mine, pair.theirs) for pair in steady or greedy]
        if not measured:
            return Outcome(
                self.name, State.NOT_MEASURED, message="no greedy request of the oracle's prompts decoded a round"
            )
        numbers = _numbers(measured, [pair.mine for pair in greedy])
        interval = _interval(measured)
        band = "" if steady else "moved_"
        low, high = self.thresholds[f"{band}low"], self.thresholds[f"{band}high"]
        ratio = float(str(numbers["ratio"]))
        ends = interval or (ratio, ratio)
        if low <= ends[0] and ends[1] <= high:
            text = self._left(greedy, numbers) if run.resolved["dtype"] == "float32" else ""
            return Outcome(self.name, State.FAIL if text else State.PASS, numbers, interval, text)
        text = (
            f"{numbers['length']:.3f} tokens per round, the oracle has {numbers['reference']:.3f}: "
            f"ratio {ends[0]:.3f} to {ends[1]:.3f}, allowed {low:g} to {high:g}"
        )
        return Outcome(self.name, State.FAIL, numbers, interval, text)

    def _replayed(self, run: Run) -> Outcome:
        """Each round of every request, drawn or greedy, against a replay of the index that all of them share."""
        if run.journal is None:
            return Outcome(self.name, State.NOT_MEASURED, message="the subject shows no journal to replay")
        replay = NgramReplay(run.resolved, run.served)
        try:
            replay.walk(run.journal[0])
        except ReplayError as broken:
            return Outcome(self.name, State.FAIL, message=str(broken))
        due = {answer.name: replay.rounds.get(int(answer.meta_info["id"]), []) for answer in run.answers}
        places = {
            a.name: place for a in run.answers if (place := first_other(a.accept_lengths, due[a.name])) is not None
        }
        rounds = sum(map(len, due.values()))
        numbers: dict[str, Number] = {
            "length": sum(sum(answer.accept_lengths) for answer in run.answers) / max(1, rounds),
            "rounds": rounds,
            "left": len(places),
        }
        if len(places) > self.thresholds["left"]:
            name = min(places, key=lambda name: places[name])
            text = (
                f"{len(places)} of {len(due)} requests leave the replayed rounds, first {name} at round {places[name]}"
            )
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if not rounds:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no request decoded a round")
        return Outcome(self.name, State.PASS, numbers)

    def _left(self, greedy: Sequence[RoundsPair], numbers: dict[str, Number]) -> str:
        """A loss too small for a ratio, such as draft KV of another prompt behind one prefix hit (sglang#10846)."""
        places = [place for pair in greedy if (place := pair.left()) is not None]
        numbers |= {"left": len(places), "retracted": sum(pair.retractions > 0 for pair in greedy)}
        if len(places) <= self.thresholds["left"]:
            return ""
        return f"{len(places)} of {len(greedy)} requests leave the oracle's rounds, the first at round {places[0]}"


def _proven(cell: Cell) -> bool:
    """Whether the oracle knows what greedy requests of the cell accept."""
    return cell.algorithm != "none" and cell.abort == "none" and cell.sampling in ("greedy", "mixed")


def first_other(mine: Sequence[int], due: Sequence[Round]) -> int | None:
    """The first round that is not the one due; one side's rounds may not outnumber the other's."""
    for index, (accepted, one) in enumerate(zip(mine, due, strict=False)):
        if not one.allows(accepted):
            return index
    return None if len(mine) == len(due) else min(len(mine), len(due))


def _fixed(cell: Cell, run: Run, oracle: Oracle | None) -> list[RoundsPair] | str:
    """The greedy requests beside the oracle's rounds of the one combination that runs, or what is missing."""
    key = combination(cell, run.resolved)
    rounds = None if oracle is None else oracle.rounds.get(key)
    if rounds is None:
        return f"the oracle has no rounds for {key[0]} {key[1]}/{key[2]}/{key[3]}"
    return [
        RoundsPair(answer.accept_lengths, rounds[index], answer.retractions)
        for answer, index in _greedy(run)
        if index < len(rounds) and rounds[index]
    ]


def _adapted(cell: Cell, run: Run, oracle: Oracle | None) -> list[RoundsPair] | str:
    """The greedy requests beside what the oracle's chain would accept in rounds of the same widths."""
    drafter = "nextn.single" if cell.algorithm == "nextn" else cell.algorithm
    if oracle is None or drafter not in oracle.reach:
        return f"the oracle has no reach of {drafter}"
    pairs = []
    for answer, index in _greedy(run):
        reach, mine, widths = oracle.reach[drafter][index], answer.accept_lengths, answer.round_widths
        pairs.append(RoundsPair(mine, oracle_rounds(reach, widths, sum(mine)), answer.retractions, widths, reach))
    return pairs


def _greedy(run: Run) -> Iterator[tuple[Answer, int]]:
    """Answers with rounds of greedy requests on the oracle's prompts, and the index of each one's prompt."""
    answers = {answer.name: answer for answer in run.answers}
    for ask in run.asks:
        index, answer = oracle_index(ask), answers.get(ask.name)
        if ask.temperature == 0 and index is not None and answer is not None and answer.accept_lengths:
            yield answer, index


def combination(cell: Cell, resolved: Mapping[str, Any]) -> Combination:
    """The oracle's key of what runs."""
    return cell.algorithm, int(resolved["num_steps"]), int(resolved["topk"]), int(resolved["num_draft_tokens"])


def same_range(mine: Sequence[int], theirs: Sequence[int]) -> Rounds:
    """Both sides over the tokens that both decoded: a shorter answer must not read as a lower acceptance."""
    emitted = min(sum(mine), sum(theirs))
    return Rounds(emitted, _rounds(mine, emitted), _rounds(theirs, emitted))


def _rounds(lengths: Sequence[int], emitted: int) -> float:
    """Rounds to the `emitted`-th token, the last one by its share."""
    left, rounds = emitted, 0.0
    for length in lengths:
        rounds += min(1.0, left / length)
        left -= min(left, length)
    return rounds


def _interval(measured: Sequence[Rounds]) -> tuple[float, float] | None:
    """95 % interval of engine over oracle; None for a single prompt, which has no spread."""
    if len(measured) == 1:
        return None
    emitted = [one.emitted for one in measured]
    change = ratio_change((emitted, [one.oracle for one in measured]), (emitted, [one.engine for one in measured]))
    return 1 + change.interval[0], 1 + change.interval[1]


def _numbers(measured: Sequence[Rounds], lengths: Sequence[Sequence[int]]) -> dict[str, Number]:
    emitted = sum(one.emitted for one in measured)
    engine, oracle = sum(one.engine for one in measured), sum(one.oracle for one in measured)
    drafts = [length - 1 for each in lengths for length in each]
    reached = [sum(d >= j for d in drafts) for j in range(max(drafts) + 1)]
    return {
        "length": emitted / engine,
        "reference": emitted / oracle,
        "ratio": oracle / engine,
        "prompts": len(measured),
        "per_position": [round(sum(d > j for d in drafts) / reached[j], 4) for j in range(max(drafts))],
        "emitted": [one.emitted for one in measured],
        "rounds": [one.engine for one in measured],
    }
