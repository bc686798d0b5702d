"""Streaming-session turns: inherited KV, rollback after an abort, and the history they continue."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

OFF_BY_ONE: Final = "off-by-one length or KV position"
STALE: Final = "stale or un-restored state"
IGNORED: Final = "silent fallback / ignored parameter"

SESSION_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="session-saved-one-short",
        klass=OFF_BY_ONE,
        origin="sglang#22651",
        within="Scheduler.kept",
        old="        keep = request.inherited if undone else min(request.num_tokens, computed)\n",
        new="        keep = request.inherited if undone else min(request.num_tokens - 1, computed)\n",
        expected=("session",),
        cells=("eagle3.s5.v2.p4.pair.stream",),
        why="a session keeps one token's KV too few, which the next turn recomputes",
    ),
    Fault(
        id="session-keeps-half",
        klass=OFF_BY_ONE,
        origin="rule: the inherited count is exact",
        within="Scheduler.kept",
        old="        keep = request.inherited if undone else min(request.num_tokens, computed)\n",
        new="        keep = request.inherited if undone else min(len(request.prompt), computed)\n",
        expected=("session",),
        cells=("none.v1.p4.pair.stream",),
        why="the KV of a turn's answer is dropped, and the next turn prefills it again",
    ),
    Fault(
        id="session-bakes-overshoot",
        klass=OFF_BY_ONE,
        origin="sglang#22897",
        within="Scheduler.kept",
        old="        keep = request.inherited if undone else min(request.num_tokens, computed)\n",
        new="        keep = request.inherited if undone else computed\n",
        expected=("session", "lossless"),
        cells=("eagle3.s5.v2.p4.pair.stream.stop_string",),
        why="KV of tokens accepted after the end of a turn stays in the session",
    ),
    Fault(
        id="rollback-loses-the-span",
        klass=STALE,
        origin="rule: an aborted turn rolls back to exactly what it inherited",
        within="Scheduler.kept",
        old="        keep = request.inherited if undone else min(request.num_tokens, computed)\n",
        new="        keep = request.inherited if undone else min(request.num_tokens, computed)\n"
        "        keep -= self.cache.key_span if undone and keep else 0\n",
        expected=("session",),
        cells=("eagle3.s3.v2.p4.snug.pair.stream.length.abort_running",),
        why="each aborted turn removes the positions that it recomputed from the session's KV",
    ),
    Fault(
        id="span-left-as-it-was",
        klass=STALE,
        origin="sglang#10846 between two turns: draft KV of a token that was never emitted",
        within="StepBatch._slots_at",
        old="        return slots.masked_fill(at >= (self.start + self.lengths)[:, None], 0)\n",
        new="        first = (at == self.start[:, None]) & (at > 0)\n"
        "        return slots.masked_fill((at >= (self.start + self.lengths)[:, None]) | first, 0)\n",
        expected=("ledger",),
        cells=("eagle3.s3.k1.n4.v1.nocache.pair.stream.length",),
        why="a turn reads the previous turn's draft KV at the position that it must recompute",
    ),
    Fault(
        id="aborted-turn-in-history",
        klass=STALE,
        origin="rule: ids roll back to the last good turn",
        within="Session.shown",
        old='        if turn is None or turn.finish is None or turn.finish == Finish("abort"):\n',
        new="        if turn is None or turn.finish is None:\n",
        expected=("session", "lossless"),
        cells=("none.v1.p4.pair.stream.abort_running",),
        why="the next turn continues from the output of an aborted turn",
    ),
    Fault(
        id="begin-token-inside",
        klass=OFF_BY_ONE,
        origin="rule: a leading BOS token is stripped",
        within="Sessions.judge",
        old="            if self.bos_id is not None and new[:1] == (self.bos_id,):\n",
        new="            if False and new[:1] == (self.bos_id,):\n",
        expected=("session", "lossless"),
        cells=("none.pair.branch",),
        why="each turn adds a BOS token in the middle of the history",
    ),
    Fault(
        id="offset-one-long",
        klass=OFF_BY_ONE,
        origin="rule: offset truncates the history to this many tokens",
        within="Sessions._branch",
        old="        return history[: params.offset] if params.offset else history\n",
        new="        return history[: params.offset + 1] if params.offset else history\n",
        expected=("session", "lossless"),
        cells=("none.pair.branch",),
        why="a branch keeps one history token more than its offset",
    ),
    Fault(
        id="branch-keeps-output",
        klass=IGNORED,
        origin="rule: drop_previous_output continues the history without the last outputs",
        within="Sessions._branch",
        old="        history = session.text(params.rid, before.prompt if params.drop_previous_output else None)\n",
        new="        history = session.text(params.rid)\n",
        expected=("session", "lossless"),
        cells=("none.pair.branch",),
        why="a branch with drop_previous_output still continues the previous output",
    ),
    Fault(
        id="replaced-branches-stay",
        klass=STALE,
        origin="rule: replace clears what continues a request",
        within="Sessions.begin",
        old="        if turn.params.replace:\n",
        new="        if turn.params.replace and turn.params.rid is None:\n",
        expected=("session",),
        cells=("none.pair.branch",),
        why="requests cleared by replace can still be continued",
    ),
    Fault(
        id="replaced-requests-run-on",
        klass=STALE,
        origin="rule: replace aborts what continues a request and still runs",
        within="Sessions.begin",
        old="                self.scheduler.abort(rid)\n",
        new="                pass\n",
        expected=("finish",),
        cells=("eagle3.s3.k4.n8.v2.p16.ragged.branch.mixed.stop_token.abort_running",),
        why="a request that was replaced while it ran continues to its end",
    ),
    Fault(
        id="replaced-grandchildren-stay",
        klass=STALE,
        origin="rule: replace also clears what continues a cleared request",
        within="Session.cut",
        old=(
            "            for child in found:  # grows during the loop\n"
            "                found += self.tree[child].children\n"
        ),
        new="            found = [child for child in found if not self.tree[child].children]\n",
        expected=("session",),
        cells=("none.pair.branch",),
        why="a request that was itself continued, and what continues it, outlive a replace",
    ),
)
