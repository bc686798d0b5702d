"""Compares acceptance lengths with an independent implementation of the same verify rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Final
from zlib import crc32

from specmatrix.engine.core.draft.algorithms import Traits, algorithm
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.conformance.random_trees import first_wrong_draft, first_wrong_suffix
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State
from specmatrix.matrix.gates.pairing import first_difference
from specmatrix.matrix.gates.round_lengths import (
    RoundsPair,
    by_age,
    length_numbers,
    ratio_interval,
    same_range,
    window_ratio,
)
from specmatrix.matrix.gates.same_texts import NUMBER, rounds_of
from specmatrix.matrix.gates.session import (
    from_a_start,
    has_session_baseline,
    mismatching_turns,
    oracle_rounds,
)
from specmatrix.matrix.oracles.grammar import followed, following
from specmatrix.matrix.oracles.naive_rounds import NaiveCheck, Sure, naive_check
from specmatrix.matrix.oracles.shared_replay import ReplayError, SharedReplay, first_replay_mismatch, rounds_read
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import Combination, Oracle, oracle_index, oracle_of, rewriting
from specmatrix.matrix.zoo.registry import eos_ids
from specmatrix.reports.schema import REFERENCE
from specmatrix.reports.wording import count

# In a short context, the first position that the stored oracle does not reach for every prompt.
LATE: Final = 128
# Prompts of more tokens than any question has.
FAR: Final = 300


@dataclass
class AcceptanceGate(PackageGate):
    """Compares greedy requests with the oracle prompt by prompt, and session turns with their session baseline. A
    subject that reports only a histogram of accepted drafts gives no order of rounds, so texts longer than the oracle's
    are left out.

    exact: also compare round by round, which only the reference engine allows. replays: compare the rounds of a shared
    drafter with a replay of the journal.
    """

    name: str = "acceptance"
    needs: frozenset[Capability] = frozenset({Capability.ROUNDS})
    oracle: Callable[[str], Oracle | None] = oracle_of
    exact: bool = True
    replays: bool = True
    naive: Callable[..., NaiveCheck] = naive_check

    def applies(self, cell: Cell) -> bool:
        """Cells with a drafter and requests that no abort ends: greedy ones on the oracle's prompts, session turns,
        and, if exact, sampled and ruled ones. Of other engines too few are left beside an abort for an interval."""
        if cell.shares_rounds:  # vLLM cuts drafts where a grammar refuses them, which the replay does not know
            return self.replays and (self.exact or cell.grammar == "none")
        if cell.abort != "none" and not self.exact:
            return False
        if cell.finish == "length" and Capability.ROUNDS not in self.needs:
            return self.exact
        return _in_oracle(cell) or (self.exact and (has_session_baseline(cell) or _is_drawn(cell)))

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if the oracle lacks the combination or no verify round ran. This engine's drafters also draft
        behind random texts, or with a random network."""
        outcome = self._of_rounds(prepared, run)
        if outcome.state is not State.PASS or prepared.subject != REFERENCE or prepared.cell.own_traits is not None:
            return outcome
        ngram, seed = run.resolved["ngram"], crc32(f"{prepared.cell.id} {prepared.seed}".encode())
        if prepared.cell.shares_rounds:
            text = first_wrong_draft(ngram["match_type"], seed) if ngram else first_wrong_suffix(seed)
        else:
            from specmatrix.matrix.conformance.random_networks import first_wrong_block, first_wrong_tree

            text = (first_wrong_block if algorithm(prepared.cell.algorithm).block else first_wrong_tree)(seed)
        return replace(outcome, state=State.FAIL, message=text) if text else outcome

    def _of_rounds(self, prepared: PreparedCell, run: Run) -> Outcome:
        if prepared.cell.shares_rounds and self.replays:
            return self._replayed(run)
        if Capability.ROUNDS not in self.needs:
            run = replace(run, answers=tuple(replace(one, accept_lengths=_unordered(one)) for one in run.answers))
        alone = not _in_oracle(prepared.cell) and not has_session_baseline(prepared.cell)
        outcome = Outcome(self.name, State.PASS) if alone else self._to_the_stored_end(prepared.cell, run)
        more = outcome.state is State.PASS and self.exact and run.resolved["dtype"] == "float32"
        if more and _repeats(prepared.cell):
            masks = {name: followed(run.resolved, asked) for name, asked in _asked(run).items()}
            drafts = {a.name: [(*one, masks[a.name]) for one in _drafts(prepared.cell, run, a)] for a in run.answers}
            rounds = [[one.name, [*rounds_of(drafts[one.name], one)]] for one in run.answers]
            outcome = replace(outcome, numbers={**outcome.numbers, NUMBER: rounds})
        more = more and prepared.cell.own_traits is None  # the zoo has no drafts for it
        return self._by_naive_drafts(prepared.cell, run, outcome, alone) if more else outcome

    def _to_the_stored_end(self, cell: Cell, run: Run) -> Outcome:
        """Compare with the stored oracle, up to the end of its texts, and with the session baseline."""
        if not (self.exact and has_session_baseline(cell)):
            return self._against_oracle(cell, run)
        outcome = self._against_oracle(cell, run) if _in_oracle(cell) else Outcome(self.name, State.PASS)
        return self._against_session_baseline(outcome, run, cell.own_traits)

    def _against_session_baseline(self, outcome: Outcome, run: Run, own: Traits | None) -> Outcome:
        """The first turns' outcome, unless a later turn's acceptance lengths (for a user's algorithm, `own`, any
        request's) differ from the session baseline's.
        """
        if run.session_baseline is None:
            return self.not_measured("there is no run of the turns with their whole history prefilled at once")
        numbers, text = mismatching_turns(run, run.session_baseline, own)
        if own is not None:
            rounds = [length for answer in run.answers for length in answer.accept_lengths]
            numbers |= {"length": sum(rounds) / max(1, len(rounds)), "rounds": len(rounds)}
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
            return self.not_measured(greedy, accept=rewriting(cell.target))
        steady = [pair for pair in greedy if not pair.moves]
        # Another engine may draft less just before a length limit, so its last round is not compared.
        last = None if self.exact or Capability.ROUNDS not in self.needs else -1
        mine = [pair.whole(last, _longest(run.resolved)) for pair in steady or greedy]
        sides = [
            (from_a_start(one, pair.theirs, pair.first), pair) for one, pair in zip(mine, steady or greedy, strict=True)
        ]
        compared = [(both, pair) for both, pair in sides if all(both)]
        measured = [same_range(*both) for both, _ in compared]
        if not measured:
            return self.not_measured("no greedy request on the oracle's prompts decoded a verify round")
        numbers = length_numbers(measured, greedy)
        numbers["questions"] = [pair.question for _, pair in compared]
        interval = ratio_interval(measured)
        # Another engine's first round may begin one token earlier, with its prefill.
        band = "" if steady and self.exact and cell.numerics == "float32" else "moved_"
        low, high = self.thresholds[f"{band}low"], self.thresholds[f"{band}high"]
        ratio = float(str(numbers["ratio"]))
        ends = interval or (ratio, ratio)
        series = [(before, *window_ratio(window)) for before, window in by_age(measured)]
        numbers["series"] = [round(one, 4) for _, one, _ in series]
        ages = [(before, one) for before, one, (least, most) in series[1:] if most < low or least > high]
        aged = f"; ratio {ages[0][1]:.3f} in requests behind {ages[0][0]:.0f} rounds of others" if ages else ""
        left = [(pair, place) for pair in greedy if (place := pair.mismatch()) is not None]
        first = f"first {left[0][0].request} in verify round {left[0][1] + 1}" if left else ""
        exact = self.exact and run.resolved["dtype"] == "float32"
        if low <= ends[0] and ends[1] <= high and not aged:
            # Losses too small for the ratio, such as one prefix hit with another prompt's draft KV (sglang#10846).
            numbers |= {"left": len(left), "retracted": sum(pair.moves > 0 for pair in greedy)} if exact else {}
            if not exact or len(left) <= self.thresholds["left"]:
                return Outcome(self.name, State.PASS, numbers, interval)
            text = f"{len(left)} of {len(greedy)} requests differ from the oracle, {first}"
        else:
            whole = "" if interval is None else f", 95 % interval {ends[0]:.3f} to {ends[1]:.3f}"
            text = (
                f"acceptance length {numbers['length']:.3f}, the oracle has {numbers['reference']:.3f}: ratio "
                f"{ratio:.3f}{whole}, which must lie within {low:g} to {high:g}{aged}{first and f'; {first}'}"
            )
        blamed = left[0][0] if left else greedy[0]
        return Outcome(self.name, State.FAIL, numbers, interval, text, blamed.blame())

    def _by_naive_drafts(self, cell: Cell, run: Run, outcome: Outcome, alone: bool) -> Outcome:
        """Compare rounds outside the oracle's texts: those of sampled and ruled requests and of long texts, and the
        late ones of greedy requests that fill the context, because a draft may fail at late positions only.
        alone: the cell has no other rounds to judge, so zero compared rounds are NOT MEASURED."""
        rounds, reach, left = 0, 0, dict[str, int]()
        requests = _asked(run)
        for answer, among in _beyond_the_oracle(cell, run):
            asked = requests[answer.name]
            made, caps = _drafts(cell, run, answer), _caps(run, answer)
            (_, drafter, *_), shapes = made[0], [one[2:] for one in made]
            found = self.naive(
                cell.target,
                drafter,
                shapes,
                answer.prompt_ids,
                answer.output_ids,
                answer.accept_lengths,
                among,
                starts=answer.round_starts,
                caps=caps,
                sure=sure_of(run, answer),
                legal=partial(following, asked, eos=eos_ids(cell.target)) if followed(run.resolved, asked) else None,
            )
            rounds, reach = rounds + found.rounds, max(reach, found.reach)
            if found.place is not None:
                left[answer.name] = found.place
        numbers = dict[str, Number](naive_rounds=rounds, naive_reach=reach, by_context=_by_context(run))
        if alone:
            every = [length for answer in run.answers for length in answer.accept_lengths]
            numbers |= {"length": sum(every) / max(1, len(every)), "rounds": rounds, "left": len(left)}
        outcome = replace(outcome, numbers={**outcome.numbers, **numbers})
        if alone and not rounds:
            return replace(outcome, state=State.NOT_MEASURED, message="no request had a verify round to compare")
        if not left:
            return outcome
        name = min(left, key=lambda name: left[name])
        prompt, starts = next((len(one.prompt_ids), one.round_starts) for one in run.answers if one.name == name)
        where = f"verify round {left[name] + 1}, at position {prompt + starts[left[name]] - 1}"
        text = f"{count(len(left), 'request')} with other rounds than naive drafts, first {name} in {where}"
        blame = Blame(name, starts[left[name]])
        return replace(outcome, state=State.FAIL, message=text, blame=blame)

    def _replayed(self, run: Run) -> Outcome:
        """Compare each round of every request, sampled or greedy, with a replay of the shared drafter."""
        if run.journal is None:
            return self.not_measured("the subject provides no journal")
        ragged = run.work is not None and run.resolved.get("speculative_ragged_verify")
        sent = run.work.sent if run.work is not None and ragged else {}
        limits = {number: len(one.prompt) + one.new_tokens for number, one in sent.items()}
        replay = SharedReplay(run.resolved, run.served, limits)
        try:
            replay.walk(run.journal)
        except ReplayError as broken:
            return Outcome(self.name, State.FAIL, message=str(broken))
        due = {answer.name: replay.rounds.get(int(answer.meta_info["id"]), []) for answer in run.answers}
        places = {a.name: place for a in run.answers if (place := first_replay_mismatch(a, due[a.name])) is not None}
        rounds = sum(map(len, due.values()))
        numbers: dict[str, Number] = {
            "length": sum(sum(rounds_read(answer)) for answer in run.answers) / max(1, rounds),
            "rounds": rounds,
            "mixed": replay.mixed,
            "left": len(places),
        }
        if len(places) > self.thresholds["left"]:
            name = min(places, key=lambda name: places[name])
            place = places[name] + 1
            text = f"{len(places)} of {len(due)} requests differ from the replay, first {name} in verify round {place}"
            starts = next(answer.round_starts for answer in run.answers if answer.name == name)
            blame = Blame(name, next(iter(starts[places[name] :]), None))
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=blame)
        return self.verdict(numbers, missing="" if rounds else "no request decoded a verify round")


