"""Conditions on a cell and its run, by the names that evidence.yaml has for them in `when`."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from specmatrix.matrix.cells.cell import HYBRIDS, Cell, spares
from specmatrix.matrix.subjects.protocol import Run
from specmatrix.matrix.workloads.build import aborted_late

MIN_ROUNDS: Final = 60
# More rounds than there are batch shapes, so some shape repeats.
REPEATED_ROUNDS: Final = 16


def graphs(cell: Cell, run: Run) -> bool:
    return bool(run.resolved.get("cuda_graph_max_bs"))


def repeats_shapes(cell: Cell, run: Run) -> bool:
    """Some graph-eligible round shape must repeat. Few rounds are eligible if a full batch exceeds the largest graph,
    if running requests advance in mixed steps, or if some request of each round may have logit rules, of which a
    minimum length is one, and so are the blanks banned from JSON."""
    above = cell.slots != "auto" and cell.batch not in ("single", "pair")
    ruled = cell.sampling == "rules" or cell.finish == "stops" or cell.grammar == "json"
    few = above or ruled or cell.mixed_chunk == "on"
    return graphs(cell, run) and not few and run.evidence.get("decode.round", 0) >= REPEATED_ROUNDS


def adapts(cell: Cell, run: Run) -> bool:
    return cell.adapts


def trained(cell: Cell, run: Run) -> bool:
    """All drafters but a user's and those of earlier texts, whose proposals may all be wrong in a text without
    repetition; a single request without further turns that is aborted early may have had four rounds without an
    accepted draft."""
    aborted = (cell.abort, cell.batch, cell.session) == ("running", "single", "none")
    return cell.algorithm != "none" and not cell.shares_rounds and cell.own_traits is None and not aborted


def may_rest(cell: Cell, run: Run) -> bool:
    """Some slot may draft nothing."""
    return any(0 in slot["candidate_steps"] for slot in run.resolved["adaptive_slots"])


def not_at_its_deepest(cell: Cell, run: Run) -> bool:
    """The single slot is not at its deepest candidate already: an earlier cell may have left it there."""
    if not cell.adapts:
        return False
    deepest: int = max(max(slot["candidate_steps"]) for slot in run.resolved["adaptive_slots"])
    return min((width for answer in run.answers for width in answer.round_widths), default=0) <= deepest


def ragged(cell: Cell, run: Run) -> bool:
    """Rows may verify a part of their drafts."""
    return bool(run.resolved.get("speculative_ragged_verify"))


def confident(cell: Cell, run: Run) -> bool:
    """A draft's confidence says how many of its tokens are verified."""
    return bool(run.resolved.get("speculative_confidence_threshold"))


def budgeted(cell: Cell, run: Run) -> bool:
    """A budget over the batch says how many drafts are verified."""
    return bool(run.resolved.get("speculative_dspark_verify_mode", "static") != "static")


def tree(cell: Cell, run: Run) -> bool:
    return cell.algorithm != "none" and int(run.resolved.get("topk", 0)) > 1


def must_branch(cell: Cell, run: Run) -> bool:
    """More draft nodes than levels, so some level holds two; a smaller tree, or a user's, may be a chain."""
    wide = run.resolved["num_draft_tokens"] - 1 > run.resolved["num_steps"]
    return tree(cell, run) and wide and cell.own_traits is None


def must_compact(cell: Cell, run: Run) -> bool:
    """In this many rounds some accepted path of two or more drafts leaves the first branch (measured: one in ten).

    An n-gram index that knows a text from earlier cells accepts first branches as a whole: such rounds do not count.
    """
    depth = run.resolved["num_steps"]
    longest = depth if cell.shares_rounds else depth + 1
    rounds = sum(length <= longest for answer in run.answers for length in answer.accept_lengths)
    return must_branch(cell, run) and depth > 1 and rounds >= MIN_ROUNDS


def lags(cell: Cell, run: Run) -> bool:
    return run.resolved.get("lag") == 1


def reads_at_once(cell: Cell, run: Run) -> bool:
    return run.resolved.get("lag") == 0


def splits(cell: Cell, run: Run) -> bool:
    """The uncached part of some prompt is longer than a prefill chunk, which also ends at a state's checkpoints."""
    chunk = _chunk(cell, run)
    return any(len(a.prompt_ids) - a.cached_tokens > chunk for a in run.answers if chunk and a.output_ids)


