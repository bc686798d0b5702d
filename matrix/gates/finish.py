"""Checks each request's end, finish reason and text against its tokens, and its metrics for consistency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import isclose, nan
from typing import Any, Final, get_args
from zlib import crc32

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Blame, Number, Outcome, PackageGate, State
from specmatrix.matrix.gates.pairing import phase_of
from specmatrix.matrix.subjects.protocol import Answer, Capability, Run
from specmatrix.matrix.workloads.finish import StopRule, banned_early, ending, text_of
from specmatrix.matrix.workloads.prepared_cell import PreparedCell
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import eos_ids
from specmatrix.reports.schema import REFERENCE

# Of an engine whose rules on how much text to hold back are known.
OURS: Final = frozenset({Capability.ROUNDS, Capability.RESOLUTION})


@dataclass
class FinishGate(PackageGate):
    """Recomputes each ending from the token ids, and checks the identities between the reported metrics."""

    name: str = "finish"
    needs: frozenset[Capability] = frozenset({Capability.TOKEN_IDS})

    def judge(self, prepared: PreparedCell, run: Run, baseline: Run) -> Outcome:
        """NOT MEASURED if a request has no answer."""
        answers = {answer.name: answer for answer in run.answers}
        missing = [request.name for request in run.requests if request.name not in answers]
        if missing or not run.requests:
            text = f"the run has no answer for request {missing[0]}" if missing else "the cell has no requests"
            return Outcome(self.name, State.NOT_MEASURED, message=text)
        cell, faults = prepared.cell, []
        for request in run.requests:
            answer = answers[request.name]
            fault = _end(request, answer, cell.target, run.capabilities) or _read(request, answer, run)
            fault = fault or _overcounted(answer, run)
            if not fault and Capability.LOGPROBS in run.capabilities:
                fault = _logprobs(request, answer)
            if not fault and run.capabilities >= {Capability.HISTOGRAM, Capability.ROUNDS}:
                fault = _metrics(cell, run.resolved, answer)
                if not fault and run.resolved.get("speculative_ragged_verify"):
                    fault = _shortened(request, answer, run.resolved)
            if fault:
                faults.append((request.name, f"{request.name} {fault}"))
        reasons = Counter(answer.finish for answer in run.answers)
        numbers: dict[str, Number] = {"requests": len(run.requests), "faults": len(faults), **reasons}
        if faults:
            name, text = faults[0]
            text += f"; {len(faults)} of {len(run.requests)} requests have a fault" if len(faults) > 1 else ""
            return Outcome(self.name, State.FAIL, numbers, message=text, blame=Blame(name))
        if run.capabilities >= {Capability.COUNTERS, Capability.ROUNDS} and (text := _overshoot(run)):
            return Outcome(self.name, State.FAIL, numbers, message=text)
        if run.capabilities >= OURS and _never_held(run, answers):
            text = "no streamed text ended in the beginning of a stop string, which a reader must not see"
            return Outcome(self.name, State.NOT_MEASURED, numbers, message=text)
        if prepared.subject == REFERENCE:
            from specmatrix.matrix.conformance.random_targets import first_wrong_text

            if text := first_wrong_text(crc32(f"{cell.id} {prepared.seed}".encode())):
                return Outcome(self.name, State.FAIL, numbers, message=text)
        return Outcome(self.name, State.PASS, numbers)


def _overshoot(run: Run) -> str:
    """A sentence if the counter of tokens accepted past a request's end differs from the number that the rounds emitted
    past it (prefill steps may add some); else ""."""
    ended = [answer for answer in run.answers if answer.finish != "abort"]
    over = {answer.name: 1 + sum(answer.accept_lengths) - len(answer.output_ids) for answer in ended}
    least = sum(over.values())
    most = least + sum(answer.moves for answer in ended)
    counted = run.evidence.get("finish.overshoot", 0)
    if least <= counted <= most:
        return ""
    of = ", ".join(f"{name} {number}" for name, number in over.items() if number)
    emitted = f"{_between(least, most)} ({of})" if of else _between(least, most)
    return f"the engine counts {counted} tokens behind the ends of requests; their rounds emitted {emitted}"


def _end(request: RequestSpec, answer: Answer, target: str, claims: frozenset[Capability]) -> str:
    """A fault in the end of a request, or "". Engines have their own rules on which of several stop strings counts."""
    ids = answer.output_ids
    banned = banned_early(request, eos_ids(target))
    if (early := next((at for at, one in enumerate(ids[: request.min_new_tokens]) if one in banned), None)) is not None:
        where = phase_of(request, answer, early)
        return f"has stop token {ids[early]} among its first {request.min_new_tokens} tokens{where}"
    due = ending(request, ids, target)
    if Capability.RESOLUTION not in claims:
        others = (ending(request, ids, target, rule) for rule in get_args(StopRule))
        due = next((one for one in others if one.matched == answer.matched), due)
    if due.tokens < len(ids):
        where = phase_of(request, answer, due.tokens - 1)
        return f"has {len(ids)} tokens, but must finish by {_named(due.reason, due.matched)} after {due.tokens}{where}"
    if answer.finish == "abort":
        sent = 0 if request.replaced else request.abort_after
        if sent is None or len(ids) < sent:
            when = "no abort was sent" if sent is None else f"the abort was sent after {sent}"
            return f"was aborted after {len(ids)} tokens; {when}"
        if due.reason != "open":
            return f"was aborted, but its tokens already finish by {_named(due.reason, due.matched)}"
    elif request.replaced:
        return f"finished by {_named(answer.finish, answer.matched)}, but was replaced while it ran"
    elif request.stuck:  # behind which tokens, the gate `grammar` knows
        if answer.finish != "error":
            return f"finished by {_named(answer.finish, answer.matched)}, but its bans leave its grammar no token"
    elif (answer.finish, answer.matched) != (due.reason, due.matched):
        found, expected = _named(answer.finish, answer.matched), _named(due.reason, due.matched)
        return f"finished by {found}; its tokens imply {expected}"
    if answer.text != due.text:
        return f"has a text that ends in {answer.text[-40:]!r}; its tokens decode to {due.text[-40:]!r}"
    return ""


def _read(request: RequestSpec, answer: Answer, run: Run) -> str:
    """A fault in the texts that were streamed while a request ran, or ""."""
    taken_back = next((piece for piece in answer.pieces if not answer.text.startswith(piece)), None)
    if taken_back is not None:
        return f"showed {taken_back[-40:]!r} while it ran, which is not in its text"
    if not request.stream:
        return ""
    if len(answer.pieces) < 2:
        return "was streamed, but its text was never read before its end"
    # Other engines have their own rules on how much text to hold back for a stop string.
    if not run.capabilities >= OURS or answer.moves:
        return ""
    due = _readings(request, answer)
    if (late := next((text for text in due if text and text not in answer.pieces), None)) is not None:
        return f"did not show {late[-40:]!r} while it ran, which no stop can take away"
    early = next((piece for piece in answer.pieces if piece not in due), None)
    return "" if early is None else f"showed {early[-40:]!r} while it ran, which a stop could still take away"


def _readings(request: RequestSpec, answer: Answer) -> list[str]:
    """The distinct texts visible to a streaming reader of a request without retractions: after the first token and
    after each round the text without a possible beginning of a stop string, and finally the whole text."""
    ids, seen = answer.output_ids, [""]
    for count in accumulate(answer.accept_lengths, initial=1):
        if count < len(ids):
            text = text_of(ids[:count])
            seen.append(text[: len(text) - _begun(request, text)])
    return list(dict.fromkeys([*seen, answer.text]))


def _begun(request: RequestSpec, text: str) -> int:
    """Letters at a text's end that may become a stop string."""
    sizes = (size for stop in request.stop for size in range(1, len(stop)) if text.endswith(stop[:size]))
    return max(sizes, default=0)


