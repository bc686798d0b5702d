"""Behavioural counters: what the engine did, as opposed to what was requested.

The `effective` gate reads them. A feature whose counters stay at zero did not run, whatever the engine reported.
"""

from __future__ import annotations

from typing import Final

from specmatrix.errors import LedgerError

COUNTERS: Final[dict[str, str]] = {
    "prefill.step": "a prefill step was launched",
    "prefill.chunked": "a prompt was split over several prefill steps",
    "decode.round": "a verify round was launched",
    "decode.batched": "a verify round held two or more requests",
    "spec.drafted": "draft nodes were proposed (sum over requests)",
    "spec.accepted": "draft nodes were accepted (sum over requests)",
    "spec.full_accept": "a request accepted a whole chain or tree depth",
    "spec.rejected": "a request rejected every draft of a round",
    "spec.shortened": "a row verified only the first nodes of its draft (sum over requests)",
    "spec.undrafted": "a row verified only its root in a round of wider drafts (sum over requests)",
    "tree.branched": "a proposed tree had a node with two children",
    "tree.compacted": "an accepted path was not a dense prefix and was moved",
    "adaptive.activated": "a verify round used the adaptive controller's depth",
    "adaptive.switched_up": "accepted drafts raised the depth of a batch-size slot",
    "adaptive.switched_down": "accepted drafts lowered the depth of a batch-size slot",
    "adaptive.undrafted": "a verify round of an adaptive depth drafted nothing",
    "adaptive.batch_switch": "the batch size alone changed the depth of the next round",
    "overlap.in_flight": "a step was launched while another was unresolved",
    "overlap.dropped": "a round's result was dropped because its request had ended",
    "graph.replayed": "a verify round ran as a CUDA graph",
    "graph.eager": "a verify round ran without a CUDA graph although graphs are enabled",
    "graph.waited": "the host waited for the device during the replay of a CUDA graph (under strict_memory)",
    "rank.step": "a rank published a step's plan before launching it",
    "page.crossed": "a request's reservation grew by a page after its prefill",
    "prefix.hit": "tokens taken from the prefix cache (sum)",
    "prefix.insert": "pages given to the prefix cache (sum)",
    "prefix.duplicate": "a request found its tokens already cached and kept its own pages private",
    "prefix.evict": "pages evicted from the prefix cache (sum)",
    "window.slid": "window pages freed because no later query reads them (sum)",
    "queue.waited": "a request waited for a row or for pages",
    "retract.done": "a running request was retracted",
    "abort.waiting": "a waiting request was aborted",
    "abort.running": "a running request was aborted",
    "finish.stop_token": "a request ended by a stop token or end of sequence",
    "finish.stop_string": "a request ended by a stop string",
    "finish.length": "a request ended by its length limit",
    "finish.context": "a request ended at the last position of the context",
    "finish.overshoot": "tokens were accepted past a finish and dropped",
    "grammar.round": "a verify round held a request with a grammar",
    "grammar.mixed": "a verify round held requests with and without a grammar",
    "grammar.on_device": "a verify round took all masks from token tables on the device",
    "grammar.masked_drafts": "drafts in whose place a mask removed the draft's most likely token (sum)",
    "grammar.forbade": "draft nodes that a grammar refused (sum)",
    "grammar.changed": "tokens where a mask removed the most likely one (sum)",
    "grammar.accepted": "drafts of requests with a grammar that were accepted (sum)",
    "grammar.rejected": "a request with a grammar rejected drafts",
    "grammar.ended_inside": "a grammar ended at a draft, before a round's last accepted token",
    "grammar.began": "the end of a request's reasoning switched its grammar on",
    "grammar.began_inside": "it did so before a round's last accepted token",
    "grammar.stuck": "a request ended because no token was legal",
    "sample.greedy": "tokens chosen by argmax (sum)",
    "sample.random": "tokens drawn at random (sum)",
    "session.opened": "a session was opened",
    "session.inherited": "KV positions that a turn took over from its session (sum)",
    "session.held": "a turn ended and its session kept the KV",
    "session.trimmed": "KV positions past a turn's output, freed at its end (sum)",
    "session.rolled_back": "an aborted turn rolled its session's KV back",
    "session.spared": "a retracted turn left the inherited KV with its session",
    "session.restored": "a retracted turn resumed KV that its session still held",
    "session.dropped": "an idle session's KV was freed for a request that needed the pages",
    "session.refused": "a turn was refused",
    "session.timed_out": "a session was closed because it was idle for too long",
    "stamp.checked": "KV slots whose stamps were compared (sum)",
    "stamp.wrong": "KV slots with the stamp of another request or position (sum)",
}

# Only a GPU run can hit these.
GPU: Final = ("graph.replayed", "graph.eager", "graph.waited")
# Only an engine with several ranks hits these.
RANKS: Final = ("rank.step",)
# Hits of these are defects; every other counter must be hit at least once in a complete nightly run.
ZERO: Final[dict[str, str]] = {
    "graph.waited": "the replay of a CUDA graph must not wait for the device",
    "grammar.stuck": "a grammar of the matrix always leaves a token",
    "stamp.wrong": "a slot with another position's KV was read",
}


class Counters:
    """Counts by counter name. Raises LedgerError on an unknown name, which is a bug."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)

    def hit(self, name: str, by: int = 1) -> None:
        if name not in self.counts:
            raise LedgerError(f"unknown counter {name!r}")
        self.counts[name] += by
