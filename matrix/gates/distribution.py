"""Checks that sampled tokens follow the target's distribution and that reported log-probabilities are the target's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate, State
from specmatrix.matrix.gates.pairing import AnswerPair, pairs, unpaired
from specmatrix.matrix.oracles.joint_law import joint_law
from specmatrix.matrix.subjects.protocol import AcceptanceRule, Capability, Profile, Run
from specmatrix.matrix.workloads.build import DRAWN_TOKENS, draws_apply
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.stats import LEAST_EXPECTED, ks_uniform, law_fit, least_variation, randomised_pit

# Imported late: commands that only start workers import the gates without numpy.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float64]

ALONE: Final = "nearly every output is the same by the target's distribution, so that a test of it says nothing"
Context = tuple[tuple[int, float], ...]  # (token id, log-probability) of every token, most probable first
Draw = tuple[RequestSpec, Context, int]


@dataclass
class DistributionGate(PackageGate):
    """The randomised probability integral transform of all draws must be uniform.

    The distribution is rebuilt from the run's log-probabilities (softmax of logits / temperature) with top-k and top-p
    reapplied; log-probabilities are compared with the baseline's after equal prefixes. Outputs of three tokens must
    follow their joint distribution as the target's own network has it; by that alone a subject without
    log-probabilities is judged.

    accepts: by cell, the subject's rule of acceptance. Where it states a loss, the total variation between outputs and
    their joint distribution may not be above it, but for a probability `joint_alpha`. The tests of single tokens then
    allow what follows from that loss: a share of it of outputs with a token outside its set, and twice it between
    distribution functions, as a token and those before it are each off by the loss at most. A loss that is not stated
    fails as any defect does.
    """

    name: str = "distribution"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS, Capability.LOGPROBS})
    accepts: Callable[[Cell], AcceptanceRule] = Profile(frozenset()).rule_of

    def applies(self, cell: Cell) -> bool:
        """Cells whose workload contains sampled requests."""
        return draws_apply(cell)

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED with fewer than `min_draws` draws or without log-probabilities of the whole vocabulary."""
        if missing := unpaired(self.name, run, baseline):
            return missing
        drawn = [
            pair for pair in pairs(run, baseline) if pair.request.name.startswith("d") and pair.request.temperature > 0
        ]
        loss = self.accepts(prepared.cell).loss
        if Capability.LOGPROBS not in self.needs:
            return self._against_law(prepared.cell.target, drawn, Outcome(self.name, State.NOT_MEASURED), loss)
        vocab_size = tokenizer().get_vocab_size()
        if any(
            min(len(p.answer.top_logprobs), len(p.answer.logprobs)) < len(p.answer.output_ids) for p in drawn
        ) or any(len(context) < vocab_size for p in drawn for context in p.answer.top_logprobs):
            text = f"the subject does not report log-probabilities for all {vocab_size} tokens of the vocabulary"
            return self.not_measured(text)
        draws = [
            (pair.request, context, token)
            for pair in drawn
            for context, token in zip(pair.answer.top_logprobs, pair.answer.output_ids, strict=False)
        ]
        if len(draws) < self.thresholds["min_draws"]:
            text = f"{len(draws)} tokens were sampled; the test needs at least {self.thresholds['min_draws']:g}"
            return self.not_measured(text, {"draws": len(draws)})
        fast = prepared.cell.numerics == "fast"  # whose log-probabilities are judged by the gate `precision`
        outcome = self._judge_draws(draws, _largest_gap(drawn, paired=not fast), loss)
        return self._against_law(prepared.cell.target, drawn, outcome, loss)

    def _against_law(self, target: str, drawn: Sequence[AnswerPair], outcome: Outcome, loss: float) -> Outcome:
        """Compare whole outputs of equal requests with their joint distribution, in which a token may depend on those
        before it in a wrong way; not those with logit rules but min_p, which the oracle does not have."""
        asked = [replace(pair.request, name="", seed=None) for pair in drawn]
        alike = Counter(one for one in asked if {*one.rules} <= {"min_p"})
        request, number = alike.most_common(1)[0] if alike else (None, 0)
        if request is None or number < self.thresholds["min_draws"]:
            text = f"{number} equal requests were sampled; the test needs at least {self.thresholds['min_draws']:g}"
            return outcome if outcome.state is not State.NOT_MEASURED else replace(outcome, message=text)
        law = joint_law(target, request)
        outputs = [pair.answer.output_ids for pair, like in zip(drawn, asked, strict=True) if like == request]
        one, other = (_counts(law, outputs[start::2]) for start in (0, 1))
        shares = [*law.values(), max(0.0, 1 - sum(law.values()))]
        if (1 - shares[0]) * number < LEAST_EXPECTED:
            return outcome if outcome.state is not State.NOT_MEASURED else replace(outcome, message=ALONE)
        fit = law_fit([sum(pair) for pair in zip(one, other, strict=True)], shares, self.thresholds["joint_alpha"])
        least = least_variation(one, other, shares, self.thresholds["joint_alpha"])
        more = {"joint_p": fit.p, "bins": fit.bins, "variation": fit.variation, "detectable": fit.detectable}
        if loss:
            more |= {"loss": loss, "at_least": least.at_least, "detectable": loss + least.margin}
        outcome = replace(outcome, numbers={"draws": number, **outcome.numbers, **more})
        if outcome.state is State.FAIL:
            return outcome
        fault = ""
        if not loss and fit.p < self.thresholds["joint_alpha"]:
            fault = f"outputs of {DRAWN_TOKENS} tokens do not follow the target's distribution "
            fault += f"(chi-square over {fit.bins} bins, p = {fit.p:.2g})"
        elif loss and least.at_least > loss:
            fault = f"outputs of {DRAWN_TOKENS} tokens are a total variation of {least.at_least:.3f} or more from the "
            fault += f"target's distribution; the subject's profile states {loss:g} at most"
        return replace(outcome, state=State.FAIL if fault else State.PASS, message=fault)

    def _judge_draws(self, draws: Sequence[Draw], gap: float, loss: float) -> Outcome:
        import numpy as np
        from scipy.special import bdtrc

        below, at, outside = [], [], Counter[str]()
        for request, context, token in draws:
            before, share = place(request, context, token, self.thresholds["edge"])
            outside[request.name] += share == 0.0
            below.append(before)
            at.append(share)
        uniform = np.random.default_rng(len(draws)).random(len(draws))
        groups = len(outside) if loss else None  # with a loss, tokens of one output depend on each other
        fit = ks_uniform(randomised_pit(below, at, list(uniform)), 2 * loss, groups)
        serial = ks_uniform(serial_steps(draws, self.thresholds["edge"]), 2 * loss, groups)
        strange = sum(count > 0 for count in outside.values())
        # As many outputs with such a token, or more, are this likely where a share `loss` of all may have one.
        beyond = strange > 0 and float(bdtrc(strange - 1, len(outside), loss)) < self.thresholds["joint_alpha"]
        numbers: dict[str, Number] = {
            "draws": len(draws),
            "outside": outside.total() if beyond else 0,
            "statistic": fit.statistic,
            "p": fit.p,
            "serial_p": serial.p,
            "logprob_gap": gap,
        }
        if strange and not beyond:
            numbers["outside_by_loss"] = outside.total()
        fault = ""
        if beyond:
            fault = f"{outside.total()} of {len(draws)} sampled tokens are outside their top-k and top-p set"
        elif fit.p < self.thresholds["alpha"]:
            fault = f"sampled tokens do not follow the target's distribution (Kolmogorov-Smirnov p = {fit.p:.2g})"
        elif serial.p < self.thresholds["alpha"]:
            fault = f"a sampled token depends on the random draw before it (Kolmogorov-Smirnov p = {serial.p:.2g})"
        elif gap > self.thresholds["logprob_nats"]:
            fault = f"a log-probability differs from plain decoding's or from its own top list by {gap:.3g} nats"
        return self.verdict(numbers, fault)


