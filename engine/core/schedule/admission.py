"""Admission: which requests can ever run, which fit beside the running ones, and which cached pages they reuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from specmatrix.engine.core.memory.groups import PageGroup
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.core.memory.session_kv import SessionKV
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.request import Phase, Request
from specmatrix.errors import RequestError


@dataclass(eq=False)
class Admission:
    """Checks requests and opens accounts. It takes pages from the cache and from held sessions, never from running
    requests.

    Sizes are the scheduler's. `waiting` and `active` are its queues, only read here.
    """

    ledger: Ledger
    cache: PrefixCache
    held: SessionKV
    counters: Counters
    waiting: Sequence[Request]
    active: Sequence[Request]
    width: int
    overrun: int
    chunk: int | None
    context_length: int

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
        for group in self.ledger.groups:
            need = self._budget(group, request, longest + self.overrun)
            if need > group.num_pages:
                raise RequestError(
                    f"prompt plus max_new_tokens ({longest}) and {self.overrun} speculative positions do not fit the "
                    f"KV pool of {group.num_pages * group.page_size} tokens of {group.name} layers, as "
                    f"{need * group.page_size} are needed at once; {group.fix}"
                )

    def fits(self, request: Request) -> bool:
        """Whether no victim is draining, the session's previous turn is released, and the prompt and its rounds fit.

        Running requests keep room for the rest of their prefill and for as many rounds as may be in flight; otherwise a
        request would be admitted into the pages that its own retraction freed, and be retracted again one step later.
        """
        if any(r.retracting for r in self.active):
            return False
        account = self.ledger.accounts.get(request.account)
        if account is not None and not account.held:
            return False
        groups = self.ledger.groups
        if account is None:
            shared = self.cache.match(request.reusable)
            reused = [group.beside(shared) for group in groups]
        else:
            reused = [own.pages for own in account.groups]
        return all(self._fits(number, request, reused[number]) for number in range(len(groups)))

    def _fits(self, number: int, request: Request, reused: Sequence[int]) -> bool:
        """Whether a group has enough pages for a request, which will reuse some."""
        group = self.ledger.groups[number]
        short = self._lacking(number, request, request.num_tokens + self.overrun, reused) + self._promised(number)
        # Unused pages that the request would use are no longer evictable.
        short -= group.evictable - sum(not group.pins.get(page, 1) for page in reused)
        return short <= 0 or short <= self.held.droppable(number, request.account, reused)

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
        self._free_up(request, partial(self._lacking_all, request))

    def reclaim(self, request: Request, width: int) -> bool:
        """Free pages for a step of `width` by eviction, then by closing held sessions. False if that is not enough."""
        return self._free_up(request, partial(self.ledger.shortfall, request.account, width))

    def _free_up(self, request: Request, lacking: Callable[[], Sequence[int]]) -> bool:
        """Free pages until none is lacking in any group. False if there are no more to free."""
        while any(short := lacking()):
            groups = self.ledger.groups
            count = max([group.cached * group.scale * pages for group, pages in zip(groups, short, strict=True)])
            freed = self.cache.evict(count)
            self.counters.hit("prefix.evict", freed)
            if not freed and not self._drop(request):
                return False
        return True

    def _drop(self, request: Request) -> bool:
        return self.held.drop([r.account for r in self.waiting], request.account)

    def _lacking_all(self, request: Request) -> list[int]:
        """Pages missing for an admitted request's tokens and one round, by group."""
        groups, own = self.ledger.groups, self.ledger.accounts[request.account].groups
        known = request.num_tokens + self.width
        return [
            max(0, self._lacking(number, request, known, own[number].pages) + group.sets_aside * self._promised(number))
            for number, group in enumerate(groups)
        ]

    def _lacking(self, number: int, request: Request, known: int, reused: Sequence[int]) -> int:
        """Pages missing for a request with `known` positions, beside those that are free and those that it reuses."""
        group = self.ledger.groups[number]
        return self._budget(group, request, known) - len(reused) - len(group.free)

    def _promised(self, number: int) -> int:
        """Pages that the running requests still need for the rest of their prefill and all rounds in flight."""
        group, promised = self.ledger.groups[number], 0
        for request in self.active:
            account = self.ledger.accounts[request.account]
            running = request.phase is Phase.RUNNING
            known = max(account.committed, request.prefill_target) + self.overrun if running else 0
            promised += max(0, self._budget(group, request, known) - len(account.groups[number].pages))
        return promised

    def _budget(self, group: PageGroup, request: Request, known: int) -> int:
        """Pages that a request with `known` positions must be able to get."""
        longest = len(request.prompt) + request.params.max_new_tokens + self.overrun
        step = max(self.width, longest if self.chunk is None else self.chunk)
        return group.budget(known, longest, self.overrun // self.width * step)
