"""sglang#22651, #28754: a streaming session on v2 saved one token short, the pre-claim, and the later design."""

from typing import Final

from specmatrix.matrix.faults.patch import Edit
from specmatrix.matrix.incidents.incident import CodeState, ComparedStep, Expected, Incident, each

# A round's bonus token is counted when the next round is resolved; a request that ends in between misses it.
LATE: Final = CodeState(
    "bonus counted one round late",
    (
        Edit(
            "Scheduler.__init__",
            "        self.held = SessionKV(ledger, counters)\n",
            "        self.held = SessionKV(ledger, counters)\n        self.late: dict[int, int] = {}\n",
        ),
        Edit(
            "Scheduler.finish",
            "        request.move(Phase.DRAINING)\n",
            "        self.late[request.rid] = min(1, len(self._account(request).in_flight))\n"
            "        request.move(Phase.DRAINING)\n",
        ),
        Edit(
            "Scheduler.kv_to_keep",
            "        keep = request.inherited if undone else min(request.num_tokens, computed)\n",
            "        late = self.late.pop(request.rid, 0)\n"
            "        keep = request.inherited if undone else min(request.num_tokens - late, computed)\n",
        ),
    ),
)
# A round claims its bonus token when it is launched, and adds the accepted drafts when it is resolved.
PRECLAIMED: Final = CodeState(
    "bonus claimed at launch",
    (
        Edit(
            "Account.in_flight",
            "in_flight: deque[int] = field(default_factory=deque)",
            "claims: deque[int] = field(default_factory=deque)\n"
            "    in_flight: deque[int] = field(default_factory=deque)",
        ),
        Edit("Scheduler._round_row", "launch(request.account, width)", "launch(request.account, width, 1)"),
        Edit("Ledger.launch", "rid: int, width: int)", "rid: int, width: int, claim: int = 0)"),
        Edit(
            "Ledger.launch",
            "        account.in_flight.append(width)\n",
            "        account.in_flight.append(width - claim)\n"
            "        account.claims.append(claim)\n"
            "        account.committed += claim\n",
        ),
        Edit(
            "Ledger.settle",
            "        width = account.in_flight[0]\n",
            "        claim = account.claims.popleft()\n        width = account.in_flight[0] + claim\n",
        ),
        Edit("Ledger.settle", "account.committed += accepted\n", "account.committed += accepted - claim\n"),
        Edit(
            "Ledger.cancel",
            "        width = account.in_flight.pop()\n",
            "        claim = account.claims.pop()\n"
            "        account.committed -= claim\n"
            "        width = account.in_flight.pop() + claim\n",
        ),
    ),
)
TODAY: Final = CodeState("the session's length is assigned")
# Finished inside an accepted run, by its length and by a stop token; pages of 1, 4 and 16; a sliding window.
SESSIONS: Final = (
    "none.{}.p4.stream",
    "none.{}.stream.length",
    "none.qwen3.{}.nocache.stream",
    "eagle3.s3.{}.p4.stream",
    "eagle3.s3.{}.p4.stream.stop_token",
    "eagle3.s3.k4.n8.{}.p16.stream",
)
LAG_0: Final = tuple(cell.format("v1") for cell in SESSIONS)
LAG_1: Final = tuple(cell.format("v2") for cell in SESSIONS)
# Two sessions share the prefix cache.
SHARED: Final = "none.v2.p4.pair.stream"
WITHOUT: Final = ("eagle3.s3.v2.p4",)
SOME: Final = (LAG_0[0], LAG_1[0], LAG_1[3], SHARED)

INCIDENT: Final = Incident(
    name="session-inheritance",
    origins=("sglang#22651", "sglang#28754"),
    question="Does the next turn of a session inherit exactly the KV of the tokens that the user saw, on v1 and v2?",
    steps=(
        ComparedStep(
            name="late",
            story="The bonus token is counted one round late, so a request that ends in between saves its session one "
            "token short.",
            base=TODAY,
            head=LATE,
            cells=(*LAG_0, *LAG_1, SHARED, *WITHOUT),
            expected=Expected(
                "red",
                cells=each("REGRESSED: work, session", *LAG_1, SHARED),
                factor="spec_version=v2 x session=streaming",
                says=("q5 left 101 KV positions; expected 102: its session is 1 token too short",),
            ),
        ),
        ComparedStep(
            name="pre-claim",
            story="The bonus token's slot is claimed when its round is launched, and accepted - 1 is added when it is "
            "resolved. Sessions are right, but every other reader of the committed length now sees one token too many.",
            base=LATE,
            head=PRECLAIMED,
            cells=SOME,
            expected=Expected("red", cells=each("IMPROVED", *SOME[1:3]) | each("REGRESSED: ledger", SHARED)),
        ),
        ComparedStep(
            name="assigned",
            story="The pre-claim is gone; the session's length is assigned when the request ends.",
            base=PRECLAIMED,
            head=TODAY,
            cells=SOME,
            expected=Expected("green", cells=each("IMPROVED", SHARED)),
        ),
    ),
)