def _by_context(run: Run) -> list[list[float]]:
    """For contexts of up to 64, 128, 256, .. tokens: that number, the rounds that begin there and their mean tokens."""
    found: dict[int, list[int]] = {}
    for answer in run.answers:
        for start, length in zip(answer.round_starts, answer.accept_lengths, strict=True):
            found.setdefault(max(64, 1 << (len(answer.prompt_ids) + start - 1).bit_length()), []).append(length)
    return [[end, len(each), round(sum(each) / len(each), 3)] for end, each in sorted(found.items())]


def _in_oracle(cell: Cell) -> bool:
    """Whether the oracle has acceptance lengths for the cell's greedy requests."""
    drafts = cell.algorithm != "none" and cell.own_traits is None and not _elsewhere(cell)
    return drafts and _unaborted(cell) and cell.sampling in ("greedy", "mixed")


def _elsewhere(cell: Cell) -> bool:
    """Whether rounds begin where the oracle's do not: they verify parts of drafts, or mixed steps are between them."""
    return cell.verify in ("confident", "budget") or cell.mixed_chunk == "on"


def _unaborted(cell: Cell) -> bool:
    """Whether some request is not aborted."""
    return cell.abort == "none" or cell.batch != "single"


def _beyond_the_oracle(cell: Cell, run: Run) -> Iterator[tuple[Answer, Container[int]]]:
    """Answers with rounds outside the oracle's texts, and the indices of those: all of requests whose rounds are not
    the oracle's and of long texts, the late ones of greedy requests that fill the context.
    """
    whole = [answer for answer in run.answers if answer.finish != "abort"]
    answers = {answer.name: answer for answer in whole if answer.accept_lengths}
    kept = [(request, answers[request.name]) for request in run.requests if request.name in answers]
    if cell.acceptance != "match":  # `rejection` judges these
        kept = [(request, answer) for request, answer in kept if not request.temperature]
    far = [answer for _, answer in kept if len(answer.prompt_ids) > FAR]
    every = _elsewhere(cell)
    drawn = [one for request, one in kept if (every or request.temperature > 0 or request.ruled) and one not in far]
    for answer in drawn + far:
        yield answer, range(len(answer.accept_lengths))
    for answer in [one for _, one in kept if cell.context == "short" and one not in drawn]:
        starts = enumerate(answer.round_starts)
        yield answer, {at for at, start in starts if len(answer.prompt_ids) + start > LATE}