def _never_held(run: Run, answers: Mapping[str, Answer]) -> bool:
    """Whether texts with stop strings were streamed, and none had to be held back at the end of a round."""
    read = [(one, answers[one.name]) for one in run.requests if one.stream and one.stop]
    ends = ((one, a.output_ids[:at]) for one, a in read for at in accumulate(a.accept_lengths, initial=1))
    return bool(read) and not any(_begun(one, text_of(ids)) for one, ids in ends)


def _overcounted(answer: Answer, run: Run) -> str:
    """A fault in the number of cached prompt tokens, or "": no other text that the engine served begins with as many,
    or they are all. After a retraction they may be the request's own."""
    cached, prompt = answer.cached_tokens, answer.prompt_ids
    if not cached or answer.moves or not run.served:
        return ""
    same = [at for at, one in enumerate(run.served) if one.tokens[: len(prompt)] == prompt and one.name == answer.name]
    texts = (one.tokens for at, one in enumerate(run.served) if at not in same[-1:])
    if cached < len(prompt) and any(text[:cached] == prompt[:cached] for text in texts):
        return ""
    return f"reports {cached} of {len(prompt)} prompt tokens as cached; none is left, or no other text begins with them"


def _named(reason: str, matched: int | str | None) -> str:
    if reason == "open":
        return "no finish yet"
    return reason if matched is None else f"{reason} ({matched!r})"


