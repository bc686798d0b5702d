"""Checks cells in bf16 against float32: each token and log-probability, along the cell's own text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import fmean
from typing import Final, NamedTuple

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State
from specmatrix.matrix.oracles.precision import PreciseToken, followed, precise_tokens
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec

# Probability, at most, that a run without a defect has more tokens of other experts than are allowed, if router ties
# are independent; and the largest share of its tokens that may have them.
CHANCE: Final = 1e-4
ROUTED_MOST: Final = 0.1
# Targets with experts.
ROUTED: Final = ("deepseek", "qwen3next")
SHARES: Final = {
    "tied_share": "the share of tokens that are not float32's",
    "score_rms": "the error of greedy tokens' log-probabilities (root mean square, in nats)",
    "sampled_rms": "the error of sampled tokens' log-probabilities (root mean square, in nats)",
}


class Precise(NamedTuple):
    """An answer with float32's evaluation of each of its tokens."""

    request: RequestSpec
    answer: Answer
    tokens: Sequence[PreciseToken]


@dataclass
class PrecisionGate(PackageGate):
    """Every token of run and baseline is float32's, or within a bound of it: a tie, which is counted.

    tie_nats bounds how far a greedy token may be off, as `PreciseToken` says, drawn_nats a sampled one, of which
    far_draws may be beyond tie_nats. tied_share bounds the ties; score_rms and sampled_rms bound the errors of
    log-probabilities (root mean squares), of greedy and sampled tokens. routed_share: of a target with experts, the
    expected share of tokens that are further off than any of these bounds; a run may have as many as chance gives one
    run in 10,000.
    """

    name: str = "precision"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS, Capability.SAMPLED_IDENTITY})
    tokens: Callable[..., Sequence[PreciseToken]] = precise_tokens

    def applies(self, cell: Cell) -> bool:
        """Cells in bf16: in float32 `lossless` compares with transformers, and all drafts with the baseline."""
        return cell.numerics != "float32"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if no request can be followed."""
        cell = prepared.cell
        sides = [list(self._precise(cell.target, one)) for one in (run, baseline)]
        every = [one for side in sides for one in side]
        ties = [f"{one.request.name}@{place}" for one in every for place, token in enumerate(one.tokens) if token.off]
        errors = {sampled: [_errors(side, sampled) for side in sides] for sampled in (False, True)}
        count = sum(len(one.tokens) for one in every)
        numbers: dict[str, Number] = {
            "tokens": count,
            "ties": len(ties),
            "tied_at": ", ".join(dict.fromkeys(ties)),
            "tied_share": len(ties) / max(1, count),
            "worst_nats": _worst(every, sampled=False),
            "worst_drawn": _worst(every, sampled=True),
            "scored": sum(len(part) for parts in errors.values() for part in parts),
            "score_rms": self._rms(cell, errors[False]),
            "sampled_rms": self._rms(cell, errors[True]),
            "routed": 0,
            "beyond": 0,
        }
        if not count:
            return self.not_measured("no token was compared with float32", numbers)
        return self._judged(cell, sides, numbers)

    def is_tie(self, prepared: PreparedCell, run: Run, request: RequestSpec, answer: Answer, index: int) -> bool:
        """Whether the token at an index of an answer is within its bound of float32's choice."""
        if not followed(request) or index >= len(answer.output_ids):
            return False
        (one,) = self._precise(prepared.cell.target, run, [(request, answer)])
        return one.tokens[index].off <= self._bound(request)

    def _judged(self, cell: Cell, sides: Sequence[Sequence[Precise]], numbers: dict[str, Number]) -> Outcome:
        beyond = [self._beyond(side, self._bound) for side in sides]
        tie, draws = self.thresholds["tie_nats"], self.thresholds["far_draws"]
        far = [self._beyond([one for one in side if one.request.temperature], lambda request: tie) for side in sides]
        may = [self._routed(cell, sum(len(one.tokens) for one in side)) for side in sides]
        red = [places for places, most in zip(beyond, may, strict=True) if len(places) > most]
        numbers["beyond" if red else "routed"] = sum(map(len, beyond))
        numbers["far_draws"] = max(map(len, far))
        if red:
            one, place = red[0][0]
            text = (
                f"token {place} of {one.request.name} is {one.tokens[place].off:.3g} nats away from what float32 "
                f"chooses, allowed {self._bound(one.request):g}"
            )
            blame = Blame(one.request.name, place, got=one.answer.output_ids)
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=blame)
        for places, most in zip(far, may, strict=True):
            if len(places) > most + draws:
                text = (
                    f"{len(places)} sampled tokens of a run are more than {tie:g} nats away from what float32 chooses, "
                    f"allowed {most + draws:g}"
                )
                return Outcome(self.name, State.FAIL, numbers, message=text)
        for name, what in SHARES.items():
            if float(str(numbers[name])) > self.thresholds[name]:
                text = f"{what} is {float(str(numbers[name])):.3g}, allowed {self.thresholds[name]:g}"
                return Outcome(self.name, State.FAIL, numbers, message=text)
        return Outcome(self.name, State.PASS, numbers)

    def _bound(self, request: RequestSpec) -> float:
        return self.thresholds["drawn_nats" if request.temperature else "tie_nats"]

    @staticmethod
    def _beyond(side: Sequence[Precise], bound: Callable[[RequestSpec], float]) -> list[tuple[Precise, int]]:
        """The tokens of a run that are further off than a bound, or NaN."""
        return [
            (one, place)
            for one in side
            for place, token in enumerate(one.tokens)
            if not token.off <= bound(one.request)
        ]

    def _routed(self, cell: Cell, tokens: int) -> int:
        """Allowed number of a run's tokens that were routed to different experts."""
        if cell.model not in ROUTED:
            return 0
        from scipy.stats import binom

        return min(int(binom.isf(CHANCE, tokens, self.thresholds["routed_share"])), int(ROUTED_MOST * tokens))

    def _rms(self, cell: Cell, parts: Sequence[Sequence[float]]) -> float:
        """The root mean square of both runs' errors, excluding the largest of each run that different experts may
        explain; infinite if an error is not finite."""
        if not all(isfinite(error) for errors in parts for error in errors):
            return float("inf")
        kept = [
            error**2
            for errors in parts
            for error in sorted(errors, key=abs)[: len(errors) - self._routed(cell, len(errors))]
        ]
        return sqrt(fmean(kept)) if kept else 0.0

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


def _errors(side: Sequence[Precise], sampled: bool) -> list[float]:
    """Differences of a run's log-probabilities from float32's, in nats."""
    return [
        value - token.logprob
        for one in side
        if (one.request.temperature > 0) == sampled
        for value, token in zip(one.answer.logprobs, one.tokens, strict=False)
    ]


def _worst(every: Sequence[Precise], sampled: bool) -> float:
    offs = (token.off for one in every if (one.request.temperature > 0) == sampled for token in one.tokens)
    return max(offs, default=0.0)
