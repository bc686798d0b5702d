"""Checks that tokens equal those of plain decoding.

Draws depend only on seed and position, so sampled requests must agree token by token as well.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specmatrix.matrix.cells.cell import HYBRIDS, Cell
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State
from specmatrix.matrix.gates.pairing import TIE_NATS, AnswerPair, first_difference, is_tie, pairs, phase_of, unpaired
from specmatrix.matrix.gates.precision import PrecisionGate
from specmatrix.matrix.gates.thresholds import thresholds
from specmatrix.matrix.oracles.joint_law import prompt_gap, prompt_scores
from specmatrix.matrix.oracles.logit_rules import RuledToken, ruled_tokens
from specmatrix.matrix.oracles.precision import followed
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.build import DRAW_PROMPT
from specmatrix.matrix.workloads.predicted import RESOLVED_SHAPE, deepest_round
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import Oracle, oracle_index, oracle_of, rewriting

if TYPE_CHECKING:
    from torch import Tensor


def max_logprob_gap(pair: AnswerPair) -> tuple[int, float]:
    """Number of tokens with log-probabilities on both sides, and the largest difference in nats, alternatives included.

    Tokens after the first differing one have different contexts and are left out. An alternative that the baseline
    lacks is compared with the baseline's least likely one.
    """
    mine, theirs = pair.answer, pair.baseline
    index = first_difference(mine.output_ids, theirs.output_ids, prefix=True)
    end = len(mine.output_ids) if index is None else index
    own = list(zip(mine.logprobs[:end], theirs.logprobs[:end], strict=False))
    columns = zip(mine.top_logprobs[:end], theirs.top_logprobs[:end], strict=False)
    gaps = [abs(one - other) for one, other in own]
    gaps += [_column(one, other) for one, other in columns]
    return len(own), max(gaps, default=0.0)


def _column(mine: Sequence[tuple[int, float]], theirs: Sequence[tuple[int, float]]) -> float:
    """The largest difference in nats among one token's alternatives."""
    if not mine or not theirs:
        return 0.0
    known = dict(theirs)
    least = min(known.values())
    return max(abs(value - known.get(token, least)) for token, value in mine)


