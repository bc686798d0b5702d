"""What a session must refuse, and how it ends: by the clock, while it decodes, or by an abort."""

from typing import Final

from specmatrix.matrix.faults.catalogue.sessions import IGNORED, OFF_BY_ONE, STALE
from specmatrix.matrix.faults.fault import Edit, Fault

LEAK: Final = "KV leak / over-allocation"

CONTENTION_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="streaming-offset-ignored",
        klass=IGNORED,
        origin="rule: a streaming session rejects an offset",
        within="Sessions._line",
        old='            ("offset", params.offset, 0),\n',
        new="",
        expected=("session",),
        cells=("none.v1.p4.pair.stream",),
        why="a turn that asks for a shorter history is answered with the whole one",
    ),
    Fault(
        id="streaming-drop-ignored",
        klass=IGNORED,
        origin="rule: a streaming session rejects drop_previous_output",
        within="Sessions._line",
        old='            ("drop_previous_output", params.drop_previous_output, False),\n',
        new="",
        expected=("session",),
        cells=("none.v1.p4.pair.stream",),
        why="a turn that asks for a history without answers is answered with the whole one",
    ),
    Fault(
        id="streaming-replace-ignored",
        klass=IGNORED,
        origin="rule: a streaming session rejects replace",
        within="Sessions._line",
        old='            ("replace", params.replace, False),\n',
        new="",
        expected=("session",),
        cells=("none.v1.p4.pair.stream",),
        why="a turn that asks to replace the others goes on from them",
    ),
    Fault(
        id="offset-past-the-end",
        klass=OFF_BY_ONE,
        origin="rule: offset truncates the history to this many tokens",
        within="Sessions._branch",
        old="        if not 0 <= params.offset <= len(history):\n",
        new="        if params.offset < 0:\n",
        expected=("session",),
        cells=("none.pair.branch",),
        why="a branch that keeps more tokens than there are keeps them all and says nothing",
    ),
    Fault(
        id="context-unbounded",
        klass=IGNORED,
        origin="rule: prompt and answer fit the context; sglang#22273 (an over-length turn)",
        within="Admission.check",
        old="        if longest > self.context_length:\n",
        new="        if longest > 1000 * self.context_length:\n",
        expected=("session",),
        cells=("none.v1.tight.pair.stream.length",),
        why="a turn that is longer than the context is only measured against the memory",
    ),
    Fault(
        id="context-overshot-by-a-draft",
        klass="off-by-one length or KV position",
        origin="rule: prompt and answer fit the context; sglang#22273 (an over-length turn)",
        within="Admission.check",
        old="        if longest > self.context_length:\n",
        new="        if longest > self.context_length + self.width:\n",
        expected=("session",),
        cells=("eagle3.s3.k4.n8.v2.p16.ctx.pair.stream.length",),
        why="a turn may end as far past the context as a round's drafts reach",
    ),
    Fault(
        id="turn-in-flight-refused-late",
        klass=IGNORED,
        origin="rule: one request in flight, a second is rejected",
        within="Sessions._line",
        old="        if session.turn is not None and session.turn.finish is None:\n",
        new="        if session.turn is not None and session.turn.row:\n",
        expected=("session",),
        cells=("none.p4.pair.stream", "none.v2.p16.ragged.stream"),
        why="a second turn is let in while the first one waits for a row",
    ),
    Fault(
        id="timeout-closes-a-busy-session",
        klass="race / missing stream order",
        origin="sglang#21875 (a close waits for the request in flight)",
        within="Sessions.reap",
        old="            if session.live:\n                session.used = now\n            elif",
        new="            if",
        expected=("session",),
        cells=("none.v1.p4.pair.stream",),
        why="a session whose turn takes longer than its timeout is closed under it",
    ),
    Fault(
        id="timeout-forgotten",
        klass=IGNORED,
        origin="rule: sessions idle for longer than their timeout are closed",
        within="Sessions.reap",
        old="            elif now - session.used > session.timeout:\n",
        new="            elif now - session.used > 1000 * session.timeout:\n",
        expected=("session", "effective"),
        cells=("none.v1.p4.pair.stream",),
        why="idle sessions keep their KV for ever",
    ),
    Fault(
        id="refusal-costs-the-session",
        klass=STALE,
        origin="sglang#22273 (a rejected request does not disturb the slot)",
        within="LLM._judge",
        old='            scheduler.probes.hit("session.refused")\n            raise\n',
        new='            scheduler.probes.hit("session.refused")\n'
        "            left = self.sessions.sessions.get(session.id)\n"
        "            if left is not None and left.account in scheduler.held:\n"
        "                scheduler.held.close(left.account)\n"
        "            raise\n",
        expected=("session",),
        cells=("none.v1.p4.pair.stream",),
        why="a refused turn takes the KV of the turns before it along",
    ),
    Fault(
        id="close-in-flight-leaks",
        klass=LEAK,
        origin="sglang#21875: close during decode",
        within="Sessions._sweep",
        old="            if session.streaming and session.busy():\n                continue\n",
        new="",
        expected=("ledger",),
        cells=("eagle3.s5.v2.p4.pair.stream",),
        why="a session that is closed while it decodes is forgotten before its turn gives the KV back",
    ),
    Fault(
        id="capacity-unbounded",
        klass=IGNORED,
        origin="rule: capacity_of_str_len",
        within="Sessions.judge",
        old="        if length > session.capacity:\n",
        new="        if length > 1000 * session.capacity:\n",
        expected=("session",),
        cells=("none.v1.p4.pair.stream",),
        why="a session takes more text than it was opened for",
    ),
    Fault(
        id="closed-session-opens-itself",
        klass=IGNORED,
        origin="rule: an unknown session is refused",
        within="Sessions._open",
        old="        if session_id not in self.sessions:\n            raise RequestError("
        'f"session {session_id!r} is not open; open it with open_session")\n',
        new="        if session_id not in self.sessions:\n            self.open(99_999, session_id, True, None, 0.0)\n",
        expected=("session",),
        cells=("none.v1.p4.pair.stream",),
        why="a turn of a session that is gone begins a new one without its history",
    ),
    Fault(
        id="branch-of-the-unfinished",
        klass=STALE,
        origin="rule: rid names a finished request",
        within="Sessions._branch",
        old="        if before.request is not None and before.request.finish is None:\n",
        new="        if before.request is not None and before.request.finish is None and before.request.holds:\n",
        expected=("session",),
        cells=("none.pair.branch",),
        why="a branch continues what a running request has said so far",
    ),
    Fault(
        id="session-keeps-aborted-turn",
        klass=OFF_BY_ONE,
        origin="rule: an aborted turn rolls back to the last good one",
        within="Scheduler._kept",
        old="        keep = request.inherited if undone else min(request.num_tokens, computed)\n",
        new="        more = request.inherited and request.inherited + 2\n"
        "        keep = min(more if undone else request.num_tokens, computed)\n",
        expected=("session",),
        cells=("none.v1.p4.pair.stream.abort_running",),
        why="two positions of an aborted turn stay in the session, and the next one answers from them",
    ),
    Fault(
        id="held-pages-evicted",
        klass="prefix-cache semantics under EAGLE",
        origin="rule: the first turn's lock on the tree stays with the session",
        within="Ledger.hold",
        old="        account.committed = keep\n        account.held = True\n",
        new="        account.committed = keep\n        account.held = True\n"
        "        for page in account.pages[: account.shared]:\n            self.pins[page] -= 1\n",
        also=(
            Edit(
                "Ledger.resume",
                "        account.committed = start\n        account.held = False\n",
                "        account.committed = start\n        account.held = False\n"
                "        for page in account.pages[: account.shared]:\n"
                "            self.pins[page] = self.pins.get(page, 0) + 1\n",
            ),
            Edit(
                "Ledger.close",
                "            self.pins[page] -= 1\n        for page in reversed(account.pages[account.shared :]):\n",
                "            self.pins[page] = self.pins.get(page, 1) - (not account.held)\n"
                "        for page in reversed(account.pages[account.shared :]):\n",
            ),
            Edit(
                "HeldAccounts.droppable", "if n == self.ledger.pins[page] and", "if n == self.ledger.pins.get(page) and"
            ),
            Edit("Scheduler.check", "        self.ledger.check()\n", ""),
        ),
        expected=("ledger",),
        cells=("none.v1.p16.c7.tight.burst.stream.topk_topp",),
        why="without its guards the ledger frees cached pages that a session holds between two turns",
    ),
)
