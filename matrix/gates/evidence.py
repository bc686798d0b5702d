"""Counters that must be non-zero, or zero, in a cell: the evidence that each axis value took effect.

Only rows that hold for every correct run are listed; each was verified on the reference engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from specmatrix.matrix.cells.cell import HYBRIDS, Cell, spares
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.build import aborted_late

MIN_ROUNDS: Final = 60
# More rounds than there are batch shapes, so some shape repeats.
REPEATED_ROUNDS: Final = 16

When: TypeAlias = Callable[[Cell, Run], bool]


@dataclass(frozen=True)
class Evidence:
    """If `when` holds, counter `counter` (or one of several joined by `|`) must be non-zero (`seen`), or all zero."""

    counter: str
    seen: bool
    why: str
    when: When

    def hits(self, run: Run) -> int:
        """The sum of the counters; unreported ones count as zero."""
        return sum(run.evidence.get(counter, 0) for counter in self.counter.split("|"))

    def holds(self, run: Run) -> bool:
        """Whether the counters are as they must be."""
        return (self.hits(run) > 0) == self.seen


def _is(**values: str) -> When:
    """The cell has these values."""
    return lambda cell, run: all(cell.values[name] == value for name, value in values.items())


def _not(when: When) -> When:
    return lambda cell, run: not when(cell, run)


def _exactly(counter: str, when: When, seen: str, unseen: str) -> tuple[Evidence, Evidence]:
    """The counter is non-zero if `when` holds, for the reason `seen`, and zero if it does not."""
    return Evidence(counter, True, seen, when), Evidence(counter, False, unseen, _not(when))


_turns, _streams = _not(_is(session="none")), _is(session="streaming")


def _graphs(cell: Cell, run: Run) -> bool:
    return bool(run.resolved.get("cuda_graph_max_bs"))


def _ruled(cell: Cell) -> bool:
    """Some request of each round may have logit rules, which run without a graph; a minimum length is one, and so are
    the blanks banned from JSON."""
    return cell.sampling == "rules" or cell.finish == "stops" or cell.grammar == "json"


def _repeats_shapes(cell: Cell, run: Run) -> bool:
    """Some graph-eligible round shape must repeat; if a full batch exceeds the largest graph, or running requests
    advance in mixed steps, few rounds are eligible."""
    above = cell.slots != "auto" and cell.batch not in ("single", "pair")
    few = above or _ruled(cell) or cell.mixed_chunk == "on"
    return _graphs(cell, run) and not few and run.evidence.get("decode.round", 0) >= REPEATED_ROUNDS


_drafts = _not(_is(algorithm="none"))


def _adapts(cell: Cell, run: Run) -> bool:
    return cell.adapts


def _trained(cell: Cell, run: Run) -> bool:
    """All drafters but a user's and those of earlier texts, whose proposals may all be wrong in a text without
    repetition; a single request without further turns that is aborted early may have had four rounds without an
    accepted draft."""
    aborted = (cell.abort, cell.batch, cell.session) == ("running", "single", "none")
    return _drafts(cell, run) and not cell.shares_rounds and cell.own_traits is None and not aborted


def _moves(cell: Cell, run: Run) -> bool:
    """Fast-reacting slots over many short answers, with batches of every size."""
    return cell.adapts and (cell.adaptive, cell.batch, cell.slots) == ("tiers", "ramp", "auto")


def _rests(cell: Cell, run: Run) -> bool:
    """And no graph pads small batches, whose better rounds would count for the slot that may draft nothing."""
    return _moves(cell, run) and not run.resolved["cuda_graph_max_bs"]


def _leaves_depth(cell: Cell, run: Run) -> bool:
    """The slot for the largest batches has its own depth."""
    return cell.adapts and cell.adaptive == "table" and (cell.batch, cell.slots) == ("ramp", "auto")


def _priced(cell: Cell, run: Run) -> bool:
    """Enough rounds of depths by step times, with batches of several sizes. Which way they choose follows from the
    texts: `adaptive` compares each counter with its replay."""
    return cell.adapts and (cell.adaptive, cell.session) == ("throughput", "streaming")


def _may_rest(run: Run) -> bool:
    """Some slot may draft nothing."""
    return any(0 in slot["candidate_steps"] for slot in run.resolved["adaptive_slots"])


def _flat(cell: Cell, run: Run) -> bool:
    return cell.adapts and cell.adaptive == "flat"


def _deepens(cell: Cell, run: Run) -> bool:
    """The single slot is not at its deepest candidate already (an earlier cell may have left it there), and enough
    greedy rounds are accepted to raise it."""
    whole = cell.finish in ("eos", "length") and cell.abort == "none" and cell.batch != "single"
    if not (_flat(cell, run) and whole and cell.sampling == "greedy" and cell.steps == "auto"):
        return False
    deepest: int = max(max(slot["candidate_steps"]) for slot in run.resolved["adaptive_slots"])
    return min((width for answer in run.answers for width in answer.round_widths), default=0) <= deepest


def _ragged(cell: Cell, run: Run) -> bool:
    """Rows may verify a part of their drafts."""
    return bool(run.resolved.get("speculative_ragged_verify"))


def _cut_by_length(cell: Cell, run: Run) -> bool:
    """Some request that is drafted for ends by its length: its last round has no room for a whole draft."""
    several = cell.batch not in ("single", "pair") and cell.memory == "ample"
    return _ragged(cell, run) and several and _trained(cell, run) and cell.finish == "length"


def _cut_by_confidence(cell: Cell, run: Run) -> bool:
    """Of several texts some has a place that the draft is not sure of."""
    several = cell.batch not in ("single", "pair")
    return several and bool(run.resolved.get("speculative_confidence_threshold")) and _trained(cell, run)


def _cut_by_budget(cell: Cell, run: Run) -> bool:
    """Of several texts some has a place where the draft is so unsure that a verified token costs more than it gains."""
    several = cell.batch not in ("single", "pair")
    return several and _budgeted(cell, run) and _trained(cell, run)


def _budgeted(cell: Cell, run: Run) -> bool:
    """A budget over the batch says how many drafts are verified."""
    return bool(run.resolved.get("speculative_dspark_verify_mode", "static") != "static")


def _tree(cell: Cell, run: Run) -> bool:
    return _drafts(cell, run) and int(run.resolved.get("topk", 0)) > 1


def _must_branch(cell: Cell, run: Run) -> bool:
    """More draft nodes than levels, so some level holds two; a smaller tree, or a user's, may be a chain."""
    wide = run.resolved["num_draft_tokens"] - 1 > run.resolved["num_steps"]
    return _tree(cell, run) and wide and cell.own_traits is None