def _logprobs(request: RequestSpec, answer: Answer) -> str:
    asked = request.logprobs or request.top_logprobs or request.prompt_logprobs >= 0
    wanted = len(answer.output_ids) if asked else 0
    if len(answer.logprobs) != wanted:
        return f"has log-probabilities for {len(answer.logprobs)} of {wanted} tokens"
    wanted = len(answer.output_ids) if request.top_logprobs else 0
    if len(answer.top_logprobs) != wanted:
        return f"has top log-probabilities for {len(answer.top_logprobs)} of {wanted} tokens"
    if any(len(top) != request.top_logprobs for top in answer.top_logprobs):
        return f"does not have {request.top_logprobs} top log-probabilities for every token"
    first = request.prompt_logprobs
    scored = len(answer.prompt_ids) - first if first >= 0 else 0
    columns = [None if first + place == 0 else request.top_logprobs for place in range(scored)]
    if len(answer.prompt_logprobs) != scored:
        return f"has log-probabilities for {len(answer.prompt_logprobs)} of {scored} prompt tokens"
    for place, (value, due) in enumerate(zip(answer.prompt_logprobs, columns, strict=True), first):
        if (value is None) != (due is None):
            return f"has {'no' if value is None else 'a'} log-probability for token {place} of its prompt"
    if [len(top) for top in answer.prompt_top_logprobs] != [wanted or 0 for wanted in columns]:
        return f"does not have {request.top_logprobs} top log-probabilities for every prompt token"
    if any(value > 1e-6 for value in answer.logprobs):
        return f"has a log-probability of {max(answer.logprobs)}; allowed: at most 0"
    return ""