def _chunk(cell: Cell, run: Run) -> int:
    """The most tokens of a prefill chunk, 0 for any number."""
    sizes = 0 if cell.prefill_chunk == "off" else int(cell.prefill_chunk), run.resolved.get("state_interval") or 0
    return min(filter(None, sizes), default=0)


def chunked(cell: Cell, run: Run) -> bool:
    return _chunk(cell, run) > 0


def mixes(cell: Cell, run: Run) -> bool:
    return bool(run.resolved.get("enable_mixed_chunk"))


def _unit(run: Run) -> int:
    """Tokens that enter the prefix cache at once."""
    return int(run.resolved.get("state_interval") or run.resolved["page_size"])


def widest(run: Run) -> int:
    """Nodes (root included) of the widest possible round, for which memory is reserved."""
    depths = [steps for slot in run.resolved["adaptive_slots"] for steps in slot["candidate_steps"]]
    return int(max(depths) + 1 if depths else run.resolved["num_draft_tokens"])


def two_run(cell: Cell, run: Run) -> bool:
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


def starved(cell: Cell, run: Run) -> bool:
    """Two requests run out of memory; with an abort, one of a pair may end before that unless it is aborted late. With
    logit rules, samples of a high temperature may end while the first two texts still fit; the short first turns of two
    sessions fit if one takes far fewer rounds than the other."""
    late = cell.abort == "none" or aborted_late(cell) or cell.memory == "session_retract"
    starved = cell.memory != "ample" and two_run(cell, run) and (cell.batch in ("mixed_lengths", "burst") or late)
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


def retracts(cell: Cell, run: Run) -> bool:
    """Memory is short, or a request outlives its `retract_after` by more rounds than may be in flight."""
    answers = {answer.name: len(answer.output_ids) - 3 * widest(run) for answer in run.answers}
    told = any(one.retract_after is not None and one.retract_after < answers.get(one.name, 0) for one in run.requests)
    return told or starved(cell, run)


def told_to_retract(cell: Cell, run: Run) -> bool:
    return any(one.retract_after is not None for one in run.requests)


def two_spare(cell: Cell, run: Run) -> bool:
    return two_run(cell, run) and spares(cell.model == "qwen3", int(cell.page_size))


def slides(cell: Cell, run: Run) -> bool:
    """Some text exceeds the window by more than a page and the positions that a rollback may restore."""
    window, page = run.resolved.get("window"), run.resolved["page_size"]
    back = (run.resolved["lag"] + 2) * widest(run)
    lengths = [len(a.prompt_ids) + len(a.output_ids) for a in run.answers if a.finish != "abort"]
    return window is not None and any(length > window + page + back for length in lengths)


def windowless(cell: Cell, run: Run) -> bool:
    return run.resolved.get("window") is None


def uncached(cell: Cell, run: Run) -> bool:
    return cell.prefix_cache == "off" or not run.resolved["radix_cache"]


def caches(cell: Cell, run: Run) -> bool:
    """Some request fills a whole page, which the cache inserts or already has; draft keys need one token more."""
    room = _unit(run) + 2
    whole = any(len(a.prompt_ids) + len(a.output_ids) >= room for a in run.answers if a.finish != "abort")
    # A streaming session caches its first prompt only, which does not fill the largest page.
    small = cell.session != "streaming" or _unit(run) <= 16
    return not uncached(cell, run) and whole and small


def caches_short_prompts(cell: Cell, run: Run) -> bool:
    return not uncached(cell, run) and _unit(run) <= 24


def holds(cell: Cell, run: Run) -> bool:
    """Turns leave KV to their session; of a state, if a checkpoint or, without drafts and overlap, the live one is no
    later than the text."""
    kept = (cell.algorithm, run.resolved["lag"]) == ("none", 0) or cell.state_interval in ("16", "24")
    return cell.session == "streaming" and (cell.model not in HYBRIDS or kept)


def holds_its_start(cell: Cell, run: Run) -> bool:
    """A sliding window may no longer hold a turn's start, a state may be beyond it."""
    kept = cell.model not in HYBRIDS or cell.state_interval == "16"
    return holds(cell, run) and windowless(cell, run) and kept


def waits(cell: Cell, run: Run) -> bool:
    return len(run.requests) > int(cell.slots)


def outgrows(cell: Cell, run: Run) -> bool:
    """The texts exceed memory before the first prompts return."""
    texts = {answer.prompt_ids: len(answer.prompt_ids) + len(answer.output_ids) for answer in run.answers}
    return sum(texts.values()) > cell.memory_tokens and not uncached(cell, run)