def place(request: RequestSpec, context: Context, token: int, edge: float, by_id: bool = False) -> tuple[float, float]:
    """The mass of all tokens before one, by probability or by id, and its own, renormalised after top-k, then top-p.

    (1, 0) for a token outside that set. A token within `edge` of the top-p boundary counts as inside.
    """
    import numpy as np

    index = next((rank for rank, (other, _) in enumerate(context) if other == token), len(context))
    kept = _kept(request, context, index, edge)
    if index >= len(kept):
        return 1.0, 0.0
    before = kept[np.array([other for other, _ in context[: len(kept)]]) < token] if by_id else kept[:index]
    return float(before.sum()), float(kept[index])


def _counts(law: Mapping[tuple[int, ...], float], outputs: Sequence[tuple[int, ...]]) -> list[int]:
    """How often each output of a law was seen, and how often all others."""
    seen = Counter(outputs)
    return [*(seen.pop(output, 0) for output in law), seen.total()]


def serial_steps(draws: Sequence[Draw], edge: float) -> Floats:
    """Difference modulo 1 between the quantiles of consecutive draws of a request, with tokens in the order of ids.

    Uniform for independent draws; near 0 if a random number is reused. Ordered by probability, the same random number
    would select unrelated tokens, and the reuse would not show.
    """
    import numpy as np

    below, at = zip(*(place(*draw, edge, by_id=True) for draw in draws), strict=True)
    noise = np.random.default_rng(len(draws) + 1).random(len(draws))
    places = randomised_pit(below, at, list(noise))
    follows = np.array([one[0].name == other[0].name for one, other in pairwise(draws)])
    steps: Floats = np.diff(places)[follows] % 1.0
    return steps


