"""Admission: which requests can ever run, which fit beside the running ones, and which cached pages they reuse."""

from __future__ import annotations

from collections.abc import Sequence

from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.core.memory.session_kv import SessionKV
from specmatrix.engine.core.observe.counters import Counters
from specmatrix.engine.core.schedule.request import Phase, Request
from specmatrix.errors import RequestError


class Admission:
    """Checks requests and opens accounts. It takes pages from the cache and from held sessions, never from running
    requests.

    Sizes are the scheduler's. `waiting` and `active` are its queues, only read here.
    """

    def __init__(
        self,
        ledger: Ledger,
        cache: PrefixCache,
        held: SessionKV,
        counters: Counters,
        waiting: Sequence[Request],
        active: Sequence[Request],
        *,
        width: int,
        slack: int,
        chunk: int | None,
        context_length: int,
    ) -> None:
        self.ledger = ledger
        self.cache = cache
        self.held = held
        self.counters = counters
        self.waiting = waiting
        self.active = active
        self.width = width
        self.slack = slack
        self.chunk = chunk
        self.context_length = context_length

    def check(self, request: Request) -> None:
        """Raise RequestError for a request that could not run even alone."""
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
        book = self.ledger.window
        if book is not None and self._window_peak(request) > book.window.pages:
            raise RequestError(
                f"the request needs up to {self._window_peak(request)} window pages at once, and the pool has "
                f"{book.window.pages}; raise swa_full_tokens_ratio or lower chunked_prefill_size"
            )

    def fits(self, request: Request) -> bool:
        """Whether no victim is draining, the session's previous turn is released, and the prompt and its rounds fit.

        Running requests keep room for the rest of their prefill and for as many rounds as may be in flight; otherwise a
        request would be admitted into the pages that its own retraction freed, and be retracted again one step later.
        """
        if any(r.retracting for r in self.active) or not self._window_fits(request):
            return False
        account = self.ledger.accounts.get(request.account)
        if account is not None and not account.held:
            return False
        shared = self.cache.match(request.reusable) if account is None else []
        have = len(shared if account is None else account.pages)
        need = -(-(request.num_tokens + self.slack) // self.ledger.page_size) - have
        # Pages that the match would pin are no longer evictable.
        pinned = sum(1 for page in shared if not self.ledger.pins[page])
        promised = sum(self._promised(r) for r in self.active if r.phase is Phase.RUNNING)
        short = need + promised - (len(self.ledger.free) + self.cache.evictable - pinned)
        return short <= 0 or (len(self.held) > 0 and short <= self.held.droppable(request.account, shared))

    def open(self, request: Request) -> None:
        """Open the request's account on the longest cached prefix, or resume its session's account; then free pages."""
        if request.account in self.held:
            request.inherited = self.held.resume(request.account, self.cache.key_span)
            self.counters.hit("session.inherited", request.inherited)
            self.counters.hit("session.restored", request.retractions > 0)
        else:
            shared = self.cache.match(request.reusable)
            self.ledger.open(request.account, shared)
            request.inherited = 0
            self.counters.hit("prefix.hit", len(shared) * self.ledger.page_size)
        request.prefilled = self.ledger.accounts[request.account].committed
        if not request.retractions:
            request.cached_tokens = request.prefilled
        self.reclaim(request, request.num_tokens + self.width - request.prefilled)
        while self._window_excess(request) > 0 and self._drop(request):
            pass

    def reclaim(self, request: Request, width: int) -> bool:
        """Free pages for a step of `width` by eviction, then by closing held sessions. False if that is not enough."""
        while short := self.ledger.shortfall(request.account, width):
            freed = self.cache.evict(short)
            self.counters.hit("prefix.evict", freed)
            if freed < short and not self._drop(request):
                return False
        return True

    def _drop(self, request: Request) -> bool:
        return self.held.drop([r.account for r in self.waiting], request.account)

    def _promised(self, request: Request) -> int:
        """Pages that a running request still needs for the rest of its prefill and all rounds in flight."""
        account = self.ledger.accounts[request.account]
        begun = account.committed + account.flying
        rounds = max(account.committed, request.prefill_target) + self.slack - begun
        return self.ledger.growth(request.account, max(rounds, request.prefill_target - request.prefilled + self.width))

    def _window_fits(self, request: Request) -> bool:
        """Whether every row can reach its maximum of window pages, so that no row is retracted for lack of them."""
        return self._window_excess(request) <= self.held.window_pages(request.account)

    def _window_excess(self, request: Request) -> int:
        """Window pages missing for the maxima of all rows beside those that sessions hold."""
        book = self.ledger.window
        if book is None:
            return 0
        peaks = sum(map(self._window_peak, self.active)) + self._window_peak(request)
        return peaks + self.held.window_pages(request.account) - book.window.pages

    def _window_peak(self, request: Request) -> int:
        """Maximum window pages that a request holds at once."""
        assert self.ledger.window is not None
        longest = len(request.prompt) + request.params.max_new_tokens + self.slack
        step = max(self.width, longest if self.chunk is None else self.chunk)
        return self.ledger.window.peak(longest, self.slack // self.width * step)