def _repeats(cell: Cell) -> bool:
    """Whether what a round accepts follows from the request's text alone; a user's drafter may not see what the cache
    holds of it."""
    own = cell.own_traits is None and algorithm(cell.algorithm).rounds == "own"
    return own and (cell.acceptance, cell.verify) == ("match", "whole")


def _is_drawn(cell: Cell) -> bool:
    """Whether acceptance does not follow the oracle's text and rounds: requests are sampled or have logit rules, or
    begin their rounds elsewhere."""
    drafts = cell.algorithm != "none" and cell.own_traits is None and _unaborted(cell)
    if _elsewhere(cell) and cell.sampling in ("greedy", "mixed"):
        return drafts
    ruled = cell.acceptance == "match" or cell.sampling == "rules"  # some of these are greedy under any rule
    return drafts and ruled and cell.sampling not in ("greedy", "mixed")


def _asked(run: Run) -> dict[str, RequestSpec]:
    return {request.name: request for asked in run.requests for request in asked.completions()}


def _drafts(cell: Cell, run: Run, answer: Answer) -> list[tuple[str, str, int, int, int]]:
    """Target, drafter, steps, topk and draft tokens of each round of an answer."""
    if not cell.adapts:
        return [(cell.target, *combination(cell, run.resolved))] * len(answer.accept_lengths)
    drafter = "nextn.single" if cell.algorithm == "nextn" else cell.drafter
    return [(cell.target, drafter, width - 1, 1, width) for width in answer.round_widths]