@dataclass
class LosslessGate(PackageGate):
    """Equal tokens and log-probabilities of run and baseline, and of the greedy baseline and Hugging Face transformers.

    oracle: None leaves the second comparison to the gate `oracle`. is_oracle_tie: recognises ties if the subject
    reports no log-probabilities (`OracleGate.is_tie`). sampled: also compare sampled requests, which must be identical.
    """

    name: str = "lossless"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS})
    thresholds: Mapping[str, float] = field(default_factory=lambda: {"tie_nats": TIE_NATS} | thresholds("lossless"))
    oracle: Callable[[str], Oracle | None] | None = oracle_of
    is_oracle_tie: Callable[[str, RequestSpec, int], bool] | None = None
    sampled: bool = True
    rules: Callable[[str, RequestSpec, tuple[int, ...], tuple[int, ...]], Sequence[RuledToken]] = ruled_tokens
    prompts: Callable[[str, tuple[int, ...]], Tensor] = prompt_scores
    precision: PrecisionGate = field(default_factory=PrecisionGate)

    def applies(self, cell: Cell) -> bool:
        """Every cell with comparable requests, also without a drafter: other axes differ from the baseline's."""
        return self._of_sampled(cell) or cell.sampling in ("greedy", "mixed", "rules")

    def _of_sampled(self, cell: Cell) -> bool:
        """Whether sampled requests are compared too: drafts that are drawn give other tokens of the same law."""
        return self.sampled and cell.acceptance == "match"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """A greedy divergence where the baseline's two best tokens are within `tie_nats` is a tie. With fast kernels,
        and under logit rules of bf16 trees, whose accepted keys fall into other attention tiles than a chain's, it is a
        tie if both tokens are within the bounds of `precision`.
        """
        if missing := unpaired(self.name, run, baseline):
            return missing
        every = pairs(run, baseline)
        if not self._of_sampled(prepared.cell):
            every = [pair for pair in every if pair.request.temperature == 0]
        target, exact = prepared.cell.target, baseline.resolved["dtype"] == "float32"
        # Nothing is known of another engine's kernels in half precision.
        fast = prepared.cell.numerics == "fast" or (self.oracle is None and not exact)
        tiled = prepared.cell.numerics == "bf16" and not _keeps_bits(run)
        compared = [pair for pair in every if followed(pair.request)] if fast else every
        found = [(pair, index) for pair in compared if (index := _divergence(pair)) is not None]
        loose = {pair.request.name for pair in compared if fast or (tiled and pair.request.ruled)}
        ties = [f"{pair.request.name}@{at}" for pair, at in found if self._is_tie(prepared, run, pair, at, loose)]
        broken = [(pair, i) for pair, i in found if f"{pair.request.name}@{i}" not in ties]
        strict = [(pair, index) for pair, index in found if pair.request.name not in loose]
        followed_on, strays = self._past_ties(prepared, run, strict, broken)
        numbers: dict[str, Number] = {
            "tokens": sum(len(pair.answer.output_ids) for pair in compared),
            "proving": sum(len(pair.answer.output_ids) for pair in compared if proves(prepared.cell, run, pair.answer)),
            "past_ties": followed_on,
            "divergent": len(broken) + len(strays),
            "ties": len(ties),
            "tied_at": ", ".join(ties),
            "first_divergence": _describe(*broken[0]) if broken else "",
        }
        if broken:
            first = numbers["first_divergence"]
            pair, index = broken[0]
            phase = phase_of(pair.request, pair.answer, index, run.resolved.get("chunked_prefill_size"))
            text = f"{len(broken)} of {len(compared)} requests differ from plain decoding, first {first}{phase}"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(pair.request.name, index))
        if strays:
            pair, index = strays[0]
            text = (
                f"{len(strays)} of {len(every)} requests leave float32's text behind a tie, first {pair.request.name} "
                f"at token {index}: {pair.answer.output_ids[index]}"
            )
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(pair.request.name, index))
        if not numbers["tokens"]:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no token was generated")
        worst, nats = self._worst_score(compared, numbers, exact or _keeps_bits(run))
        if worst and not fast:
            text = f"a log-probability of {worst} differs from the baseline's by {nats:.2g} nats"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(worst))
        outcome = Outcome(self.name, State.PASS, numbers)
        if self.oracle is not None:
            outcome = self._against_oracle(prepared, baseline, every, numbers)
            if outcome.state is not State.PASS:
                outcome = replace(outcome, accept=rewriting(target))
        if scored_prompts := [pair for pair in every if pair.request.prompt_logprobs >= 0]:
            outcome = self._against_prompts(scored_prompts, outcome, target, exact)
        asked = [pair for pair in pairs(run, baseline) if pair in every or pair.request.prompt != DRAW_PROMPT]
        ruled = [pair for pair in asked if pair.request.ruled and not pair.request.own]
        return self._against_rules(ruled, outcome, prepared, exact, fast) if ruled else outcome

    def _worst_score(self, compared: list[AnswerPair], numbers: dict[str, Number], kept: bool) -> tuple[str, float]:
        """The request with the largest log-probability difference beyond its bound, and the difference in nats; "" if
        there is none. kept: whether they must equal the baseline's bit by bit."""
        scored = [(pair.request, *max_logprob_gap(pair)) for pair in compared]
        numbers |= {"scored": sum(count for _, count, _ in scored), "score_nats": max(nats for *_, nats in scored)}
        beyond = [("", 0.0)]
        for request, _, nats in scored:
            half = "ruled_half_nats" if request.ruled else "half_nats"
            if nats > self.thresholds["score_nats" if kept else half]:
                beyond.append((request.name, nats))
        return max(beyond, key=lambda one: one[1])

    def _is_tie(self, prepared: PreparedCell, run: Run, pair: AnswerPair, index: int, loose: Container[str]) -> bool:
        target = prepared.cell.target
        if pair.request.name in loose:
            both = (pair.answer, pair.baseline)
            return all(self.precision.is_tie(prepared, run, pair.request, answer, index) for answer in both)
        if is_tie(pair.request, pair.baseline, index):
            return True
        if self.is_oracle_tie is None or pair.request.temperature > 0 or pair.baseline.top_logprobs:
            return False
        return oracle_index(pair.request) is not None and self.is_oracle_tie(target, pair.request, index)

    def _past_ties(
        self,
        prepared: PreparedCell,
        run: Run,
        found: list[tuple[AnswerPair, int]],
        broken: list[tuple[AnswerPair, int]],
    ) -> tuple[int, list[tuple[AnswerPair, int]]]:
        """Check each greedy answer after its tie with a float32 network on its own text: the number of tokens after
        ties, and the first token of each answer that the network would not choose.
        """
        count, strays = 0, []
        for pair, index in found:
            if (pair, index) in broken or pair.request.temperature or not followed(pair.request):
                continue
            mine = pair.answer
            tokens = self.precision.tokens(prepared.cell.target, pair.request, 0, mine.prompt_ids, mine.output_ids)
            count += max(0, len(tokens) - index - 1)
            limit = self.thresholds["past_tie_nats"]
            off = (place for place in range(index + 1, len(tokens)) if tokens[place].off > limit)
            strays += [(pair, place) for place in [next(off, None)] if place is not None]
        return count, strays

    def _against_prompts(self, scored: list[AnswerPair], outcome: Outcome, target: str, exact: bool) -> Outcome:
        """Prompt log-probabilities, alternatives included, must equal the network's, whatever the request's logit
        rules.
        """
        worst = max(
            prompt_gap(pair.request, pair.answer, self.prompts(target, pair.answer.prompt_ids)) for pair in scored
        )
        numbers = {**outcome.numbers, "scored_prompts": len(scored), "prompt_nats": worst}
        if outcome.state is State.PASS and exact and worst > self.thresholds["oracle_nats"]:
            text = f"a log-probability of a prompt's token differs from the oracle's by {worst:.2g} nats"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        return replace(outcome, numbers=numbers)

    def _against_rules(
        self, ruled: list[AnswerPair], outcome: Outcome, prepared: PreparedCell, exact: bool, fast: bool
    ) -> Outcome:
        """Check the baseline's tokens against transformers' logits processors: greedy tokens are the best up to a tie,
        sampled ones are not banned, and log-probabilities agree. In half precision `precision` judges greedy tokens and
        their log-probabilities. Where the run may differ from the baseline, its tokens must not be banned either: a
        parameter that drafts ignore."""
        checked, worst = 0, 0.0
        for pair in ruled:
            request, base = pair.request, pair.baseline
            free = request.temperature > 0 and not self._of_sampled(prepared.cell)
            found = self.rules(prepared.cell.target, request, base.prompt_ids, base.output_ids)
            for index, token in enumerate(found):
                behind = exact and request.temperature == 0 and token.behind >= self.thresholds["tie_nats"]
                if outcome.state is State.PASS and (behind or not token.kept):
                    text = f"the baseline of {request.name} breaks its logit rules at token {index}"
                    blame = Blame(request.name, index, got=base.output_ids)
                    return Outcome(self.name, State.FAIL, outcome.numbers, message=text, blame=blame)
            mine = pair.answer
            drawn = self.rules(prepared.cell.target, request, mine.prompt_ids, mine.output_ids) if fast or free else ()
            if (banned := next((at for at, token in enumerate(drawn) if not token.kept), None)) is not None:
                text = f"{request.name} breaks its logit rules at token {banned}"
                return Outcome(self.name, State.FAIL, outcome.numbers, message=text, blame=Blame(request.name, banned))
            checked += len(found)
            worst = worst if free else max(worst, _apart([token.logprob for token in found], base.logprobs))
        numbers = {**outcome.numbers, "ruled_tokens": checked, "rule_nats": worst}
        bound = "hybrid_rule_nats" if prepared.cell.model in HYBRIDS else "rule_nats"
        if outcome.state is State.PASS and exact and worst > self.thresholds[bound]:
            text = f"a log-probability of the baseline differs from that under its logit rules by {worst:.2g} nats"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        return replace(outcome, numbers=numbers)

    def _against_oracle(
        self, prepared: PreparedCell, baseline: Run, every: list[AnswerPair], numbers: dict[str, Number]
    ) -> Outcome:
        """Compare the greedy baseline with the oracle's continuations; in float32 log-probabilities too."""
        assert self.oracle is not None
        oracle, exact = self.oracle(prepared.cell.target), baseline.resolved["dtype"] == "float32"
        greedy = [pair for pair in every if pair.request.temperature == 0 and oracle_index(pair.request) is not None]
        if not greedy:
            return Outcome(self.name, State.PASS, numbers)
        if oracle is None:
            text = "the target has no transformers oracle continuations, so the baseline itself is unverified"
            return Outcome(self.name, State.NOT_MEASURED, numbers, message=text)
        checked, max_logprob_gap = 0, 0.0
        for pair in greedy:
            expected = oracle.continuation(pair.request)
            index = first_difference(expected, pair.baseline.output_ids, prefix=True)
            tied = index is not None and (
                is_tie(pair.request, pair.baseline, index)
                if exact
                else self.precision.is_tie(prepared, baseline, pair.request, pair.baseline, index)
            )
            if index is not None and not tied:
                text = f"the baseline of {pair.request.name} differs from the transformers oracle at token {index}"
                place = _place(pair, pair.baseline.output_ids, expected, index)
                numbers |= {"oracle_tokens": checked, "first_divergence": f"the baseline's {place}"}
                blame = Blame(pair.request.name, index, got=pair.baseline.output_ids, expected=tuple(expected))
                return Outcome(self.name, State.FAIL, numbers, message=text, blame=blame)
            same = min(len(expected), len(pair.baseline.output_ids)) if index is None else index
            if exact and len(pair.baseline.logprobs) < same:
                text = f"the baseline of {pair.request.name} has no log-probabilities to compare with the oracle's"
                return Outcome(self.name, State.NOT_MEASURED, numbers, message=text)
            checked += same
            max_logprob_gap = max(max_logprob_gap, _apart(oracle.scores(pair.request)[:same], pair.baseline.logprobs))
        numbers |= {"oracle_tokens": checked, "oracle_nats": max_logprob_gap}
        if exact and max_logprob_gap > self.thresholds["oracle_nats"]:
            text = f"a log-probability of the baseline differs from the oracle's by {max_logprob_gap:.2g} nats"
            return Outcome(self.name, State.FAIL, numbers, message=text)
        return Outcome(self.name, State.PASS, numbers)


