"""KV pages: leaked, missing from the journal, wrongly shared, or written by the wrong request."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

LEAK: Final = "KV leak / over-allocation"
PREFIX: Final = "prefix-cache semantics under EAGLE"
CLOSE: Final = "        self.ledger.close(request.account)\n"

# The engine's own check would raise before a gate runs.
UNCHECKED: Final = Edit(
    "Loop._turn",
    "        if self.strict_memory:\n            self.scheduler.check()\n",
    "",
)
# The engine would run requests with NaN logits once more, in pages filled with zeros, and then end them.
UNSEEN: Final = Edit("DeviceStep.read", "not output.finite.all()", "False")

FREED: Final = (
    "            self.free.append(page)\n        if self.window is not None:\n            self.window.close(rid)\n"
)

# The scheduler compares accounts under strict_memory; without that, the page is left for the gates to find.
UNCOUNTED: Final = Edit(
    "SessionKV.check", "        if accounts != sorted(self.ledger.accounts):\n", "        if False:\n"
)

MEMORY_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="abort-leaks-pages",
        klass=LEAK,
        origin="sglang#21875, incident sglang#22651",
        within="Scheduler._give_back",
        old=CLOSE,
        new=(
            '        if request.finish is None or request.finish.reason != "abort":\n'
            "            self.ledger.close(request.account)\n"
        ),
        expected=("ledger",),
        cells=("eagle3.s3.k2.n6.v2.p64.nocache.ragged.abort_running",),
        why="the pages of a request aborted while running are never freed",
        also=(UNCOUNTED,),
    ),
    Fault(
        id="retract-leaks-page",
        klass=LEAK,
        origin="sglang#31616, sglang#22862",
        within="Scheduler._give_back",
        old=CLOSE,
        new=(
            CLOSE + "        if request.retracting:\n"
            "            orphan = request.account + 1_000_000 * (request.retractions + 1)\n"
            "            self.ledger.open(orphan)\n"
            "            self.ledger.reserve(orphan, 1)\n"
        ),
        expected=("ledger",),
        cells=("none.v1.nocache.c7.tight.pair",),
        why="each retraction leaks one page",
        also=(UNCOUNTED,),
    ),
    Fault(
        id="finish-leaks-page",
        klass=LEAK,
        origin="sglang#31616: page above 1 and a chain",
        within="Scheduler._give_back",
        old=CLOSE,
        new=(
            CLOSE + "        if self.ledger.page_size > 1 and request.finish:\n"
            "            self.ledger.open(request.account + 1_000_000)\n"
            "            self.ledger.reserve(request.account + 1_000_000, 1)\n"
        ),
        expected=("ledger",),
        cells=("standalone.s3.v2.p64.c32.pair",),
        why="with page_size above 1, each finished request leaks one page",
        also=(UNCOUNTED,),
    ),
    Fault(
        id="evict-unjournalled",
        klass=LEAK,
        origin="sglang#34870: eviction and accounts disagree",
        within="Ledger.evict",
        old='        self._record("evict", 0, (page,))\n',
        new="",
        expected=("ledger",),
        cells=("standalone.s1.k1.v2.p4.tight.burst",),
        why="evictions are missing from the journal, so the audit loses track of the pages",
    ),
    Fault(
        id="stamps-unchecked",
        klass="the test itself",
        origin="sglang#27228: the busy check was off where it was needed",
        within="StampedGroups.begin",
        old="        return kv._replace(stamps=torch.stack((reduce(add, checked), reduce(add, wrong))))\n",
        new="        return kv\n",
        expected=("ledger",),
        cells=("standalone.pair",),
        why="the device's page tables are never checked against the ledger",
    ),
    Fault(
        id="padding-written",
        klass="CUDA-graph capture, padding, buffer size",
        origin="sglang#10892",
        within="StepBatch._slots_at",
        old="        return slots.masked_fill(at >= (self.start + self.lengths)[:, None], 0)\n",
        new="        return slots\n",
        expected=("lossless", "ledger"),
        cells=(
            "standalone.s5.k1.n6.v1.p64.c32.tight.m4.burst.mixed.stop_string.abort_queued",
            "none.sync.p64.nocache.c32.tight.m4.burst.temperature.length.abort_queued",
            "standalone.s3.k4.n16.sync.p4.c32.tight.m4.ragged.mixed.length.abort_queued",
        ),
        why="padding of a short prompt is written through a stale page table into other requests' pages",
    ),
    Fault(
        id="page-key-short",
        klass=PREFIX,
        origin="vllm#48375, sglang#19570",
        within="PrefixCache._key",
        old="        return tuple(tokens[index * size : (index + 1) * size + self.key_span])\n",
        new="        return tuple(tokens[index * size : index * size + 1])\n",
        expected=("lossless",),
        cells=(
            "none.v2.p4.c7.m4.burst",
            "standalone.s1.k1.v1.p4.c32.m4.burst",
        ),
        why="a page is shared if its first token matches, whatever follows",
    ),
    Fault(
        id="retract-drops-output",
        klass="stale or un-restored state",
        origin="sglang#18984",
        within="Scheduler._release",
        old="            request.retractions += 1\n",
        new="            request.retractions += 1\n            del request.output[-1:]\n",
        expected=("finish", "lossless"),
        cells=(
            "none.v1.nocache.c7.tight.pair",
            "standalone.s1.k1.v2.p4.tight.pair",
        ),
        why="a retracted request loses its last token, generates it again, and returns its text twice",
    ),
    Fault(
        id="retract-unmarked",
        klass="stale or un-restored state",
        origin="sglang#24055 review: drift after retraction",
        within="Scheduler.retract",
        old='        self.counters.hit("retract.done")\n',
        new="",
        expected=("effective",),
        cells=("none.v1.nocache.c7.tight.pair",),
        why="retractions are not counted",
    ),
    Fault(
        id="cache-never-fed",
        klass="silent fallback / ignored parameter",
        origin="sglang#32459, vllm#44082",
        within="PrefixCache.insert",
        old="        if not self.enabled:\n            return 0\n",
        new="        if not self.enabled or self.key_span:\n            return 0\n",
        expected=("effective",),
        cells=("standalone.ragged",),
        why="with a drafter nothing is inserted into the prefix cache, which is reported as enabled",
    ),
    Fault(
        id="compaction-unmarked",
        klass="silent fallback / ignored parameter",
        origin="sglang#32459: a code path without a usage counter",
        within="StepCounter._count_drafts",
        old='        self._hit("tree.compacted", sum([result.moved[row] for row in rows]))\n',
        new="",
        expected=("effective",),
        cells=("eagle3.s3.k4.n8.v2.p16.burst.mixed.length",),
        why="compactions of accepted tree paths are not counted",
    ),
    Fault(
        id="cached-tokens-of-the-last-admission",
        klass="stale or un-restored state",
        origin="rule: cached_tokens are those of the first admission",
        within="Admission.open",
        old="        if not request.retractions:\n            request.cached_tokens = request.prefilled\n",
        new="        request.cached_tokens = request.prefilled\n",
        expected=("ledger",),
        cells=("standalone.s1.k1.v2.p4.tight.pair",),
        why="a retracted request counts its own tokens as cached, more than its prompt has",
    ),
    Fault(
        id="cached-tokens-with-the-span",
        klass="off-by-one length or KV position",
        origin="rule: recomputed positions of a turn are not cached",
        within="Admission.open",
        old="            request.cached_tokens = request.prefilled\n",
        new="            request.cached_tokens = request.inherited or request.prefilled\n",
        expected=("ledger",),
        cells=("eagle3.s3.v2.p4.snug.pair.stream.length.abort_running",),
        why="a turn counts the positions that it recomputed as cached",
    ),
    Fault(
        id="page-freed-twice",
        klass=LEAK,
        origin="rule: double free",
        within="Ledger.close",
        old=FREED,
        new=FREED.replace("append(page)", "extend((page, page))"),
        expected=("ledger",),
        cells=("standalone.s1.k4.n4.sync.p64.nocache.tight.m4.burst.abort_running",),
        why="every private page of a closed account enters the free list twice, so two requests write to one page",
        also=(UNCHECKED,),
    ),
    Fault(
        id="replay-without-windows",
        klass="sliding-window pool / eviction",
        origin="rule: a journal replays as it was recorded",
        within="replay",
        old="num_pages, page_size, window=Window(*numbers))\n",
        new="num_pages, page_size)\n",
        expected=("ledger",),
        cells=("eagle3.qwen3.s3.pair",),
        why="the engine's own audit of a journal lacks the page pool of the windowed layers",
    ),
    Fault(
        id="replay-resumes-nothing",
        klass="stale or un-restored state",
        origin="rule: a journal replays as it was recorded",
        within="replay",
        old="            ledger.resume(rid, numbers[0])\n",
        new="            pass\n",
        expected=("ledger",),
        cells=("nextn.deepseek.s2.v2.p4.pair.stream",),
        why="the engine's own audit of a journal leaves sessions idle while their turns run",
    ),
)
