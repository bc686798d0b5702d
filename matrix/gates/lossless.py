"""Checks that tokens equal those of plain decoding.

Draws depend only on seed and position, so sampled requests must agree token by token as well.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from zlib import crc32

from specmatrix.matrix.cells.cell import HYBRIDS, Cell
from specmatrix.matrix.conformance.random_trees import first_mixed_rule
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State, thresholds
from specmatrix.matrix.gates.pairing import TIE_NATS, AnswerPair, first_difference, is_tie, pairs, phase_of, unpaired
from specmatrix.matrix.gates.precision import PrecisionGate
from specmatrix.matrix.oracles.joint_law import prompt_gap, rounding
from specmatrix.matrix.oracles.logit_rules import RuledToken, ruled_tokens
from specmatrix.matrix.oracles.precision import drawn_off, followed
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.build import DRAW_PROMPT
from specmatrix.matrix.workloads.predicted import RESOLVED_SHAPE, deepest_round
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import Oracle, oracle_index, oracle_of, rewriting
from specmatrix.reports.schema import REFERENCE


class Gap(NamedTuple):
    """A difference in nats of one log-probability, with the index of its output token and the id that it is of."""

    nats: float
    at: int
    token: int


def logprob_gaps(pair: AnswerPair) -> tuple[int, list[Gap]]:
    """Number of tokens with log-probabilities on both sides, and all differences, alternatives included.

    Tokens after the first differing one have different contexts and are left out. An alternative that the baseline
    lacks is compared with the baseline's least likely one.
    """
    mine, theirs = pair.answer, pair.baseline
    index = first_difference(mine.output_ids, theirs.output_ids, prefix=True)
    end = len(mine.output_ids) if index is None else index
    own = enumerate(zip(mine.logprobs[:end], theirs.logprobs[:end], strict=False))
    gaps = [Gap(abs(one - other), at, mine.output_ids[at]) for at, (one, other) in own]
    number = len(gaps)
    for at, columns in enumerate(zip(mine.top_logprobs[:end], theirs.top_logprobs[:end], strict=False)):
        if all(columns):
            known = dict(columns[1])
            least = min(known.values())
            gaps += [Gap(abs(value - known.get(token, least)), at, token) for token, value in columns[0]]
    return number, gaps


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
        fast = prepared.cell.numerics == "fast" or (self.is_oracle_tie is not None and not exact)
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
            pair, index = broken[0]
            first = f"{numbers['first_divergence']}{_phase(pair, index, run)}"
            text = f"{len(broken)} of {len(compared)} requests differ from plain decoding, first {first}"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(pair.request.name, index))
        if strays:
            pair, index = strays[0]
            text = f"{len(strays)} of {len(every)} requests leave float32's text behind a tie, first "
            text += f"{pair.request.name} at token {index}: {pair.answer.output_ids[index]}"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(pair.request.name, index))
        if not numbers["tokens"]:
            return Outcome(self.name, State.NOT_MEASURED, numbers, message="no token was generated")
        beyond = self._scores_beyond(prepared.cell, compared, numbers, exact or _keeps_bits(run))
        if beyond and not fast:
            (nats, index, _), pair = max(beyond, key=lambda one: one[0].nats)
            text = f"a log-probability of {pair.request.name} differs from the baseline's by {nats:.2g} nats, at token "
            text += f"{index}{_phase(pair, index, run)}"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(pair.request.name, index))
        outcome = Outcome(self.name, State.PASS, numbers)
        if self.oracle is not None:
            outcome = self._against_oracle(prepared, baseline, every, numbers)
            if outcome.state is not State.PASS:
                outcome = replace(outcome, accept=rewriting(target))
            elif exact:
                outcome = self._of_random_targets(prepared, self._along(prepared, every, outcome))
        if scored_prompts := [pair for pair in every if pair.request.prompt_logprobs >= 0]:
            outcome = self._against_prompts(scored_prompts, outcome, run, target, exact)
        asked = [pair for pair in pairs(run, baseline) if pair in every or pair.request.prompt != DRAW_PROMPT]
        ruled = [pair for pair in asked if pair.request.ruled and not pair.request.own]
        return self._against_rules(ruled, outcome, prepared, exact, fast) if ruled else outcome

    def _of_random_targets(self, prepared: PreparedCell, outcome: Outcome) -> Outcome:
        """FAIL if this engine scores a text with a random network otherwise than transformers does; of plain cells."""
        if outcome.state is not State.PASS or prepared.subject != REFERENCE or prepared.cell.algorithm != "none":
            return outcome
        from specmatrix.matrix.conformance.random_targets import first_wrong_target

        text = first_wrong_target(crc32(f"{prepared.cell.id} {prepared.seed}".encode()))
        return replace(outcome, state=State.FAIL, message=text) if text else outcome

    def _scores_beyond(
        self, cell: Cell, compared: list[AnswerPair], numbers: dict[str, Number], kept: bool
    ) -> list[tuple[Gap, AnswerPair]]:
        """Log-probability differences beyond their bound, with their requests. kept: whether they must equal the
        baseline's bit by bit, but several ranks' sums are in another order, which moves some numbers more than others.
        """
        scored = [(*logprob_gaps(pair), pair) for pair in compared]
        nats = max((gap.nats for _, gaps, _ in scored for gap in gaps), default=0.0)
        numbers |= {"scored": sum(number for number, _, _ in scored), "score_nats": nats}
        limits, beyond = self.thresholds, []
        bounds = ["score_nats"] * 2 if kept else ["half_nats", "ruled_half_nats"]
        for _, gaps, pair in scored:
            for gap in gaps:
                found = gap.nats > limits[bounds[pair.request.ruled]]
                if found and cell.ranks > 1:
                    texts = pair.answer.prompt_ids, pair.answer.output_ids
                    own = rounding(cell.target, pair.request, *texts, gap.at)[gap.token]
                    found = not gap.nats <= limits["rank_rounding"] * float(own)
                beyond += [(gap, pair)] if found else []
        return beyond

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

    def _against_prompts(
        self, scored: list[AnswerPair], outcome: Outcome, run: Run, target: str, exact: bool
    ) -> Outcome:
        """Prompt log-probabilities, alternatives included, must equal the network's, whatever the request's logit
        rules: each up to the rounding of unlikely tokens, and this engine's on a CPU all together up to the usual one.
        """
        found = [(prompt_gap(target, pair.request, pair.answer), pair.request.name) for pair in scored]
        worst = max(gap.nats for gap, _ in found)
        ours = self.oracle is not None and run.resolved["device"] == "cpu"  # others may round more
        numbers = {**outcome.numbers, "scored_prompts": len(scored), "prompt_nats": worst}
        for gap, name in found if outcome.state is State.PASS and exact else ():
            limits, text = self.thresholds, f"a log-probability of the prompt of {name} differs from the oracle's by "
            if gap.nats > max(limits["oracle_nats"], limits["prompt_largest"] * gap.own):
                text += f"{gap.nats:.2g} nats, at token {gap.at}"
                return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(name))
            if ours and gap.numbers >= limits["prompt_numbers"] and gap.spread > limits["prompt_spread"] * gap.own:
                text = f"the log-probabilities of the prompt of {name} differ from the oracle's by {gap.spread:.2g} "
                text += f"nats in root mean square, where float32 rounds by {gap.own:.2g}"
                return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(name))
        return replace(outcome, numbers=numbers)

    def _against_rules(
        self, ruled: list[AnswerPair], outcome: Outcome, prepared: PreparedCell, exact: bool, fast: bool
    ) -> Outcome:
        """Check the baseline's tokens against transformers' logits processors: greedy tokens are the best up to a tie,
        sampled ones are not banned, and log-probabilities agree. In half precision `precision` judges greedy tokens and
        their log-probabilities. Where the run may differ from the baseline, its tokens must not be banned either: a
        parameter that drafts ignore."""
        checked, worst, at, of = 0, 0.0, 0, ruled[0]
        seeds = {one.name: one.seed or 0 for one in prepared.baseline.requests}
        for pair in ruled:
            request, base = pair.request, pair.baseline
            free = request.temperature > 0 and not self._of_sampled(prepared.cell)
            found = self.rules(prepared.cell.target, request, base.prompt_ids, base.output_ids)
            for i, token in enumerate(found):
                behind = exact and request.temperature == 0 and token.behind >= self.thresholds["tie_nats"]
                if outcome.state is State.PASS and (behind or not token.kept):
                    where = f"{i}{phase_of(request, base, i)}"
                    text = f"the baseline of {request.name} breaks its logit rules at token {where}"
                    blame = Blame(request.name, i, got=base.output_ids)
                    return Outcome(self.name, State.FAIL, outcome.numbers, message=text, blame=blame)
                coin = seeds[request.name], len(base.prompt_ids) + i
                off = request.temperature * drawn_off(*coin, token.begin, token.end)
                if outcome.state is State.PASS and exact and not free and off > self.thresholds["tie_nats"]:
                    where = f"{i}{phase_of(request, base, i)}"
                    text = f"the baseline of {request.name} does not draw what its seed and rules do, at token {where}"
                    blame = Blame(request.name, i, got=base.output_ids)
                    return Outcome(self.name, State.FAIL, outcome.numbers, message=text, blame=blame)
            mine = pair.answer
            drawn = self.rules(prepared.cell.target, request, mine.prompt_ids, mine.output_ids) if fast or free else ()
            if (banned := next((at for at, token in enumerate(drawn) if not token.kept), None)) is not None:
                text = f"{request.name} breaks its logit rules at token {banned}{phase_of(request, mine, banned)}"
                return Outcome(self.name, State.FAIL, outcome.numbers, message=text, blame=Blame(request.name, banned))
            checked += len(found)
            nats, index = _apart([token.logprob for token in found], base.logprobs)
            if nats > worst and not free:
                worst, at, of = nats, index, pair
        numbers = {**outcome.numbers, "ruled_tokens": checked, "rule_nats": worst}
        bound = "hybrid_rule_nats" if prepared.cell.model in HYBRIDS else "rule_nats"
        if outcome.state is State.PASS and exact and worst > self.thresholds[bound]:
            text = f"a log-probability of the baseline of {of.request.name} differs from that under its logit rules by "
            text += f"{worst:.2g} nats, at token {at}{phase_of(of.request, of.baseline, at)}"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(of.request.name, at))
        mixed = outcome.state is State.PASS and prepared.subject == REFERENCE
        if mixed and (text := first_mixed_rule(crc32(f"{prepared.cell.id} {prepared.seed}".encode()))):
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
        checked, worst, at, name = 0, 0.0, 0, ""
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
            nats, index = _apart(oracle.scores(pair.request)[:same], pair.baseline.logprobs)
            if nats > worst:
                worst, at, name = nats, index, pair.request.name
        numbers |= {"oracle_tokens": checked, "oracle_nats": worst}
        if exact and worst > self.thresholds["oracle_nats"]:
            text = f"a log-probability of the baseline of {name} differs from the oracle's by {worst:.2g} nats, at "
            return Outcome(self.name, State.FAIL, numbers, message=f"{text}token {at}", blame=Blame(name, at))
        return Outcome(self.name, State.PASS, numbers)

    def _along(self, prepared: PreparedCell, every: list[AnswerPair], outcome: Outcome) -> Outcome:
        """The baseline's tokens that no stored text has, sampled ones and those of later turns and long prompts, are
        those of the network and of the seed's random numbers: the baseline may share a fault of rows with the run."""
        for pair in every:
            request, base = pair.request, pair.baseline
            stored = request.temperature == 0 and oracle_index(request) is not None
            if stored or request.ruled or request.prompt == DRAW_PROMPT:
                continue
            seed = prepared.asked.random_seed if request.seed is None else request.seed
            found = self.precision.tokens(prepared.cell.target, request, seed, base.prompt_ids, base.output_ids)
            off = (at for at, token in enumerate(found) if token.off > self.thresholds["tie_nats"])
            if (at := next(off, None)) is not None:
                where = f"token {at}, position {len(base.prompt_ids) + at}{phase_of(request, base, at)}"
                text = f"the baseline of {request.name} differs from the network along its own text at {where}"
                blame = Blame(request.name, at, got=base.output_ids)
                return Outcome(self.name, State.FAIL, outcome.numbers, message=text, blame=blame)
        return outcome


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


def _apart(expected: Sequence[float], got: Sequence[float]) -> tuple[float, int]:
    """The largest difference in nats, and its index."""
    pairs = enumerate(zip(expected, got, strict=False))
    return max(((abs(one - other), at) for at, (one, other) in pairs), default=(0.0, 0))


def _phase(pair: AnswerPair, index: int, run: Run) -> str:
    return phase_of(pair.request, pair.answer, index, run.resolved.get("chunked_prefill_size"))


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