def _fixed(cell: Cell, run: Run, oracle: Oracle | None) -> list[RoundsPair] | str:
    """Greedy requests paired with the oracle's rounds for the running combination, or a sentence on what is missing."""
    key = combination(cell, run.resolved)
    rounds = None if oracle is None else oracle.rounds.get(key)
    if oracle is None or rounds is None:
        return f"the oracle has no rounds for {key[0]} with (steps, topk, draft tokens) = {key[1:]}"
    return [
        RoundsPair(
            lengths,
            rounds[index],
            answer.moves,
            answer.round_starts,
            request=answer.name,
            question=index,
            caps=_caps(run, answer),
            first=answer.drafts_first,
        )
        for answer, index, lengths in _greedy(cell, run, oracle)
        if rounds[index]
    ]


def _longest(resolved: Mapping[str, Any]) -> int:
    """The most tokens of a round."""
    return int(resolved["num_draft_tokens"] if int(resolved["topk"]) <= 1 else resolved["num_steps"] + 1)


def _caps(run: Run, answer: Answer) -> tuple[int, ...]:
    """The most tokens that each round of an answer may emit; () if every draft is verified whole."""
    if not run.resolved.get("speculative_ragged_verify"):
        return ()
    left = next(one.max_new_tokens for one in run.requests if one.name == answer.name)
    pairs, most = zip(answer.round_widths, answer.round_starts, strict=False), _longest(run.resolved)
    return tuple(min(width, most, left - start) for width, start in pairs)


