"""What a correct engine must have been seen doing, cell by cell: the evidence that an axis value took effect.

A row that a correct engine cannot always show is not listed; each was measured on the reference engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.build import aborted_late
from specmatrix.matrix.workloads.memory_sizes import spares

LEAST_ROUNDS: Final = 60
# So many rounds have fewer shapes.
REPEATED_ROUNDS: Final = 16


@dataclass(frozen=True)
class Evidence:
    """Where `when` holds, the probe (or one of several, joined by `|`) must have been hit (`seen`), or none of them."""

    probe: str
    seen: bool
    why: str
    when: Callable[[Cell, Run], bool]

    def holds(self, run: Run) -> bool:
        """A probe that the subject does not know counts as never hit."""
        return any(run.evidence.get(probe, 0) > 0 for probe in self.probe.split("|")) == self.seen


def _graphs(run: Run) -> bool:
    return bool(run.resolved.get("cuda_graph_max_bs"))


def _drafts(cell: Cell, run: Run) -> bool:
    return cell.algorithm != "none"


def _trained(cell: Cell, run: Run) -> bool:
    """A short text may repeat nothing, so n-grams may be wrong every time."""
    return _drafts(cell, run) and cell.algorithm != "ngram"


def _moves(cell: Cell, run: Run) -> bool:
    """Quick slots over many short answers, with room for batches of every size."""
    return cell.adapts and (cell.adaptive, cell.batch, cell.slots) == ("tiers", "waves", "auto")


def _leaves_depth(cell: Cell, run: Run) -> bool:
    """The slot of the largest batches has a depth of its own."""
    return cell.adapts and cell.adaptive == "table" and (cell.batch, cell.slots) == ("waves", "auto")


def _flat(cell: Cell, run: Run) -> bool:
    return cell.adapts and cell.adaptive == "flat"


def _deepens(cell: Cell, run: Run) -> bool:
    """A flat file's one slot begins below its deepest candidate, and greedy drafts of many rounds are worth more."""
    whole = cell.finish in ("eos", "length") and cell.abort == "none" and cell.batch != "single"
    return _flat(cell, run) and whole and cell.sampling == "greedy" and cell.steps == "auto"


def _tree(cell: Cell, run: Run) -> bool:
    return _drafts(cell, run) and int(run.resolved.get("topk", 0)) > 1


def _must_branch(cell: Cell, run: Run) -> bool:
    """More nodes than levels: some level holds two. A narrower tree may be a chain."""
    return _tree(cell, run) and run.resolved["num_draft_tokens"] - 1 > run.resolved["num_steps"]


def _must_compact(cell: Cell, run: Run) -> bool:
    """In this many rounds some accepted path of two drafts or more leaves the first branch; at least one in ten did."""
    rounds = sum(len(answer.accept_lengths) for answer in run.answers)
    return _must_branch(cell, run) and run.resolved["num_steps"] > 1 and rounds >= LEAST_ROUNDS


def _lag(lag: int) -> Callable[[Cell, Run], bool]:
    return lambda cell, run: run.resolved.get("lag") == lag


def _splits(cell: Cell, run: Run) -> bool:
    """What the cache did not serve of some prompt is longer than the chunk."""
    if cell.prefill_chunk == "off":
        return False
    return any(len(a.prompt_ids) - a.cached_tokens > int(cell.prefill_chunk) for a in run.answers if a.output_ids)


def _widest(run: Run) -> int:
    """Nodes of the widest round that may run, root included: memory is reserved for it."""
    depths = [steps for slot in run.resolved["adaptive_slots"] for steps in slot["candidate_steps"]]
    return int(max(depths) + 1 if depths else run.resolved["num_draft_tokens"])


