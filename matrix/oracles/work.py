"""A second scheduler: predicts every step that a workload needs, and compares it with the journal.

Its inputs are when requests were sent and aborted, how many tokens each round accepted, and the engine's sizes. They
determine, step by step: which requests are admitted, retracted and prefilled again, in which order; which cached pages
are reused and evicted; how many positions are computed and reserved. Page numbers are the engine's choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from specmatrix.errors import described
from specmatrix.matrix.oracles.needed_work import (
    KVRow,
    Launched,
    NeededStep,
    PlannedRequest,
    Sizes,
    WorkDone,
    WorkMismatch,
)
from specmatrix.matrix.oracles.page_trie import PageTrie
from specmatrix.matrix.subjects.observations import Moment, SentRequest
from specmatrix.matrix.subjects.protocol import Journal, JournalEntry

EVERYTHING: Final = 1 << 60


class WorkReplay:
    """Replays a journal from the engine's start. outputs: prompt and output of each answered request; names: of
    requests, in messages; both by request id. An aborted request ends when it is aborted, any other with its output."""

    def __init__(
        self,
        journal: Journal,
        sizes: Sizes,
        sent: Mapping[int, SentRequest],
        outputs: Mapping[int, tuple[int, ...]],
        names: Mapping[int, str],
    ) -> None:
        self.journal = journal
        self.sizes, self.sent, self.outputs, self.names = sizes, sent, outputs, names
        self.at = 1  # the first entry is the header
        self.done = WorkDone()
        self.trie = PageTrie(sizes.page * sizes.unit, sizes.span)
        self.rows: dict[int, KVRow] = {}
        self.held: dict[int, None] = {}  # idle accounts, the longest idle first
        self.ending: set[int] = set()
        self.waiting: list[PlannedRequest] = []
        self.active: list[PlannedRequest] = []
        self.requests: dict[int, PlannedRequest] = {}
        self.unread: deque[set[int]] = deque()  # of each step in flight, the identities of its rows that are

    def run(self, moments: Sequence[Moment]) -> WorkDone:
        """Replay the journal and return the totals. WorkMismatch at the first deviation."""
        try:
            return self._run(moments)
        except (LookupError, ValueError) as error:  # an entry of an account or a page that cannot be there
            text = f"step {len(self.done.steps)}: the journal cannot be followed at entry {self.at}: {described(error)}"
            raise WorkMismatch(text) from error

    def _run(self, moments: Sequence[Moment]) -> WorkDone:
        effective = {moment.id for moment in moments if moment.what == "abort"}
        ends = [moment.at for moment in moments[1:]] + [EVERYTHING]
        for moment, end in zip(moments, ends, strict=True):
            due = len(self.unread)
            if moment.what == "send":
                self._send(self.sent[moment.id], moment.id in effective)
            elif moment.what == "abort":
                self._abort(self.requests[moment.id])
            elif moment.what == "retract":
                self._retract(self.requests[moment.id])
            elif moment.what == "end":
                self.ending.add(moment.id)
            elif moment.what == "flush":
                self._flush()
            else:
                due = self._step()
            self._resolve(end)
            if len(self.unread) != due:
                text = f"step {len(self.done.steps)}: {due} launched steps must stay unread; got {len(self.unread)}"
                raise WorkMismatch(text)
        return self.done

    def _step(self) -> int:
        """Launch a step. The number of steps that are in flight once results were read: as many as the lag allows, none
        if no request can run."""
        before, step = len(self.unread), self._plan()
        self.done.steps.append(step)
        if not step.rows:
            return 0
        self.done.overlapped += before > 0
        self.unread.append({id(row) for row in step.rows})
        return min(before + 1, self.sizes.lag)

    # Actions of the workload.

    def _send(self, sent: SentRequest, aborted: bool) -> None:
        tokens = self.outputs.get(sent.id, sent.prompt)
        final = EVERYTHING if aborted else len(tokens) - len(sent.prompt)
        self.waiting.append(PlannedRequest(sent, self.names.get(sent.id, f"request {sent.id}"), tokens, final))
        self.requests[sent.id] = self.waiting[-1]

    def _abort(self, request: PlannedRequest) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
        elif request.running or request.retracting:
            request.running, request.draining, request.retracting, request.aborted = False, True, False, True

    def _flush(self) -> None:
        """Free every cached page, leaves first."""
        while self.trie.size:
            operation, account, _, pages = self._peek()
            leaves = self.trie.oldest(self._pinned(list(self.rows.values())))
            if (operation, account) != ("evict", 0) or pages[0][0] not in leaves:
                raise self._wrong(f"the cache is emptied of {self.trie.size * self.sizes.unit} more pages")
            self.at += 1
            self.trie.remove(pages[0][0])

    # Launches.

    def _plan(self) -> NeededStep:
        running = [request for request in self.active if request.decoding] if self.sizes.mixed else []
        rows = self._prefill()
        rows += self._mixed(running) if rows else []
        scored = any(self.requests[row.request].unscored is not None for row in rows)
        if rows:
            return NeededStep(True, tuple(rows), max(row.width for row in rows), scored)
        width, rounds = self._rounds()
        return NeededStep(False, tuple(rounds), width)

    def _prefill(self) -> list[Launched]:
        budget = EVERYTHING if self.sizes.chunk is None else self.sizes.chunk
        rows: list[Launched] = []
        for request in list(self.active):
            take = min(budget, self._chunk_end(request) - request.prefilled)
            if request.running and take and self._room(request, take):
                rows.append(self._chunk(request, take))
                budget -= take
        while budget and self.waiting and len(self.active) < self.sizes.rows and self._fits(self.waiting[0]):
            request = self.waiting.pop(0)
            self._admit(request)
            rows.append(self._chunk(request, take := min(budget, self._chunk_end(request) - request.prefilled)))
            budget -= take
        return rows

    def _mixed(self, running: Sequence[PlannedRequest]) -> list[Launched]:
        """Each running request is advanced by one token, if there is room without a retraction."""
        rows = []
        for request in running:
            if request.decoding and self._most(request) and self._reclaim(request, 1):
                self._reserve(request, 1)
                rows.append(self._launch(request, 1, prefill=False))
        return rows

    def _chunk_end(self, request: PlannedRequest) -> int:
        """Where its next chunk ends at the latest: at its prompt's end, or at a checkpoint of its state."""
        interval = self.sizes.interval or request.target
        return min(request.target, (request.prefilled // interval + 1) * interval)

    def _chunk(self, request: PlannedRequest, take: int) -> Launched:
        self._reserve(request, take)
        request.prefilled += take
        self.done.computed += take
        return self._launch(request, take, prefill=True)

    def _rounds(self) -> tuple[int, list[Launched]]:
        """Every request with its prompt in KV takes part that the steps in flight do not end, with room for the widest
        round; all have one width, unless what is left of a length is less."""
        ready = []
        for request in list(self.active):
            most = self._most(request) if request.decoding else 0
            if most and self._room(request, most):
                self._reserve(request, most)
                ready.append((request, most))
        width = self.sizes.width
        if ready and not self.sizes.branches and self._peek()[0] == "launch":
            width = self._peek()[2]
        return width, [self._launch(request, min(width, most), prefill=False) for request, most in ready]

    def _most(self, request: PlannedRequest) -> int:
        """Nodes of a row: of the widest round, or those whose tokens still fit after one from each step in flight; none
        if these end it."""
        width, branches = self.sizes.width, self.sizes.branches
        left = request.sent.new_tokens - request.out - len(self._row(request).flights)
        if left <= 0:
            return 0
        if not branches:
            return width
        nodes: int = sum(branches**depth for depth in range(min(left, width)))
        return min(width, nodes)

    def _reserve(self, request: PlannedRequest, width: int) -> None:
        row = self._row(request)
        expected = f"{width} positions of {request.name} are reserved"
        positions, added = self._take("reserve", request.sent.account, expected, request)
        if positions != width:
            raise self._wrong(expected, f"{positions}", request)
        row.own += len(added)
        self.done.held = max(self.done.held, self.sizes.pages - self._free)

    def _launch(self, request: PlannedRequest, width: int, prefill: bool) -> Launched:
        kind = "a prompt chunk" if prefill else "a round"
        expected = f"{kind} of {request.name} with {width} positions is launched"
        positions, _ = self._take("launch", request.sent.account, expected, request)
        if positions != width:
            raise self._wrong(expected, f"{positions} positions", request)
        row = self._row(request)
        launched = Launched(request.sent.id, width, row.end + width)
        row.flights.append((request, prefill, launched))
        return launched

    # Memory.

    @property
    def _free(self) -> int:
        return self.sizes.pages - sum(row.own for row in self.rows.values()) - self.trie.size * self.sizes.unit

    def _states(self, row: KVRow) -> int:
        """Private states of an account."""
        return -(-row.pages * self.sizes.page // self.sizes.interval) - len(row.shared)

    def _pinned(self, rows: Sequence[KVRow]) -> set[int]:
        return {page for row in rows for page in row.shared}

    def _fits(self, request: PlannedRequest) -> bool:
        """Whether its tokens and rounds fit beside the running requests', if idle sessions and the cache freed all of
        their pages."""
        account = request.sent.account
        if any(other.retracting for other in self.active) or not self._windows_fit(request):
            return False
        if account in self.rows and account not in self.held:
            return False  # its session's turn before it still has its pages
        mine = self.rows.get(account)
        shared = self._match(request) if mine is None else mine.shared
        busy = [row for number, row in self.rows.items() if number not in self.held or number == account]
        used = len(self._pinned(busy) | set(shared))
        own = KVRow(shared, self.sizes.unit) if mine is None else mine
        running = [(self._row(other), other.target) for other in self.active if other.running]
        growth = self._pages(request.known) - own.pages
        growth += sum(max(0, self._pages(max(row.committed, target)) - row.pages) for row, target in running)
        if used * self.sizes.unit + sum(row.own for row in busy) + growth > self.sizes.pages:
            return False
        if not self.sizes.interval:
            return True
        growth = self._intervals(request.known) - self._states(own) - len(shared)
        for row, target in running:
            more = self._intervals(max(row.committed, target)) - self._states(row) - len(row.shared)
            growth += max(0, more)
        return used + sum(map(self._states, busy)) + growth <= self.sizes.states

    def _intervals(self, length: int) -> int:
        """States for a text with the rounds that may be in flight after it."""
        return -(-(length + self.sizes.overrun) // self.sizes.interval)

    def _pages(self, length: int) -> int:
        """Pages for a text with the rounds that may be in flight after it."""
        return -(-(length + self.sizes.overrun) // self.sizes.page)

    def _windows_fit(self, request: PlannedRequest) -> bool:
        """Whether every request could hold the most window pages that it can ever need."""
        if self.sizes.window is None:
            return True
        tokens, pages = self.sizes.window
        return sum(self._window_peak(one, tokens) for one in (*self.active, request)) <= pages

    def _window_peak(self, request: PlannedRequest, tokens: int) -> int:
        """The most window pages that a request can need at once."""
        sizes, longest = self.sizes, len(request.sent.prompt) + request.sent.new_tokens + self.sizes.overrun
        step = max(sizes.width, longest if sizes.chunk is None else sizes.chunk)
        live = tokens + sizes.overrun + (sizes.lag + 1) * step
        return min(-(-longest // sizes.page), -(-live // sizes.page) + 1)

    def _match(self, request: PlannedRequest) -> list[int]:
        return self.trie.match(request.readable) if self.sizes.caches else []

    def _admit(self, request: PlannedRequest) -> None:
        account, name = request.sent.account, request.name
        if account in self.held:
            again, _ = self._take("resume", account, f"{name} resumes its session", request)
            row = self.rows[account]
            del self.held[account]
            request.inherited = row.committed
            span = 0 if self.sizes.interval else self.sizes.span
            most = min(span, row.committed - len(row.shared) * self.sizes.page)
            if again != most and self.sizes.window is None:
                raise self._wrong(f"{name} computes {most} positions of its session again", f"{again}", request)
            row.committed -= again
        else:
            shared = self._match(request)
            _, found = self._take("open", account, f"{name} is admitted", request)
            row = KVRow(shared, unit := self.sizes.unit)
            row.committed = row.pages * self.sizes.page
            if found[::unit] != tuple(shared) or len(found) != row.pages:
                expected = f"{name} reuses {row.committed} cached tokens"
                raise self._wrong(expected, f"{len(found) * self.sizes.page}", request)
            self.rows[account] = row
            request.inherited = 0
        self.done.reused += row.committed
        request.running, request.prefilled, request.target = True, row.committed, request.known
        self._reclaim(request, request.known + self.sizes.width - row.committed)
        while self.sizes.window is not None and self._peek()[0] == "close" and self._peek()[1] in self.held:
            self._drop(request)  # this makes room for window pages
        self.active = sorted([*self.active, request], key=lambda one: one.sent.id)

    def _room(self, request: PlannedRequest, width: int) -> bool:
        """Make room for a step, by retracting the youngest if nothing else helps. False if it cannot take part."""
        while not self._reclaim(request, width):
            if any(other.draining for other in self.active):
                return False
            victim = max((other for other in self.active if other.running), key=lambda other: other.sent.id)
            self._retract(victim)
            if victim is request or victim.draining:
                return False
        return True

    def _reclaim(self, request: PlannedRequest, width: int) -> bool:
        """Free pages for a step: unused cached ones, the least recently used first, then those of idle sessions."""
        row, unit = self._row(request), self.sizes.unit
        while (short := max(-(-self._short(row, width) // unit), self._short_states(row, width))) > 0:
            pinned = self._pinned(list(self.rows.values()))
            for _ in range(short):
                leaves = self.trie.oldest(pinned)
                if not leaves:
                    break
                _, gone = self._take("evict", 0, f"a page is evicted for {request.name}", request)
                if gone[0] not in leaves or len(gone) != unit:
                    expected = f"the page evicted for {request.name} is a least recently used one"
                    raise self._wrong(expected, "another", request)
                self.trie.remove(gone[0])
                self.done.evicted += unit
            else:
                continue
            if not self._drop(request):
                return False
        return True

    def _short(self, row: KVRow, width: int) -> int:
        """Pages missing for a step of `width` positions."""
        return -(-(row.end + width) // self.sizes.page) - row.pages - self._free

    def _short_states(self, row: KVRow, width: int) -> int:
        """States missing for it."""
        if not self.sizes.interval:
            return 0
        free = self.sizes.states - sum(map(self._states, self.rows.values())) - self.trie.size
        return -(-(row.end + width) // self.sizes.interval) - self._states(row) - len(row.shared) - free

    def _drop(self, request: PlannedRequest) -> bool:
        """Close the session idle for longest; those with a queued turn come last, in reverse queue order."""
        queued = [one.sent.account for one in self.waiting]
        idle = [account for account in self.held if account != request.sent.account and account not in queued]
        others = [account for account in reversed(queued) if account != request.sent.account and account in self.held]
        for account in [*idle, *others][:1]:
            self._take("close", account, f"session account {account} is closed for {request.name}", request)
            del self.rows[account], self.held[account]
            self.done.dropped += 1
            return True
        return False

    def _retract(self, victim: PlannedRequest) -> None:
        self.done.retracted += 1
        victim.running, victim.draining, victim.retracting = False, True, True
        if not self._row(victim).flights:
            operation = self._peek()[0]
            expected = f"{victim.name}, the youngest, is retracted"
            left = self._take("hold" if operation == "hold" else "close", victim.sent.account, expected, victim)
            self._release(victim, operation, *left)

    # Results of a step.

    def _resolve(self, end: int) -> None:
        """Follow the journal up to entry `end`: results, and pages given back."""
        while self.at < min(end, len(self.journal)):
            operation, account, number, pages = self.journal[self.at]
            if account in self.ending and operation == "close" and account in self.held:
                self.at += 1
                del self.rows[account], self.held[account]
                continue
            row = self.rows.get(account)
            if row is not None and operation == "settle" and row.flights:
                self.at += 1
                self._settle(row, number)
                continue
            owner = next((one for one in self.active if one.sent.account == account and one.draining), None)
            if row is None or owner is None or row.flights or operation not in ("close", "hold", "donate"):
                raise self._wrong("nothing more is launched or freed in this step", request=owner)
            if operation == "donate" and self._missing(owner, row):
                self._donate(owner, row)
                continue
            self.at += 1
            self._release(owner, operation, number, pages[0] if pages else ())
        late = next((one for one in self.active if one.draining and not self._row(one).flights), None)
        if late is not None:
            text = f"step {len(self.done.steps)}: {late.name} keeps its pages after its last step"
            raise WorkMismatch(text, late.sent.id)

    def _settle(self, row: KVRow, count: int) -> None:
        request, prefill, launched = row.flights.popleft()
        row.committed += count
        row.state = row.committed
        self.unread[0].discard(id(launched))
        if not self.unread[0]:
            self.unread.popleft()
        if not request.running:
            return
        if prefill:
            request.scored = max(request.scored, launched.end + 1)
            if launched.end < request.target:
                return
            count = 1
        request.out = min(request.out + count, request.final)
        if request.out == request.final:
            request.running, request.draining = False, True
        elif prefill:
            self._donate(request, row)

    def _donate(self, request: PlannedRequest, row: KVRow) -> None:
        """Add the pages that a request filled to the cache, unless it already holds their text."""
        new, unit = self._missing(request, row), self.sizes.unit
        if new:
            expected = f"{new * unit} pages of {request.name} are cached"
            count, pages = self._take("donate", request.sent.account, expected, request)
            if count != new * unit:
                raise self._wrong(expected, f"{count}", request)
            self.trie.insert(request.text, row.shared, pages[::unit])
            row.shared += pages[::unit]
            row.own -= count

    def _missing(self, request: PlannedRequest, row: KVRow) -> int:
        """Number of units that the cache takes from a request now."""
        if request.inherited or request.retracting or not self.sizes.caches:
            return 0
        return self.trie.missing(request.text, row.shared, row.committed)

    def _release(self, request: PlannedRequest, operation: str, kept: int, freed: tuple[int, ...]) -> None:
        row, account = self._row(request), request.sent.account
        undone = request.aborted or request.retracting
        keep = request.inherited if undone else min(request.known, max(row.committed, row.kept))
        if self.sizes.interval:
            # The live state or a checkpoint is kept, with draft KV that depends on no token past the text.
            keep = min(keep, request.known - self.sizes.span)
            keep = keep if keep == row.state else keep // self.sizes.interval * self.sizes.interval
        keeps = request.sent.keeps and keep > 0
        gone = undone and self.sizes.window is not None  # what it had inherited may have left the window
        if operation == "donate" or ((operation == "hold") != keeps and not (keeps and gone)):
            raise self._wrong(
                f"{request.name} leaves {keep if keeps else 0} positions to its session", operation, request
            )
        if operation == "hold":
            if kept != keep:
                raise self._wrong(f"{request.name} leaves {keep} positions to its session", f"{kept}", request)
            row.own -= len(freed)
            row.committed = row.kept = keep
            row.state = keep
            self.held[account] = None
        else:
            if missing := self._missing(request, row):
                raise self._wrong(f"{missing * row.unit} pages of {request.name} are cached", "none", request)
            del self.rows[account]
        self.active.remove(request)
        request.draining = False
        if request.retracting:
            request.retracting, request.prefilled, request.target = False, 0, 0
            self.waiting = sorted([*self.waiting, request], key=lambda one: one.sent.id)

    # The journal.

    def _row(self, request: PlannedRequest) -> KVRow:
        return self.rows[request.sent.account]

    def _peek(self) -> JournalEntry:
        return self.journal[self.at] if self.at < len(self.journal) else ("nothing", 0, 0, ())

    def _take(
        self, operation: str, account: int, expected: str, request: PlannedRequest
    ) -> tuple[int, tuple[int, ...]]:
        """The next entry's number and its pages of layers without a window."""
        found = self._peek()
        if found[:2] != (operation, account):
            raise self._wrong(expected, request=request)
        self.at += 1
        return found[2], found[3][0] if found[3] else ()

    def _wrong(self, expected: str, got: str = "", request: PlannedRequest | None = None) -> WorkMismatch:
        operation, account, number, _ = self._peek()
        found = got or f"{operation} of {account}" + (f" ({number})" if number else "")
        text = f"step {len(self.done.steps)}: expected that {expected}; got {found}"
        return WorkMismatch(text, 0 if request is None else request.sent.id)