def proves(cell: Cell, run: Run, answer: Answer) -> bool:
    """Whether an equal answer proves the drafts' handling: some were accepted and some rejected, or the cell has no
    drafter. Without rounds, the subject's totals decide.
    """
    if cell.algorithm == "none":
        return True
    if not answer.accept_lengths:
        accepted, drafted = run.evidence.get("spec.accepted", 0), run.evidence.get("spec.drafted", 0)
        return 0 < accepted < drafted
    deepest = deepest_round(*(int(run.resolved[name]) for name in RESOLVED_SHAPE))
    widths = answer.round_widths if cell.adapts else [deepest] * len(answer.accept_lengths)
    rejected = any(length < width for length, width in zip(answer.accept_lengths, widths, strict=False))
    return rejected and max(answer.accept_lengths) > 1


def _keeps_bits(run: Run) -> bool:
    """Whether plain decoding's log-probabilities are expected bit by bit in every dtype: deterministic chains."""
    return bool(run.resolved.get("enable_deterministic_inference")) and int(run.resolved["topk"]) <= 1


def _apart(expected: Sequence[float], got: Sequence[float]) -> float:
    """The largest difference in nats."""
    return max((abs(one - other) for one, other in zip(expected, got, strict=False)), default=0.0)


def _divergence(pair: AnswerPair) -> int | None:
    """Index of a pair's first differing token; an aborted request is compared up to its end."""
    ends = pair.request.abort_after is not None or pair.request.replaced
    aborted = ends and "abort" in (pair.answer.finish, pair.baseline.finish)
    return first_difference(pair.answer.output_ids, pair.baseline.output_ids, prefix=aborted)


def _describe(pair: AnswerPair, index: int) -> str:
    return _place(pair, pair.answer.output_ids, pair.baseline.output_ids, index)


def _place(pair: AnswerPair, got: Sequence[int], expected: Sequence[int], index: int) -> str:
    words = [str(ids[index]) if index < len(ids) else "end of output" for ids in (got, expected)]
    return f"{pair.request.name} at token {index}: {words[0]} instead of {words[1]}"