def _must_compact(cell: Cell, run: Run) -> bool:
    """In this many rounds some accepted path of two or more drafts leaves the first branch (measured: one in ten).

    An n-gram index that knows a text from earlier cells accepts first branches as a whole: such rounds do not count.
    """
    depth = run.resolved["num_steps"]
    longest = depth if cell.shares_rounds else depth + 1
    rounds = sum(length <= longest for answer in run.answers for length in answer.accept_lengths)
    return _must_branch(cell, run) and depth > 1 and rounds >= MIN_ROUNDS


def _lag(lag: int) -> When:
    return lambda cell, run: run.resolved.get("lag") == lag


def _splits(cell: Cell, run: Run) -> bool:
    """The uncached part of some prompt is longer than a prefill chunk, which also ends at a state's checkpoints."""
    chunk = _chunk(cell, run)
    return any(len(a.prompt_ids) - a.cached_tokens > chunk for a in run.answers if chunk and a.output_ids)


def _chunk(cell: Cell, run: Run) -> int:
    """The most tokens of a prefill chunk, 0 for any number."""
    sizes = 0 if cell.prefill_chunk == "off" else int(cell.prefill_chunk), run.resolved.get("state_interval") or 0
    return min(filter(None, sizes), default=0)


def _unit(run: Run) -> int:
    """Tokens that enter the prefix cache at once."""
    return int(run.resolved.get("state_interval") or run.resolved["page_size"])


def widest(run: Run) -> int:
    """Nodes (root included) of the widest possible round, for which memory is reserved."""
    depths = [steps for slot in run.resolved["adaptive_slots"] for steps in slot["candidate_steps"]]
    return int(max(depths) + 1 if depths else run.resolved["num_draft_tokens"])