def _two_run(cell: Cell, run: Run) -> bool:
    """Two requests may be in memory at once. Windowed layers keep room for each one's whole reach: the window, what a
    session's end may take back, and the widest steps in flight."""
    window, chunk = run.resolved.get("window"), run.resolved.get("chunked_prefill_size")
    if window is None or cell.memory == "ample":
        return True
    if chunk is None:
        return False
    steps, width, page = run.resolved["lag"] + 1, _widest(run), run.resolved["page_size"]
    reach = window + steps * width + steps * max(width, chunk)
    return bool(2 * (-(-reach // page) + 1) <= run.resolved["window_pages"])


def _share(cell: Cell, run: Run) -> bool:
    return cell.batch not in ("single", "pair") and _two_run(cell, run)


def _starved(cell: Cell, run: Run) -> bool:
    """In a pair an aborted turn may leave before the two collide, and an aborted request that ends by text would."""
    late = cell.abort == "none" or aborted_late(cell) or cell.memory == "snug"
    return cell.memory != "ample" and _two_run(cell, run) and (cell.batch in ("ragged", "burst") or late)


def _spares(cell: Cell, run: Run) -> bool:
    """Two turns collide, and the younger can go back to where it began."""
    return cell.memory == "snug" and _two_run(cell, run) and spares(cell.model == "qwen3", int(cell.page_size))


def _slides(cell: Cell, run: Run) -> bool:
    """Some text is longer than the window, a page, and every position that a trim may take back."""
    window, page = run.resolved.get("window"), run.resolved["page_size"]
    back = (run.resolved["lag"] + 2) * _widest(run)
    lengths = [len(a.prompt_ids) + len(a.output_ids) for a in run.answers if a.finish != "abort"]
    return window is not None and any(length > window + page + back for length in lengths)


def _uncached(cell: Cell, run: Run) -> bool:
    return cell.prefix_cache == "off" or not run.resolved["radix_cache"]


def _caches(cell: Cell, run: Run) -> bool:
    """Some request fills a page, so the cache takes it or had it; a drafter's keys reach one token past the page."""
    room = int(cell.page_size) + 2
    whole = any(len(a.prompt_ids) + len(a.output_ids) >= room for a in run.answers if a.finish != "abort")
    # Of a streaming session only the first prompt is cached, and no first prompt fills the largest page.
    small = cell.session != "streaming" or int(cell.page_size) <= 16
    return not _uncached(cell, run) and whole and small


def _repeats(cell: Cell, run: Run) -> bool:
    """A prompt is read again, behind more requests than run at once, and holds a whole page."""
    waits = cell.slots != "auto" and cell.batch in ("ragged", "burst") and cell.abort == "none"
    return waits and not _uncached(cell, run) and cell.memory == "ample" and int(cell.page_size) <= 16


def _inherits(cell: Cell, run: Run) -> bool:
    """With room for all, or for the first turns of two, nobody's KV is dropped between these and the second."""
    return cell.session == "streaming" and cell.memory != "tight"


def _oversubscribed(cell: Cell, run: Run) -> bool:
    """What eight conversations hold is far more than tight memory."""
    return (cell.session, cell.memory, cell.batch) == ("streaming", "tight", "burst")


def _rolls_back(cell: Cell, run: Run) -> bool:
    """The second turn of a session is aborted; a window may have slid past where it began."""
    return _inherits(cell, run) and cell.abort == "running" and run.resolved.get("window") is None


def _waits(cell: Cell, run: Run) -> bool:
    return cell.slots != "auto" and len(run.asks) > int(cell.slots)


def _finished(cell: Cell, run: Run, kind: str) -> bool:
    """Under tight memory the limits are short and the answers long: of two, none may reach its stop token."""
    lives = not (cell.batch == "single" and cell.abort != "none")
    if cell.memory == "tight" and cell.session != "none":
        return cell.finish == kind == "length"  # a conversation that fits has no room for whole answers
    short = cell.memory == "ample" or kind in ("length", "stop_string")
    return cell.finish == kind and lives and (short or (kind == "stop_token" and cell.batch != "pair"))


EVIDENCE: Final[tuple[Evidence, ...]] = (
    Evidence("prefill.step", True, "a prompt is read", lambda cell, run: True),
    Evidence("decode.round", True, "tokens are decoded", lambda cell, run: True),
    Evidence("decode.batched", True, "two requests share a round", _share),
    Evidence("rank.step", True, "several ranks compare their steps", lambda cell, run: cell.ranks > 1),
    Evidence("rank.step", False, "there is one rank", lambda cell, run: cell.ranks == 1),
    Evidence("spec.drafted", True, "a drafter proposes", _drafts),
    Evidence("spec.drafted", False, "nobody drafts", lambda cell, run: cell.algorithm == "none"),
    Evidence("spec.accepted", True, "a trained draft is right at times", _trained),
    Evidence("adaptive.activated", True, "the controller sets each depth", lambda cell, run: cell.adapts),
    Evidence("adaptive.switched_up", True, "good drafts deepen the next ones", _moves),
    Evidence("adaptive.switched_down", True, "poor drafts shorten the next ones", _moves),
    Evidence("adaptive.batch_switch", True, "the batch size changes the depth", _moves),
    Evidence("adaptive.batch_switch", True, "the batch size changes the depth", _leaves_depth),
    Evidence("adaptive.switched_up", True, "good drafts deepen the next ones", _deepens),
    Evidence("adaptive.batch_switch", False, "one slot serves batches of every size", _flat),
    *(
        Evidence(f"adaptive.{name}", False, "the depth is static", lambda cell, run: not cell.adapts)
        for name in ("activated", "switched_up", "switched_down", "batch_switch")
    ),
    Evidence("tree.branched", True, "topk above 1 makes branches", _must_branch),
    Evidence("tree.branched", False, "a chain has no branches", lambda cell, run: not _tree(cell, run)),
    Evidence("tree.compacted", True, "the accepted path is moved together", _must_compact),
    Evidence("tree.compacted", False, "an accepted chain lies dense", lambda cell, run: not _tree(cell, run)),
    Evidence("overlap.in_flight", True, "v2 launches before it reads", _lag(1)),
    Evidence("overlap.in_flight", False, "v1 reads before it launches", _lag(0)),
    Evidence("overlap.dropped", False, "v1 never runs past an end", lambda cell, run: _lag(0)(cell, run)),
    Evidence("prefill.chunked", True, "a prompt longer than the chunk is split", _splits),
    Evidence("prefill.chunked", False, "whole prompts are not split", lambda cell, run: cell.prefill_chunk == "off"),
    Evidence("retract.done", True, "two requests do not fit to their end", _starved),
    Evidence("retract.done", False, "nothing is retracted with room for all", lambda cell, run: cell.memory == "ample"),
    Evidence("prefix.hit", False, "there is no prefix cache", _uncached),
    Evidence("prefix.insert", False, "there is no prefix cache", _uncached),
    Evidence("prefix.insert|prefix.hit|prefix.twin", True, "whole pages are cached", _caches),
    Evidence("prefix.hit", True, "a repeated prompt is served from the cache", _repeats),
    Evidence("window.slid", True, "a text outgrows the window", _slides),
    Evidence("window.slid", False, "every layer sees all", lambda cell, run: run.resolved.get("window") is None),
    Evidence("queue.waited", True, "more requests than slots", _waits),
    Evidence("session.opened", True, "sessions are opened", lambda cell, run: cell.session != "none"),
    Evidence("session.opened", False, "there are no sessions", lambda cell, run: cell.session == "none"),
    Evidence("session.refused", True, "a session refuses what it must", lambda cell, run: cell.session != "none"),
    Evidence("session.refused", False, "there is nothing to refuse", lambda cell, run: cell.session == "none"),
    Evidence("session.timed_out", True, "an idle session is closed", lambda cell, run: cell.session == "streaming"),
    Evidence("session.timed_out", False, "nobody is idle", lambda cell, run: cell.session != "streaming"),
    Evidence("session.dropped", True, "more sessions than memory", _oversubscribed),
    Evidence("session.held", True, "KV outlives its turn", lambda cell, run: cell.session == "streaming"),
    Evidence("session.inherited", True, "a turn inherits KV", _inherits),
    Evidence("session.spared", True, "a retracted turn leaves what it inherited", _spares),
    Evidence("session.restored", True, "it comes back to that", _spares),
    Evidence(
        "session.spared|session.restored", False, "nothing is retracted", lambda cell, run: cell.memory == "ample"
    ),
    Evidence("session.rolled_back", True, "an aborted turn is undone", _rolls_back),
    Evidence("session.held", False, "nothing outlives a request", lambda cell, run: cell.session != "streaming"),
    Evidence("sample.random", True, "tokens are drawn", lambda cell, run: cell.sampling != "greedy"),
    Evidence("sample.random", False, "tokens are the best ones", lambda cell, run: cell.sampling == "greedy"),
    Evidence("sample.greedy", True, "tokens are the best ones", lambda cell, run: cell.sampling in ("greedy", "mixed")),
    Evidence("abort.waiting", True, "a request is aborted in the queue", lambda cell, run: cell.abort == "queued"),
    Evidence("abort.running", True, "a request is aborted while it runs", lambda cell, run: cell.abort == "running"),
    Evidence("abort.waiting", False, "nothing is aborted", lambda cell, run: cell.abort == "none"),
    Evidence("abort.running", False, "nothing is aborted", lambda cell, run: cell.abort == "none"),
    Evidence("finish.stop_token", True, "an answer ends", lambda cell, run: _finished(cell, run, "eos")),
    Evidence(
        "finish.stop_token", True, "a stop token ends an answer", lambda cell, run: _finished(cell, run, "stop_token")
    ),
    Evidence(
        "finish.stop_string", True, "a stop string ends it", lambda cell, run: _finished(cell, run, "stop_string")
    ),
    Evidence("finish.length", True, "the limit ends an answer", lambda cell, run: _finished(cell, run, "length")),
    Evidence("finish.context", True, "answers end where the context does", lambda cell, run: cell.context == "short"),
    Evidence("finish.context", False, "no text is that long", lambda cell, run: cell.context == "model"),
    Evidence("finish.stop_token", False, "no end of text is heeded", lambda cell, run: cell.finish == "length"),
    Evidence("graph.replayed|graph.eager", False, "there are no graphs", lambda cell, run: not _graphs(run)),
)
# What only a GPU shows.
GPU_EVIDENCE: Final[tuple[Evidence, ...]] = (
    Evidence(
        "graph.replayed",
        True,
        "rounds of the same shape are replayed",
        lambda cell, run: _graphs(run) and run.evidence.get("decode.round", 0) >= REPEATED_ROUNDS,
    ),
    Evidence("graph.waited", False, "a graph is launched behind the device's back", lambda cell, run: _graphs(run)),
)
