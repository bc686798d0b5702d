"""Are the tokens those of plain decoding?

Verification draws with the randomness of seed and position, so sampled requests must agree token by token as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, State
from specmatrix.matrix.gates.logprobs import max_logprob_gap
from specmatrix.matrix.gates.pairing import TIE_NATS, AnswerPair, first_difference, is_tie, pairs, unpaired
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.oracles.transformers import Oracle, oracle_index, oracle_of
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Capability, Run

THRESHOLDS: Final = {
    "tie_nats": Threshold(TIE_NATS, "above float32 rounding of a logit, below any gap that the zoo's models decide by"),
    "oracle_nats": Threshold(
        1e-4, "two libraries in float32 were 7e-6 apart at most; a window one token short moves it by 2.5e-3"
    ),
    "score_nats": Threshold(
        1e-4, "3e-5 at most in texts of 600 tokens, none in short ones; another temperature moves it by 1e-2"
    ),
    "divergent": Threshold(0, "exact verification: equal to plain decoding with the same seed"),
}


@dataclass
class LosslessGate:
    """Token equality with the baseline; greedy baselines also with another library's tokens and log-probabilities."""

    name: str = "lossless"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))
    oracle: Callable[[str], Oracle | None] = oracle_of

    def applies(self, cell: Cell) -> bool:
        """Every cell, the cells without a drafter included: their configuration differs from the baseline's."""
        return True

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """A greedy divergence where the baseline's two best tokens are closer than `tie_nats` is a tie, not red."""
        missing = unpaired(self.name, run, baseline)
        if missing:
            return missing
        every = pairs(run, baseline)
        found = [(pair, index) for pair in every if (index := _divergence(pair)) is not None]
        ties = [f"{pair.ask.name}@{index}" for pair, index in found if is_tie(pair.ask, pair.baseline, index)]
        broken = [(pair, i) for pair, i in found if f"{pair.ask.name}@{i}" not in ties]
        numbers: dict[str, Number] = {
            "tokens": sum(len(pair.answer.output_ids) for pair in every),
            "divergent": len(broken),
            "ties": len(ties),
            "tied_at": ", ".join(ties),
            "first_divergence": _describe(*broken[0]) if broken else "",
        }
        if broken:
            text = f"{len(broken)} of {len(every)} requests left plain decoding, first {_describe(*broken[0])}"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if not numbers["tokens"]:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no token was produced")
        exact = baseline.resolved["dtype"] == "float32"
        scored = [(pair.ask.name, *max_logprob_gap(pair)) for pair in every]
        worst, _, nats = max(scored, key=lambda one: one[2])
        numbers |= {"scored": sum(count for _, count, _ in scored), "score_nats": nats}
        if exact and nats > self.thresholds["score_nats"]:
            text = f"a log-probability of {worst} is {nats:.2g} nats from the baseline's"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        return self._against_oracle(every, numbers, self.oracle(prepared.cell.target), exact)

    def _against_oracle(
        self, every: list[AnswerPair], numbers: dict[str, Number], oracle: Oracle | None, exact: bool
    ) -> Outcome:
        """exact: in half precision only tokens are compared."""
        greedy = [pair for pair in every if pair.ask.temperature == 0 and oracle_index(pair.ask) is not None]
        if not greedy:
            return Outcome(self.name, State.PASS, numbers)
        if oracle is None:
            text = "the continuations of the oracle are missing, so the baseline itself is unproven"
            return Outcome(self.name, State.NOT_MEASURED, numbers, message=text)
        checked, max_logprob_gap = 0, 0.0
        for pair in greedy:
            expected = oracle.continuation(pair.ask)
            index = first_difference(expected, pair.baseline.output_ids, prefix=True)
            if index is not None and not is_tie(pair.ask, pair.baseline, index):
                text = f"the baseline of {pair.ask.name} leaves the oracle's continuation at token {index}"
                place = _place(pair, pair.baseline.output_ids, expected, index)
                numbers |= {"oracle_tokens": checked, "first_divergence": f"the baseline's {place}"}
                return Outcome(self.name, State.FAIL, numbers, message=text)
            same = min(len(expected), len(pair.baseline.output_ids)) if index is None else index
            if exact and len(pair.baseline.logprobs) < same:
                text = f"the baseline of {pair.ask.name} shows no log-probabilities to hold against the oracle's"
                return Outcome(self.name, State.NOT_MEASURED, numbers, message=text)
            checked += same
            max_logprob_gap = max(max_logprob_gap, _apart(oracle.scores(pair.ask)[:same], pair.baseline.logprobs))
        numbers |= {"oracle_tokens": checked, "oracle_nats": max_logprob_gap}
        if exact and max_logprob_gap > self.thresholds["oracle_nats"]:
            text = f"a log-probability of the baseline is {max_logprob_gap:.2g} nats from the oracle's"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        return Outcome(self.name, State.PASS, numbers)


def _apart(expected: Sequence[float], got: Sequence[float]) -> float:
    """The largest difference in nats."""
    return max((abs(one - other) for one, other in zip(expected, got, strict=False)), default=0.0)


def _divergence(pair: AnswerPair) -> int | None:
    """Where a pair first differs; an aborted request is held to what it produced."""
    aborted = pair.ask.abort_after is not None and "abort" in (pair.answer.finish, pair.baseline.finish)
    return first_difference(pair.answer.output_ids, pair.baseline.output_ids, prefix=aborted)


def _describe(pair: AnswerPair, index: int) -> str:
    return _place(pair, pair.answer.output_ids, pair.baseline.output_ids, index)


def _place(pair: AnswerPair, got: Sequence[int], expected: Sequence[int], index: int) -> str:
    words = [str(ids[index]) if index < len(ids) else "its end" for ids in (got, expected)]
    return f"{pair.ask.name} at token {index}: {words[0]} instead of {words[1]}"