def _two_run(cell: Cell, run: Run) -> bool:
    """Memory holds two requests at once. Sliding-window layers reserve each request's window, the positions that the
    end of a session turn may roll back, and the widest steps in flight."""
    window, chunk = run.resolved.get("window"), run.resolved.get("chunked_prefill_size")
    if window is None or cell.memory == "ample":
        return True
    if chunk is None:
        return False
    steps, width, page = run.resolved["lag"] + 1, widest(run), run.resolved["page_size"]
    reach = window + steps * width + steps * max(width, chunk)
    return bool(2 * (-(-reach // page) + 1) <= run.resolved["window_pages"])


def _share(cell: Cell, run: Run) -> bool:
    return cell.batch not in ("single", "pair") and _two_run(cell, run)


def _starved(cell: Cell, run: Run) -> bool:
    """Two requests run out of memory; with an abort, one of a pair may end before that unless it is aborted late. With
    logit rules, samples of a high temperature may end while the first two texts still fit; the short first turns of two
    sessions fit if one takes far fewer rounds than the other."""
    late = cell.abort == "none" or aborted_late(cell) or cell.memory == "session_retract"
    starved = cell.memory != "ample" and _two_run(cell, run) and (cell.batch in ("mixed_lengths", "burst") or late)
    if (cell.memory, cell.batch) == ("tight", "pair") and cell.session != "none":
        return starved and _held_at_once(run) > cell.memory_tokens
    if (cell.sampling != "rules" or cell.finish == "length") and cell.grammar == "none":
        return starved
    return starved and sum(len(a.prompt_ids) + len(a.output_ids) for a in run.answers[:2]) > cell.memory_tokens


def _held_at_once(run: Run) -> int:
    """Tokens of the first turns of two sessions in the last round that both run, as they begin together."""
    answers = {answer.name: answer for answer in run.answers}
    held = []
    for first in [answers[one.name] for one in run.requests if one.name in answers and not one.after]:
        rounds = first.accept_lengths or (1,) * (len(first.output_ids) - 1)
        held.append([len(first.prompt_ids) + min(tokens, len(first.output_ids)) for tokens in accumulate((1, *rounds))])
    return max(map(sum, zip(*held, strict=False)), default=0)


def _retracts(cell: Cell, run: Run) -> bool:
    """Memory is short, or a request outlives its `retract_after` by more rounds than may be in flight."""
    answers = {answer.name: len(answer.output_ids) - 3 * widest(run) for answer in run.answers}
    told = any(one.retract_after is not None and one.retract_after < answers.get(one.name, 0) for one in run.requests)
    return told or _starved(cell, run)


def _never_retracts(cell: Cell, run: Run) -> bool:
    return cell.memory == "ample" and all(one.retract_after is None for one in run.requests)


def _spares(cell: Cell, run: Run) -> bool:
    """Two turns run out of memory, and the younger can be retracted to the KV that it inherited."""
    return _snug_pair(cell) and _two_run(cell, run) and spares(cell.model == "qwen3", int(cell.page_size))


def _slides(cell: Cell, run: Run) -> bool:
    """Some text exceeds the window by more than a page and the positions that a rollback may restore."""
    window, page = run.resolved.get("window"), run.resolved["page_size"]
    back = (run.resolved["lag"] + 2) * widest(run)
    lengths = [len(a.prompt_ids) + len(a.output_ids) for a in run.answers if a.finish != "abort"]
    return window is not None and any(length > window + page + back for length in lengths)


def _windowless(cell: Cell, run: Run) -> bool:
    return run.resolved.get("window") is None


def _uncached(cell: Cell, run: Run) -> bool:
    return cell.prefix_cache == "off" or not run.resolved["radix_cache"]


def _caches(cell: Cell, run: Run) -> bool:
    """Some request fills a whole page, which the cache inserts or already has; draft keys need one token more."""
    room = _unit(run) + 2
    whole = any(len(a.prompt_ids) + len(a.output_ids) >= room for a in run.answers if a.finish != "abort")
    # A streaming session caches its first prompt only, which does not fill the largest page.
    small = cell.session != "streaming" or _unit(run) <= 16
    return not _uncached(cell, run) and whole and small


def _repeats(cell: Cell, run: Run) -> bool:
    """A prompt that is cached whole or in part is repeated after more requests than run at once."""
    waits = cell.slots != "auto" and cell.batch in ("mixed_lengths", "burst") and cell.abort == "none"
    return waits and not _uncached(cell, run) and cell.memory == "ample" and _unit(run) <= 24


def _inherits(cell: Cell, run: Run) -> bool:
    """With memory for all, or for two first turns of a pair, no session's KV is dropped before its second turn."""
    return _holds(cell, run) and (cell.memory == "ample" or _snug_pair(cell))


def _holds(cell: Cell, run: Run) -> bool:
    """Turns leave KV to their session; of a state, if a checkpoint or, without drafts and overlap, the live one is no
    later than the text."""
    kept = (cell.algorithm, run.resolved["lag"]) == ("none", 0) or cell.state_interval in ("16", "24")
    return _streams(cell, run) and (cell.model not in HYBRIDS or kept)


def _snug_pair(cell: Cell) -> bool:
    return (cell.memory, cell.batch) == ("session_retract", "pair")


def _oversubscribed(cell: Cell, run: Run) -> bool:
    """Eight conversations need far more KV than tight memory holds."""
    return (cell.memory, cell.batch) == ("tight", "burst") and _holds(cell, run)


def _rolls_back(cell: Cell, run: Run) -> bool:
    """A session's second turn is aborted; a sliding window may no longer hold its start, a state may be beyond it."""
    kept = cell.model not in HYBRIDS or cell.state_interval == "16"
    return _inherits(cell, run) and cell.abort == "running" and _windowless(cell, run) and kept


def _waits(cell: Cell, run: Run) -> bool:
    return cell.slots != "auto" and len(run.requests) > int(cell.slots)


def _finished(kind: str) -> When:
    """Tight memory shortens the length limits, so of two answers none may reach its stop token."""

    def when(cell: Cell, run: Run) -> bool:
        lives = not (cell.batch == "single" and cell.abort != "none")
        if cell.memory == "tight" and cell.session != "none":
            return cell.finish == kind == "length"  # a conversation that fits has no room for whole answers
        short = cell.memory == "ample" or kind in ("length", "stop_string")
        return cell.finish == kind and lives and (short or (kind == "stop_token" and cell.batch != "pair"))

    return when


def _outgrows(cell: Cell, run: Run) -> bool:
    """The texts of many questions, few at a time, exceed memory before the first prompts return."""
    texts = {answer.prompt_ids: len(answer.prompt_ids) + len(answer.output_ids) for answer in run.answers}
    full = sum(texts.values()) > cell.memory_tokens
    return full and (cell.batch, cell.slots) == ("gsm", "4") and not _uncached(cell, run)


EVIDENCE: Final[tuple[Evidence, ...]] = (
    Evidence("prefill.step", True, "every cell prefills prompts", lambda cell, run: True),
    Evidence("decode.round", True, "every cell decodes tokens", lambda cell, run: True),
    Evidence("decode.batched", True, "several requests must be decoded in one batch", _share),
    *_exactly(
        "rank.step",
        _not(_is(tp="1")),
        "several ranks must compare their steps",
        "a single rank has no other to compare with",
    ),
    *_exactly("spec.drafted", _drafts, "the drafter must propose tokens", "the cell has no drafter"),
    Evidence("spec.accepted", True, "a trained drafter must have some drafts accepted", _trained),
    Evidence("adaptive.activated", True, "the adaptive controller must choose each round's depth", _adapts),
    Evidence("adaptive.switched_up", True, "high acceptance must increase the depth", _moves),
    Evidence("adaptive.switched_down", True, "low acceptance must decrease the depth", _moves),
    Evidence("adaptive.undrafted", True, "a slot that may draft nothing must do so", _rests),
    Evidence("adaptive.undrafted", False, "every candidate drafts", lambda cell, run: not _may_rest(run)),
    Evidence("adaptive.batch_switch", True, "a change of batch size must change the depth", _moves),
    Evidence("adaptive.batch_switch", True, "a change of batch size must change the depth", _leaves_depth),
    Evidence("adaptive.switched_up", True, "high acceptance must increase the depth", _deepens),
    Evidence(
        "adaptive.switched_up|adaptive.switched_down|adaptive.held|adaptive.batch_switch",
        True,
        "step times must choose between depths",
        _priced,
    ),
    Evidence("adaptive.held", False, "only step times have a margin", lambda cell, run: cell.adaptive != "throughput"),
    Evidence("adaptive.batch_switch", False, "one adaptive slot serves every batch size", _flat),
    *(
        Evidence(f"adaptive.{name}", False, "the draft depth is static", _not(_adapts))
        for name in ("activated", "switched_up", "switched_down", "batch_switch")
    ),
    Evidence("spec.shortened", True, "what is left of a length must shorten some row", _cut_by_length),
    Evidence("spec.shortened", True, "unlikely drafts must shorten some row", _cut_by_confidence),
    Evidence("spec.shortened", True, "drafts beyond the budget must shorten some row", _cut_by_budget),
    Evidence("spec.budgeted", True, "some round's budget must be less than its drafts", _cut_by_budget),
    Evidence("spec.budgeted", False, "no budget limits the drafts", _not(_budgeted)),
    Evidence("spec.shortened", False, "every draft is verified whole", _not(_ragged)),
    Evidence("tree.branched", True, "a tree with topk above 1 must branch", _must_branch),
    Evidence("tree.branched", False, "a chain has no branches", _not(_tree)),
    Evidence("tree.compacted", True, "the KV of an accepted tree path must be compacted", _must_compact),
    Evidence("tree.compacted", False, "an accepted chain needs no compaction", _not(_tree)),
    Evidence("overlap.in_flight", True, "spec v2 must launch a step before it reads the previous result", _lag(1)),
    Evidence("overlap.in_flight", False, "spec v1 reads each result before the next launch", _lag(0)),
    Evidence("overlap.dropped", False, "spec v1 never runs a step for a finished request", _lag(0)),
    Evidence("prefill.chunked", True, "a prompt longer than the chunk must be split", _splits),
    Evidence("prefill.chunked", False, "prompts are not split", lambda cell, run: not _chunk(cell, run)),
    *_exactly(
        "mixed.step",
        lambda cell, run: bool(run.resolved.get("enable_mixed_chunk")),
        "running requests must go on beside prompts",
        "running requests wait for prompts",
    ),
    Evidence("retract.done", True, "memory is too small for two whole requests, or treated as such", _retracts),
    Evidence("retract.done", False, "memory is large enough for all requests", _never_retracts),
    Evidence("prefix.hit", False, "the prefix cache is off", _uncached),
    Evidence("prefix.insert", False, "the prefix cache is off", _uncached),
    Evidence("prefix.insert|prefix.hit|prefix.duplicate", True, "whole pages must be cached", _caches),
    Evidence("prefix.hit", True, "a repeated prompt must hit the prefix cache", _repeats),
    Evidence("prefix.evict", True, "more texts are cached than memory holds", _outgrows),
    Evidence("window.slid", True, "a text longer than the sliding window must slide it", _slides),
    Evidence("window.slid", False, "the model has no sliding window", _windowless),
    Evidence("queue.waited", True, "there are more requests than max_running_requests", _waits),
    *_exactly("session.opened", _turns, "the workload opens sessions", "the workload has no sessions"),
    *_exactly(
        "session.refused",
        _turns,
        "the workload sends requests that a session must refuse",
        "the workload has no sessions",
    ),
    *_exactly("session.timed_out", _streams, "an idle session must time out", "no session has a timeout"),
    Evidence("session.dropped", True, "the sessions need more KV than memory holds", _oversubscribed),
    Evidence("session.held", True, "a streaming session must keep its KV between turns", _holds),
    Evidence("session.held", False, "no streaming session keeps KV", _not(_streams)),
    Evidence("session.inherited", True, "a turn must inherit its session's KV", _inherits),
    Evidence("session.spared", True, "a retracted turn must keep the KV that it inherited", _spares),
    Evidence("session.restored", True, "a retracted turn must resume from the KV that it inherited", _spares),
    Evidence("session.spared|session.restored", False, "memory is large enough for all requests", _is(memory="ample")),
    Evidence("session.rolled_back", True, "an aborted turn must be rolled back", _rolls_back),
    *_exactly("grammar.round", _not(_is(grammar="none")), "requests have grammars", "no request has a grammar"),
    *_exactly("sample.random", _not(_is(sampling="greedy")), "requests are sampled", "all requests are greedy"),
    Evidence("sample.greedy", True, "some requests are greedy", lambda cell, run: cell.sampling in ("greedy", "mixed")),
    Evidence("abort.waiting", True, "a waiting request is aborted", _is(abort="queued")),
    Evidence("abort.running", True, "a running request is aborted", _is(abort="running")),
    Evidence("abort.waiting", False, "no request is aborted", _is(abort="none")),
    Evidence("abort.running", False, "no request is aborted", _is(abort="none")),
    Evidence("finish.stop_token", True, "some answer must end with EOS", _finished("eos")),
    Evidence("finish.stop_token", True, "a stop token must end some answer", _finished("stop_token")),
    Evidence("finish.stop_string", True, "a stop string must end some answer", _finished("stop_string")),
    Evidence("finish.length", True, "max_new_tokens must end some answer", _finished("length")),
    *_exactly(
        "finish.context",
        _is(context="short"),
        "some answer must end at the context limit",
        "no text reaches the context limit",
    ),
    Evidence("finish.stop_token", False, "requests ignore EOS", _is(finish="length")),
    Evidence("graph.replayed|graph.eager", False, "CUDA graphs are off", _not(_graphs)),
)
# Counters that only a GPU run increments.
GPU_EVIDENCE: Final[tuple[Evidence, ...]] = (
    Evidence(
        "graph.replayed", True, "repeated round shapes without logit rules must replay CUDA graphs", _repeats_shapes
    ),
    Evidence("graph.waited", False, "the host must not wait for the device around a graph replay", _graphs),
)