def _metrics(cell: Cell, resolved: Mapping[str, Any], answer: Answer) -> str:
    """A fault in an answer's metrics, or "".

    SGLang's definitions: spec_accept_length = completion_tokens / spec_verify_ct, spec_accept_rate = correct drafts
    / (spec_verify_ct * (draft tokens - 1)), histogram over correct drafts per round. Where the depth adapts, each round
    counts its own draft tokens."""
    info, lengths = answer.meta_info, answer.accept_lengths
    counts = {
        "prompt_tokens": len(answer.prompt_ids),
        "completion_tokens": len(answer.output_ids),
        "cached_tokens": answer.cached_tokens,
    }
    ragged = bool(resolved.get("speculative_ragged_verify"))
    widths = answer.round_widths if cell.adapts or ragged else (int(resolved["num_draft_tokens"]),) * len(lengths)
    if len(widths) != len(lengths):
        return f"reports {len(widths)} round widths for {len(lengths)} verify rounds"
    # A chain may be accepted whole, whatever num_steps means to its drafter; a tree's depth is num_steps.
    chain = int(resolved["topk"]) <= 1
    for place, (length, width) in enumerate(zip(lengths, widths, strict=True), 1):
        deepest = width if chain else min(width, int(resolved["num_steps"]) + 1)
        if not 1 <= length <= deepest:
            return f"accepted {length} tokens in verify round {place}; allowed: 1 to {deepest}"
    proposed = sum(width - 1 for width in widths)
    if cell.algorithm != "none" and proposed:
        correct = sum(lengths) - len(lengths)
        counts |= {
            "spec_verify_ct": len(lengths),
            "spec_num_correct_drafts": correct,
            "spec_num_proposed_drafts": proposed,
        }
        histogram = Counter(length - 1 for length in lengths)
        expected = [histogram[drafts] for drafts in range(max(lengths))]
        if info.get("spec_correct_drafts_histogram") != expected:
            return (
                f"reports the histogram {info.get('spec_correct_drafts_histogram')}; its verify rounds give {expected}"
            )
        ratios = {
            "spec_accept_length": len(answer.output_ids) / len(lengths),
            "spec_accept_rate": correct / max(1, proposed),
        }
        for key, value in ratios.items():
            if not isclose(float(info.get(key, nan)), value, rel_tol=1e-9):
                return f"reports {key} {info.get(key)}; its verify rounds give {value:.6g}"
        due = [*map([*widths].count, range(1, max(widths) + 1))]
        if info.get("spec_verified_drafts_histogram", due) != due:
            return f"reports {info['spec_verified_drafts_histogram']} as its rounds by verified drafts; they are {due}"
    reported = next((key for key in info if key.startswith("spec_")), None)
    if reported is not None and (cell.algorithm == "none" or not lengths or not proposed):
        return f"reports {reported} {info[reported]}, but no round drafted"
    for key, count in counts.items():
        if info.get(key) != count:
            return f"reports {key} {info.get(key)}; expected {count}"
    return _emitted(answer)


def _shortened(request: RequestSpec, answer: Answer, resolved: Mapping[str, Any]) -> str:
    """A fault in how many nodes each round verified, or "": those whose tokens the rest of the length can hold. A tree
    may have fewer of them."""
    if (emitted := 1 + sum(answer.accept_lengths)) > request.max_new_tokens:
        return f"emitted {emitted} tokens; its length is {request.max_new_tokens}"
    nodes, topk = int(resolved["num_draft_tokens"]), int(resolved["topk"])
    sure = resolved["speculative_confidence_threshold"] or resolved["speculative_dspark_verify_mode"] != "static"
    exact = topk == 1 and not sure and resolved["suffix"] is None
    for place, (start, width) in enumerate(zip(answer.round_starts, answer.round_widths, strict=False), 1):
        left = request.max_new_tokens - start
        most = min(nodes, sum(topk**depth for depth in range(min(left, nodes))))
        if width > most or (exact and width < most):
            text = f"verified {width} nodes in verify round {place} with {left} tokens left of its length"
            return f"{text}; allowed: {most}"
    return ""


def _emitted(answer: Answer) -> str:
    """A sentence unless the output is one prefill token plus all rounds, the last one cut at the request's end; an
    abort cuts nothing. Prefills after a retraction and mixed steps add tokens."""
    if not answer.output_ids or answer.finish == "error":
        return ""
    lengths = answer.accept_lengths
    most = 1 + sum(lengths) + answer.moves
    least = 1 + sum(lengths)
    if lengths and answer.finish != "abort":
        least += 1 - lengths[-1]
    if not least <= len(answer.output_ids) <= most:
        return f"has {len(answer.output_ids)} tokens; its verify rounds emitted {_between(least, most)}"
    return ""


def _between(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
