"""Lengths, relay rows and rounds in flight: the state that one step leaves for the next."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

STALE: Final = "stale or un-restored state"
RACE: Final = "race / missing stream order"
OFF_BY_ONE: Final = "off-by-one length or KV position"

TIMING_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="reserve-forgets-flight",
        klass=OFF_BY_ONE,
        origin="sglang#23336",
        within="Ledger._growth",
        old="        end = account.committed + account.flying + width\n",
        new="        end = account.committed + width\n",
        expected=("ledger", "lossless"),
        cells=("standalone.ragged",),
        why="with the check removed, pages are reserved after the committed tokens, not after rounds in flight",
        also=(
            Edit(
                "Ledger.launch",
                " or bound > len(account.pages) * self.page_size:\n",
                ":\n",
            ),
            Edit(
                "Account.check",
                "        if not protected <= self.committed <= self.committed + self.flying <= reserved:\n",
                "        if not protected <= self.committed:\n",
            ),
        ),
    ),
    Fault(
        id="length-one-late",
        klass=OFF_BY_ONE,
        origin="sglang#22651",
        within="DeviceStep._round",
        old="        self._relay(batch, batch.start + verdict.count, bonus, state)\n",
        new="        self._relay(batch, batch.start + verdict.count - (verdict.count > 1).long(), bonus, state)\n",
        expected=("lossless",),
        cells=("eagle3.s5.v2.p4.ragged",),
        why="the published length is one short after accepted drafts, so the last accepted token's KV is lost",
    ),
    Fault(
        id="stale-sampling-row",
        klass=STALE,
        origin="sglang#18744",
        within="Relay.admit",
        old="        new = [(row.row, *row.admit) for row in rows if row.admit is not None]\n",
        new=(
            "        new = [\n"
            "            (row.row, *row.admit) for row in rows\n"
            "            if row.admit is not None and not self.length[row.row]\n"
            "        ]\n"
        ),
        expected=("lossless",),
        cells=(
            "none.v2.p4.c7.m4.burst.mixed",
            "eagle3.s5.v2.m4.burst.mixed",
        ),
        why="a reused row keeps the previous request's sampling parameters and seed",
    ),
    Fault(
        id="stale-draft-state",
        klass=STALE,
        origin="sglang#9976, vllm#14649",
        within="DeviceStep._round",
        old="        self._relay(batch, batch.start + verdict.count, bonus, state)\n",
        new="        self._relay(batch, batch.start + verdict.count, bonus, None)\n",
        expected=("acceptance",),
        cells=(
            "eagle3.s5.v2.p4.ragged",
            "standalone.pair",
        ),
        why="the draft state after a round is not written to the relay, so each round starts from the prompt's",
    ),
    Fault(
        id="release-before-drained",
        klass=RACE,
        origin="sglang#21875, sglang#18803",
        within="Scheduler.release_drained",
        old="            if request.phase is Phase.DRAINING and not self._account(request).in_flight:\n",
        new=(
            "            if request.phase is Phase.DRAINING:\n"
            "                self._account(request).in_flight.clear()\n"
        ),
        expected=("ledger",),
        cells=(
            "eagle3.s5.v2.p4.ragged",
            "eagle3.s3.k2.n6.v2.p64.nocache.ragged.abort_running",
        ),
        why="a stopped request frees its pages while a round in flight still writes to them",
        also=(
            Edit(
                "Scheduler.settle",
                "        self.ledger.settle(row.account, written)\n",
                "        account = self.ledger.accounts.get(row.account)\n"
                "        if account is None or not account.in_flight:\n"
                "            return\n"
                "        self.ledger.settle(row.account, written)\n",
            ),
        ),
    ),
    Fault(
        id="stale-result-counted",
        klass=STALE,
        origin="sglang#23456",
        within="Loop._resolve_row",
        old="            return request, RowOutcome.DROPPED, 0, None\n",
        new=(
            "            if not plan.prefill:\n"
            "                request.metrics.count(count, row.width)\n"
            "            return request, RowOutcome.DROPPED, 0, None\n"
        ),
        expected=("finish",),
        cells=("eagle3.s5.v2.p4.ragged",),
        why="the round in flight when a request ends is counted in the request's metrics",
    ),
    Fault(
        id="drafter-waits-for-device",
        klass="race / missing stream order",
        origin="sglang#28034",
        within="AutoregressiveDrafter.propose",
        old="        reach = batch.reach - batch.width\n",
        new="        reach = batch.reach - batch.width\n        int(batch.root[0, 0])\n",
        expected=("effective",),
        cells=("eagle3.s3.k4.n8.v2.p16.ragged.temperature",),
        why="a drafter that declares no host read synchronises with the device during a launch",
    ),
)
