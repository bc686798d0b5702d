"""Admission, reservation and retraction: from requests to step plans, on the host only.

Retraction follows one rule: the youngest, one victim at a time, nobody is admitted while a victim drains, and the
oldest always proceeds. Anything looser lets two requests retract each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.core.errors import RequestError
from engine.core.ledger import Account, Ledger
from engine.core.plan import PlanRow, StepPlan
from engine.core.prefix import PrefixCache
from engine.core.probes import Probes
from engine.core.request import Finish, Phase, Request


class Scheduler:
    """Owns the queues. Writes Request.row, phase, prefilled; calls the ledger's open, reserve, launch and close.

    width: positions one verify round writes per request (its root included). slack: positions that may be written
    past a request's last token by rounds launched before its end was known. chunk: tokens of one prefill step.
    tell: verify rounds carry each row's tokens, for a drafter that reads them on the host.
    """

    def __init__(
        self,
        ledger: Ledger,
        cache: PrefixCache,
        probes: Probes,
        *,
        max_running: int,
        width: int,
        slack: int,
        chunk: int | None,
        context_length: int,
        tell: bool = False,
    ) -> None:
        self.ledger = ledger
        self.cache = cache
        self.probes = probes
        self.max_running = max_running
        self.width = width
        self.slack = slack
        self.chunk = chunk
        self.context_length = context_length
        self.tell = tell
        self.requests: dict[int, Request] = {}
        self.waiting: list[Request] = []  # by age
        self.active: list[Request] = []  # running or draining, by age
        self._free_rows = list(range(max_running, 0, -1))  # row 0 is padding

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError if it could never run alone."""
        longest = len(request.prompt) + request.params.max_new_tokens
        if not request.prompt:
            raise RequestError("the prompt is empty; allowed: at least one token")
        if longest > self.context_length:
            raise RequestError(
                f"prompt ({len(request.prompt)}) plus max_new_tokens ({request.params.max_new_tokens}) is {longest} "
                f"tokens; allowed: at most the context length, {self.context_length}"
            )
        room = self.ledger.num_pages * self.ledger.page_size
        if longest + self.slack > room:
            raise RequestError(
                f"prompt plus max_new_tokens ({longest}) and {self.slack} speculative positions do not fit the KV "
                f"pool of {room} tokens; raise max_total_tokens or shorten the request"
            )
        if self.ledger.window is not None and self._window_peak(request) > self.ledger.window.window.pages:
            raise RequestError(
                f"the request needs up to {self._window_peak(request)} window pages at once and the pool has "
                f"{self.ledger.window.window.pages}; raise swa_full_tokens_ratio or lower chunked_prefill_size"
            )
        self.requests[request.rid] = request
        self.waiting.append(request)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.active)

    def plan(self) -> StepPlan | None:
        """The next step, every position it writes reserved and launched in the ledger; None if nothing can run."""
        rows = self._prefill_rows()
        prefill = bool(rows)
        if not rows:
            rows = self._decode_rows()
        if not rows:
            return None
        self.probes.hit("prefill.step" if prefill else "decode.round")
        if not prefill and len(rows) > 1:
            self.probes.hit("decode.batched")
        params = [self.requests[row.rid].params for row in rows]
        wanted = max((p.top_logprobs_num if p.wants_logprobs else -1) for p in params)
        return StepPlan(prefill, tuple(rows), all(p.greedy for p in params), wanted)

    def finish(self, request: Request, finish: Finish) -> None:
        """Stop a running request; it is released once nothing of it is in flight."""
        request.finish = finish
        request.move(Phase.DRAINING)
        self.release_drained((request,))

    def abort(self, rid: int) -> bool:
        """Stop a request wherever it is. False if it has already ended."""
        request = self.requests.get(rid)
        if request is None or request.phase is Phase.DONE or (request.finish and not request.retracting):
            return False
        if request.phase is Phase.WAITING:
            self.probes.hit("abort.waiting")
            self.waiting.remove(request)
            request.finish = Finish("abort")
            request.move(Phase.DONE)
        elif request.phase is Phase.RUNNING:
            self.probes.hit("abort.running")
            self.finish(request, Finish("abort"))
        else:  # a retracted request still draining: it ends instead of being queued again
            self.probes.hit("abort.running")
            request.retracting = False
            request.finish = Finish("abort")
        return True

    def release_drained(self, requests: Iterable[Request]) -> None:
        """Release every draining request among `requests` that has nothing in flight."""
        for request in requests:
            if request.phase is Phase.DRAINING and not self._account(request).in_flight:
                self._release(request)

    def _release(self, request: Request) -> None:
        if not request.retracting:
            self.probes.hit("prefix.insert", self.cache.insert(request.rid, request.tokens))
        self.ledger.close(request.rid)
        self._free_rows.append(request.row)
        self.active.remove(request)
        request.row = 0
        if request.retracting:
            request.retracting = False
            request.retractions += 1
            request.prefilled = request.prefill_target = 0
            request.move(Phase.WAITING)
            self.waiting.append(request)
            self.waiting.sort(key=lambda r: r.rid)
        else:
            request.move(Phase.DONE)

    def _prefill_rows(self) -> list[PlanRow]:
        budget = self.chunk if self.chunk is not None else self.context_length * self.max_running
        rows: list[PlanRow] = []
        for request in list(self.active):
            if budget and request.phase is Phase.RUNNING and not request.decoding:
                take = min(budget, request.prefill_target - request.prefilled)
                if self._make_room(request, take):
                    rows.append(self._chunk(request, take))
                    budget -= take
        while budget and self.waiting and self._admissible(self.waiting[0]):
            request = self._admit(self.waiting.pop(0))
            take = min(budget, request.prefill_target - request.prefilled)
            rows.append(self._chunk(request, take, admitted=True))
            budget -= take
        if self.waiting:
            self.probes.hit("queue.waited")
        return rows

    def _decode_rows(self) -> list[PlanRow]:
        rows = []
        for request in list(self.active):
            if not request.decoding or not self._make_room(request, self.width):
                continue
            account = self._account(request)
            before = len(account.pages)
            added = self.ledger.reserve(request.rid, self.width)
            if added:
                self.probes.hit("page.crossed")
            window_pages, window_first = self._cover(request)
            self.ledger.launch(request.rid, self.width)
            bound = account.committed + account.flying
            writers = (request.rid,) * len(added)
            rows.append(
                PlanRow(
                    request.rid,
                    request.row,
                    self.width,
                    bound,
                    added,
                    writers,
                    before,
                    tokens=tuple(request.tokens) if self.tell else (),
                    window_pages=window_pages,
                    window_first=window_first,
                )
            )
        return rows

    def _admissible(self, request: Request) -> bool:
        """A row is free, no victim drains, and the whole prompt with one round fits beside what runs.

        What runs keeps room for the rest of its prefill and one round each; without that a request admitted into
        the pages that its own retraction freed is retracted again, for ever.
        """
        if not self._free_rows or any(r.retracting for r in self.active):
            return False
        if not self._window_admits(request):
            return False
        shared = self.cache.match(request.tokens)
        need = -(-(request.num_tokens + self.width) // self.ledger.page_size) - len(shared)
        # Pages that the match would pin stop being evictable.
        pinned = sum(1 for page in shared if not self.ledger.pins[page])
        promised = sum(self._promised(r) for r in self.active if r.phase is Phase.RUNNING)
        return need + promised <= len(self.ledger.free) + self.cache.evictable - pinned

    def _promised(self, request: Request) -> int:
        """Pages that a running request still needs for the rest of its prefill and one round."""
        return self.ledger.growth(request.rid, request.prefill_target - request.prefilled + self.width)

    def _window_admits(self, request: Request) -> bool:
        """Every row may reach its peak of window pages: so none is retracted for want of one."""
        book = self.ledger.window
        if book is None:
            return True
        return sum(map(self._window_peak, self.active)) + self._window_peak(request) <= book.window.pages

    def _window_peak(self, request: Request) -> int:
        """Window pages that a request can hold at once."""
        assert self.ledger.window is not None
        longest = len(request.prompt) + request.params.max_new_tokens + self.slack
        step = max(self.width, longest if self.chunk is None else self.chunk)
        return self.ledger.window.peak(longest, self.slack // self.width * step)

    def _cover(self, request: Request, admitted: bool = False) -> tuple[tuple[int, ...], int]:
        """Cover a reservation in the window table: the pages to enter and the index of the first."""
        added = self.ledger.cover(request.rid)
        if self.ledger.window is None:
            return (), 0
        span = self.ledger.window.spans[request.rid]
        return (tuple(span.pages), span.first) if admitted else (added, span.end - len(added))

    def _admit(self, request: Request) -> Request:
        shared = self.cache.match(request.tokens)
        self.ledger.open(request.rid, shared)
        request.row = self._free_rows.pop()
        request.move(Phase.RUNNING)
        request.prefilled = request.cached_tokens = len(shared) * self.ledger.page_size
        request.prefill_target = request.num_tokens
        self.active.append(request)
        self.active.sort(key=lambda r: r.rid)
        self.probes.hit("prefix.hit", request.cached_tokens)
        short = self.ledger.shortfall(request.rid, request.num_tokens + self.width - request.cached_tokens)
        if short:
            self.probes.hit("prefix.evict", self.cache.evict(short))
        return request

    def _chunk(self, request: Request, take: int, admitted: bool = False) -> PlanRow:
        account = self._account(request)
        before = 0 if admitted else len(account.pages)
        self.ledger.reserve(request.rid, take)
        window_pages, window_first = self._cover(request, admitted)
        self.ledger.launch(request.rid, take)
        tokens = request.tokens
        start = request.prefilled
        end = request.prefilled = start + take
        following = tokens[end] if end < len(tokens) else None
        if following is not None:
            self.probes.hit("prefill.chunked")
        pages = tuple(account.pages[before:])
        cached = account.shared if admitted else 0
        writers = (*map(self.cache.writer, pages[:cached]), *(request.rid,) * (len(pages) - cached))
        return PlanRow(
            request.rid,
            request.row,
            take,
            end,
            pages,
            writers,
            before,
            start,
            tuple(tokens[start:end]),
            following,
            (request.params, request.seed) if admitted else None,
            window_pages,
            window_first,
        )

    def _make_room(self, request: Request, width: int) -> bool:
        """Free pages for a step of `width` by eviction, then by retracting the youngest. False: not this step."""
        if request.phase is not Phase.RUNNING:
            return False
        while short := self.ledger.shortfall(request.rid, width):
            freed = self.cache.evict(short)
            self.probes.hit("prefix.evict", freed)
            if freed >= short:
                continue
            if any(r.phase is Phase.DRAINING for r in self.active):
                return False
            victim = max((r for r in self.active if r.phase is Phase.RUNNING), key=lambda r: r.rid)
            self._retract(victim)
            if victim is request or victim.phase is Phase.DRAINING:
                return False
        return True

    def _retract(self, victim: Request) -> None:
        self.probes.hit("retract.done")
        victim.retracting = True
        victim.move(Phase.DRAINING)
        self.release_drained((victim,))

    def _account(self, request: Request) -> Account:
        return self.ledger.accounts[request.rid]
