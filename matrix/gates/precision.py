"""Checks cells in bf16 against float32: each token and log-probability, along the cell's own text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean
from typing import Final, NamedTuple

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, State
from specmatrix.matrix.gates.thresholds import Threshold, values
from specmatrix.matrix.oracles.precision import PreciseToken, followed, precise_tokens
from specmatrix.matrix.run.prepared_cell import PreparedCell
from specmatrix.matrix.subjects.protocol import Answer, Capability, RequestSpec, Run

THRESHOLDS: Final = {
    "tie_nats": Threshold(
        0.25,
        "0.16 at most over 60 cells in bf16 on an H100, greedy and sampled alike; the median margin of the zoo's two "
        "best tokens is 10",
    ),
    "routed_share": Threshold(
        0.006, "tokens of a target with experts that may be further off, as a router's tie gives others: 0.0032 at most"
    ),
    "tied_share": Threshold(0.05, "2.6 % at most of a cell's tokens, all sampled; of greedy ones 0.05 %"),
    "score_rms": Threshold(0.03, "0.016 nats at most per cell for greedy tokens in bf16; 2e-7 in float32"),
    "sampled_rms": Threshold(0.06, "0.028 nats at most per cell for sampled tokens in bf16; 2e-6 in float32"),
}
# Targets with experts.
ROUTED: Final = ("deepseek",)
SHARES: Final = {
    "tied_share": "the share of tokens that are not float32's",
    "score_rms": "the error of greedy tokens' log-probabilities (root mean square, in nats)",
    "sampled_rms": "the error of sampled tokens' log-probabilities (root mean square, in nats)",
}


class Precise(NamedTuple):
    """An answer with what float32 says of each of its tokens."""

    request: RequestSpec
    answer: Answer
    tokens: Sequence[PreciseToken]


@dataclass
class PrecisionGate:
    """Every token of run and baseline is float32's, or within a bound of it: a tie, which is counted.

    tie_nats bounds how far a token may be off, as `PreciseToken` says. tied_share bounds the ties; score_rms and
    sampled_rms bound the errors of log-probabilities (root mean squares), of greedy and sampled tokens. routed_share:
    of a target with experts, the share of tokens that may be further off than any of these bounds.
    """

    name: str = "precision"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS, Capability.SAMPLED_IDENTITY})
    thresholds: Mapping[str, float] = field(default_factory=lambda: values(THRESHOLDS))
    tokens: Callable[..., Sequence[PreciseToken]] = precise_tokens

    def applies(self, cell: Cell) -> bool:
        """Cells in bf16: in float32 `lossless` compares with transformers, and all drafts with the baseline."""
        return cell.numerics != "float32"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if no request can be followed."""
        every = [*self._precise(prepared.cell.target, run), *self._precise(prepared.cell.target, baseline)]
        ties = [f"{one.request.name}@{place}" for one in every for place, token in enumerate(one.tokens) if token.off]
        errors = [
            (one.request.temperature > 0, value - token.logprob)
            for one in every
            for value, token in zip(one.answer.logprobs, one.tokens, strict=False)
        ]
        count = sum(len(one.tokens) for one in every)
        spared = self.thresholds["routed_share"] if prepared.cell.model in ROUTED else 0.0
        numbers: dict[str, Number] = {
            "tokens": count,
            "ties": len(ties),
            "tied_at": ", ".join(dict.fromkeys(ties)),
            "tied_share": len(ties) / max(1, count),
            "worst_nats": max((token.off for one in every for token in one.tokens), default=0.0),
            "scored": len(errors),
            "score_rms": _rms([error for sampled, error in errors if not sampled], spared),
            "sampled_rms": _rms([error for sampled, error in errors if sampled], spared),
            "routed": 0,
            "beyond": 0,
        }
        if not count:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no token was compared with float32")
        return self._judged(prepared.cell, every, numbers)

    def is_tie(self, prepared: PreparedCell, run: Run, request: RequestSpec, answer: Answer, index: int) -> bool:
        """Whether float32 might as well have chosen the token at an index of an answer."""
        if not followed(request) or index >= len(answer.output_ids):
            return False
        (one,) = self._precise(prepared.cell.target, run, [(request, answer)])
        return one.tokens[index].off <= self.thresholds["tie_nats"]

    def _judged(self, cell: Cell, every: Sequence[Precise], numbers: dict[str, Number]) -> Outcome:
        bound = self.thresholds["tie_nats"]
        beyond = [(one, place) for one in every for place, token in enumerate(one.tokens) if token.off > bound]
        routed = cell.model in ROUTED and len(beyond) <= self.thresholds["routed_share"] * int(str(numbers["tokens"]))
        numbers["routed" if routed else "beyond"] = len(beyond)
        if beyond and not routed:
            one, place = beyond[0]
            text = (
                f"token {place} of {one.request.name} is {one.tokens[place].off:.3g} nats away from what float32 "
                f"chooses, allowed {bound:g}"
            )
            blame = Blame(one.request.name, place, got=one.answer.output_ids)
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=blame)
        for name, what in SHARES.items():
            if float(str(numbers[name])) > self.thresholds[name]:
                text = f"{what} is {float(str(numbers[name])):.3g}, allowed {self.thresholds[name]:g}"
                return Outcome(self.name, State.FAIL, numbers, message=text)
        return Outcome(self.name, State.PASS, numbers)

    def _precise(
        self, target: str, run: Run, pairs: Sequence[tuple[RequestSpec, Answer]] | None = None
    ) -> Iterator[Precise]:
        """The answers that float32 follows."""
        answers = {answer.name: answer for answer in run.answers}
        found = [(request, answers[request.name]) for request in run.requests if request.name in answers]
        for request, answer in found if pairs is None else pairs:
            if followed(request):
                seed = int(run.resolved["random_seed"]) if request.seed is None else request.seed
                yield Precise(request, answer, self.tokens(target, request, seed, answer.prompt_ids, answer.output_ids))


def _rms(errors: Sequence[float], spared: float) -> float:
    """The root mean square without this share of the largest errors."""
    squares = sorted(error**2 for error in errors)
    kept = squares[: len(squares) - int(spared * len(squares))]
    return sqrt(fmean(kept)) if kept else 0.0