def sure_of(run: Run, answer: Answer) -> Sure | None:
    """What an answer's rounds verify of a chain by its confidence, and show of it; None if that does not matter."""
    threshold = float(run.resolved.get("speculative_confidence_threshold") or 0)
    events = () if run.work is None else run.work.budgets  # a launch shows no confidences
    rows = (row for event in events for row in zip(event.rows, event.confidences, event.rooms, strict=False))
    shown = [line for rid, line, room in rows if room and rid == answer.meta_info["id"]]
    if not threshold and not shown:
        return None
    left = next(one.max_new_tokens for one in run.requests if one.name == answer.name)
    rooms = [left - start for start in answer.round_starts]
    temperatures = json.loads(run.resolved.get("speculative_dspark_confidence_sts_path") or "{}").get("temperatures")
    return Sure(threshold, answer.round_widths, rooms, _longest(run.resolved), temperatures or (), shown)


def _adapted(cell: Cell, run: Run, oracle: Oracle | None) -> list[RoundsPair] | str:
    """Greedy requests paired with what the oracle's chain accepts in rounds of the same widths."""
    drafter = "nextn.single" if cell.algorithm == "nextn" else cell.drafter
    if oracle is None or drafter not in oracle.reach:
        return f"the oracle has no correct-draft counts for {drafter}"
    pairs = []
    for answer, index, mine in _greedy(cell, run, oracle):
        reach, widths = oracle.reach[drafter][index], answer.round_widths
        theirs = oracle_rounds(reach, widths, sum(mine))
        starts = answer.round_starts
        pairs.append(RoundsPair(mine, theirs, answer.moves, starts, widths, reach, answer.name, index))
    return pairs


def _greedy(cell: Cell, run: Run, oracle: Oracle) -> Iterator[tuple[Answer, int, Sequence[int]]]:
    """(answer, index of its oracle prompt, tokens of its rounds) for greedy requests on the oracle's prompts with at
    least one round; in bf16 only rounds before a tie makes the answer diverge from the oracle's text.
    """
    answers = {answer.name: answer for answer in run.answers}
    for request in run.requests:
        index, answer = oracle_index(request), answers.get(request.name)
        if request.temperature > 0 or index is None or answer is None or answer.finish == "abort":
            continue
        lengths = answer.accept_lengths
        if cell.numerics != "float32":
            left = first_difference(answer.output_ids, oracle.continuations[index], prefix=True)
            ends = accumulate(lengths, initial=1)
            lengths = tuple(n for n, end in zip(lengths, list(ends)[1:], strict=True) if left is None or end <= left)
        if lengths:
            yield answer, index, lengths


def _unordered(answer: Answer) -> tuple[int, ...]:
    """Tokens of each round, bonus included, from an answer's histogram, shortest first."""
    histogram = answer.meta_info.get("spec_correct_drafts_histogram") or ()
    return tuple(drafts + 1 for drafts, rounds in enumerate(histogram) for _ in range(rounds))


def combination(cell: Cell, resolved: Mapping[str, Any]) -> Combination:
    """The oracle's key for the running configuration."""
    return cell.drafter, int(resolved["num_steps"]), int(resolved["topk"]), int(resolved["num_draft_tokens"])