def _kept(request: RequestSpec, context: Context, index: int, edge: float) -> Floats:
    """Descending probabilities kept by top-k, then top-p; `index` is kept if within `edge` of the cutoff."""
    import numpy as np

    probabilities = np.exp([value for _, value in context])
    if request.top_k > 0:
        probabilities = probabilities[: request.top_k]
    probabilities = probabilities / probabilities.sum()
    before = np.concatenate(([0.0], np.cumsum(probabilities)[:-1]))
    inside = before < request.top_p
    if index < len(before) and before[index] < request.top_p + edge:
        inside[index] = True
    inside &= probabilities >= (request.min_p - edge) * probabilities[0]
    kept: Floats = probabilities[inside] / probabilities[inside].sum()
    return kept


def _largest_gap(drawn: Sequence[AnswerPair], paired: bool) -> float:
    """Largest difference in nats between a reported log-probability and the distribution's, and, if paired, the
    baseline's after equal prefixes."""
    largest = 0.0
    for pair in drawn:
        for index, token in enumerate(pair.answer.output_ids):
            if pair.answer.output_ids[:index] != pair.baseline.output_ids[:index]:
                break
            mine = pair.answer.top_logprobs[index]
            largest = max(largest, abs(dict(mine)[token] - pair.answer.logprobs[index]))
            if paired and index < len(pair.baseline.top_logprobs):
                largest = max(largest, _gap(mine, pair.baseline.top_logprobs[index]))
    return largest


def _gap(mine: Context, theirs: Context) -> float:
    import numpy as np

    size = 1 + max(token for token, _ in (*mine, *theirs))
    vectors = np.zeros((2, size))
    for row, context in zip(vectors, (mine, theirs), strict=True):
        row[[token for token, _ in context]] = [value for _, value in context]
    # Below e^-16 rounding errors grow, and the tokens are irrelevant.
    matters = vectors[1] > -16.0
    return float(np.abs(vectors[0] - vectors[1])[matters].max(initial=0.0))
