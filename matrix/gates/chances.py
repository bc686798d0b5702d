"""Compares how often another engine accepts drafts of sampled requests with what its rule makes of p and q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final

from specmatrix.engine.core.draft.algorithms import algorithm
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Number, Outcome, PackageGate
from specmatrix.matrix.gates.rejection import Places, add_chances, by_position, least_likely, too_often
from specmatrix.matrix.oracles.drawn_rounds import Text, chances_along
from specmatrix.matrix.subjects.protocol import AcceptanceRule, Answer, Capability, Profile, Run
from specmatrix.matrix.workloads.build import draws_apply
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# Rounds compared of a cell, spread evenly: one takes 5 to 10 ms.
ROUNDS: Final = 400


@dataclass
class ChancesGate(PackageGate):
    """Each draft is accepted as often as the rule that the subject's profile states says, given the text before it:
    with the sum of min(p, q) if it is drawn from q, else with the probability of the draft's best token. p and q are
    of the target's own network and of naive drafts, under the request's temperature and filters, so that rounds are
    compared like for like with the reference engine's. The requests are the samples of `distribution`, whose texts end
    by length alone. accepts: by cell, the subject's rule.
    """

    name: str = "rejection"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS, Capability.ROUNDS})
    accepts: Callable[[Cell], AcceptanceRule] = Profile(frozenset()).rule_of

    def applies(self, cell: Cell) -> bool:
        """Cells with sampled draws without logit rules and a drafter of the zoo, under a rule that keeps the target's
        law."""
        drafts = cell.algorithm != "none" and not cell.shares_rounds and cell.own_traits is None
        return drafts and cell.sampling != "rules" and draws_apply(cell) and self.accepts(cell).rule != "lossy"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED with fewer than `min_rounds` rounds."""
        import torch

        cell, places, compared, rule = prepared.cell, Places(), 0, self.accepts(prepared.cell)
        block = algorithm(cell.algorithm).block
        drawn = {one.name: one for one in run.requests if one.name.startswith("d")}
        answers = [
            replace(answer, accept_lengths=_lengths(answer))
            for answer in run.answers
            if answer.name in drawn and not answer.retractions
        ]
        # Of some engines the first round emits the token that of others the prefill does.
        first = int(any(sum(answer.accept_lengths) < len(answer.output_ids) for answer in answers))
        stride = max(1, -(-sum(len(answer.accept_lengths) for answer in answers) // ROUNDS))
        with torch.inference_mode():
            for answer in answers[::stride]:
                request = drawn[answer.name]
                text = Text(cell.target, cell.drafter, request, 0, answer.prompt_ids, answer.output_ids)
                at = first
                nodes = int(run.resolved["num_draft_tokens"]) if not answer.round_widths else 0
                for length, width in zip_longest(answer.accept_lengths, answer.round_widths, fillvalue=nodes):
                    known, left = len(answer.prompt_ids) + at - 1, len(answer.output_ids) - at
                    # Behind the last token that the length allows, an accepted draft does not show.
                    tell = min(length, width - 1, left - 1)
                    if tell > 0:
                        path = answer.output_ids[at : at + length - 1]
                        # A block is drafted whole, however much of it the round verifies.
                        drafted = int(run.resolved["num_draft_tokens"]) if block else width
                        chances = chances_along(text, text.draft((drafted - 1, 1, drafted)), known, path, tell, rule)
                        add_chances(places, chances, length - 1)
                        compared += 1
                    at += length
        p, place = least_likely(places)
        numbers: dict[str, Number] = {"rounds": compared, "left": 0, "p": p, **by_position(places)}
        if compared < self.thresholds["min_rounds"]:
            few = f"{compared} rounds of sampled requests ran; the test needs {self.thresholds['min_rounds']:g}"
            return self.not_measured(few, numbers)
        return self.verdict(numbers, too_often(place, places[place]) if p < self.thresholds["alpha"] else "")


def _lengths(answer: Answer) -> tuple[int, ...]:
    """The lengths of an answer's rounds. Where a subject shows only their number, it tells them if one round emitted
    all tokens behind the prefill's, or each only one; else they stay unknown."""
    behind, rounds = len(answer.output_ids) - 1, answer.meta_info.get("spec_verify_ct")
    told = (behind,) if rounds == 1 else (1,) * behind if rounds == behind else ()
    return answer.accept_lengths or told
