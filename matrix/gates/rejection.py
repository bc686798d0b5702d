"""Recomputes rounds whose drafts were drawn from their own distribution, and how often each draft was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.acceptance import sure_of
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State
from specmatrix.matrix.oracles.drawn_rounds import DrawnRound, Text, drawn_round
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# Rounds recomputed of a cell, spread evenly: one takes 10 to 30 ms.
ROUNDS: Final = 80
OTHER: Final = 2.0  # more than any difference of probabilities
# By draft of a round: the chance that it is accepted, and whether it was, in each round that tells.
Places: TypeAlias = list[list[tuple[float, bool]]]


class Replayed(NamedTuple):
    """One round as it ran and as recomputed. at: index of its first output token. emitted: what the text's end left of
    it; accepted: also those behind that end. wide: it verified other drafts than their confidence allows. gap: the
    largest difference of the engine's q at a draft; None if it shows none."""

    answer: Answer
    at: int
    accepted: int
    emitted: tuple[int, ...]
    due: DrawnRound
    wide: bool = False
    gap: float | None = None

    @property
    def differs(self) -> bool:
        due = self.due.tokens
        return self.wide or self.emitted != due[: len(self.emitted)] or self.accepted + 1 != len(due)


@dataclass
class RejectionGate(PackageGate):
    """Each round of a sampled request is what p, q and the random numbers of its seed give: its drafts, those accepted
    and the token behind them. Over all rounds each draft was accepted as often as p and q say: under the token rule
    with the sum of min(p, q) if those before it were, under the block rule with h."""

    name: str = "rejection"
    needs: frozenset[Capability] = frozenset({Capability.ROUNDS, Capability.RESOLUTION})

    def applies(self, cell: Cell) -> bool:
        """Cells whose drafts are drawn; all of them have sampled requests."""
        return cell.acceptance != "match" and cell.algorithm != "none"

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED with fewer than `min_rounds` rounds."""
        rounds = list(_replayed(prepared, run, self.thresholds["edge"]))
        off = [one for one in rounds if one.differs]
        left = [one for one in off if one.due.margin >= self.thresholds["edge"]]
        places = _by_position(rounds)
        p, place = least_likely(places)
        shown = [(one.gap, one) for one in rounds if one.gap is not None]
        q, off_most = max(shown, key=lambda pair: pair[0], default=(0.0, None))
        numbers: dict[str, Number] = {
            "rounds": len(rounds),
            "left": len(left),
            "ties": len(off) - len(left),
            "p": p,
            "q": q,
            "q_rounds": len(shown),
            **by_position(places),
        }
        if off_most is not None and q > self.thresholds["q"]:
            text = f"q of a draft differs by up to {q:.2g} from the distribution that drew it"
            if q == OTHER:
                where, due = f"{off_most.answer.name} at token {off_most.at}", [one for one, _ in off_most.due.drawn]
                text = f"the drafts of {where} are not {due}, which q and the seed give"
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(off_most.answer.name, off_most.at))
        if left:
            first = min(left, key=lambda one: one.at)
            got, due = ([*tokens] for tokens in (first.emitted, first.due.tokens))
            text = f"{len(left)} of {len(rounds)} rounds differ from what p, q and the seed give, first"
            text = f"{text} {first.answer.name} at token {first.at}: {got} instead of {due}"
            text = f"{text}, and other drafts verified than its confidence allows" if first.wide else text
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(first.answer.name, first.at))
        if len(rounds) < self.thresholds["min_rounds"] or (run.resolved["device"] == "cpu" and not shown):
            least = f"{self.thresholds['min_rounds']:g}, and q of some"
            return self.not_measured(f"{len(rounds)} rounds of sampled requests ran; the test needs {least}", numbers)
        return self.verdict(numbers, too_often(place, places[place]) if p < self.thresholds["alpha"] else "")


def _replayed(prepared: PreparedCell, run: Run, edge: float) -> Iterator[Replayed]:
    """Every so many rounds of the sampled requests, each recomputed."""
    cell, requests = prepared.cell, {request.name: request for request in run.requests}
    drawn = [answer for answer in run.answers if answer.accept_lengths and requests[answer.name].temperature > 0]
    stride, passed = max(1, -(-sum(len(answer.accept_lengths) for answer in drawn) // ROUNDS)), 0
    for answer in drawn:
        request = requests[answer.name]
        seed = prepared.asked.random_seed if request.seed is None else request.seed
        algorithm = "nextn.single" if cell.adapts and cell.algorithm == "nextn" else cell.drafter
        text = Text(cell.target, algorithm, request, seed, answer.prompt_ids, answer.output_ids)
        among = range(-passed % stride, len(answer.accept_lengths), stride)
        yield from _of_answer(text, answer, among, prepared, edge, run)
        passed += len(answer.accept_lengths)


def _of_answer(
    text: Text, answer: Answer, among: range, prepared: PreparedCell, edge: float, run: Run
) -> Iterator[Replayed]:
    """The rounds of one answer."""
    import torch

    sure = sure_of(run, answer)
    drafted = 0 if prepared.cell.adapts else int(run.resolved["num_draft_tokens"])  # 0: as many as are verified
    with torch.inference_mode():
        for index in among:
            length, width = answer.accept_lengths[index], answer.round_widths[index]
            nodes = drafted or width
            draft = text.draft((nodes - 1, 1, nodes))
            wide = 0 if sure is None else min(sure.rooms[index], sure.most) - 1
            at = answer.round_starts[index]
            emitted = answer.output_ids[at : at + length]
            known = len(answer.prompt_ids) + at - 1
            block, plain = prepared.cell.acceptance == "block", not drafted and width == 1
            due = drawn_round(text, draft, known, width - 1, block, wide, plain)
            other = sure is not None and sure.differs(index, due.shares)
            gap = None if due.margin < edge else _gap(run, (text.seed, known), due.drawn)
            if emitted:
                yield Replayed(answer, at, length - 1, emitted, due, other, gap)


def _gap(run: Run, key: tuple[int, int], due: Sequence[tuple[int, float]]) -> float | None:
    """The largest difference of the engine's q at a round's drafts; of the nearest, if several rounds have its key, and
    OTHER if all of these drew other drafts."""
    rounds = () if run.work is None or not due else run.work.drawn.get(key, ())
    pairs = [list(zip(one, due, strict=False)) for one in rounds]
    same = [one for one in pairs if all(mine[0] == theirs[0] for mine, theirs in one)]
    gaps = [max(abs(mine[1] - theirs[1]) for mine, theirs in one) for one in same]
    return min(gaps, default=OTHER if pairs else None)


def _by_position(rounds: Sequence[Replayed]) -> Places:
    places: Places = []
    for one in rounds:
        add_chances(places, one.due.chances, one.accepted)
    return places


def by_position(places: Places) -> dict[str, Number]:
    """The shares of drafts that were accepted, and those that are due."""
    return {
        "per_position": [round(sum(seen for _, seen in one) / len(one), 4) for one in places],
        "due_per_position": [round(sum(chance for chance, _ in one) / len(one), 4) for one in places],
    }


def add_chances(places: Places, chances: Sequence[float], accepted: int) -> None:
    """Add a round whose first drafts have these chances, and of which so many were accepted."""
    places += [[] for _ in chances[len(places) :]]
    for place, chance in enumerate(chances):
        places[place].append((chance, accepted > place))


def least_likely(places: Places) -> tuple[float, int]:
    """The least probability of as many acceptances at a place, times the number of places, and the place."""
    return min([(1.0, 0), *((len(places) * _unlikely(one), number) for number, one in enumerate(places))])


def too_often(place: int, rounds: Sequence[tuple[float, bool]]) -> str:
    """A sentence on acceptances that differ from the chances."""
    seen, expected = (sum(pair[side] for pair in rounds) for side in (1, 0))
    return f"draft {place + 1} was accepted in {seen} of {len(rounds)} rounds; p and q give {expected:.1f}"


def _unlikely(place: Sequence[tuple[float, bool]]) -> float:
    """Twice the smaller probability of as few or as many acceptances, each with its own chance (Poisson's binomial)."""
    import numpy as np

    law, seen = np.ones(1), sum(accepted for _, accepted in place)
    for chance, _ in place:
        law = np.append(law, 0.0) * (1 - chance) + np.append(0.0, law) * chance
    return min(1.0, 2 * float(min(law[: seen + 1].sum(), law[seen:].sum())))
