"""Reservation, release and retraction: turns requests into step plans, on the host only.

Retraction rule: the youngest request first, one victim at a time, no admission while a victim drains, and the oldest
request always proceeds. With anything looser, two requests can retract each other forever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

from specmatrix.engine.core.draft.algorithms import nodes_within
from specmatrix.engine.core.draft.depth import DraftSteps
from specmatrix.engine.core.draft.verify_budget import VerifyBudget
from specmatrix.engine.core.memory.groups import Account
from specmatrix.engine.core.memory.ledger import Ledger, OutOfPages, Pages
from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.core.memory.session_kv import SessionKV
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.admission import Admission
from specmatrix.engine.core.schedule.request import Finish, Phase, Request
from specmatrix.engine.core.schedule.step import NewPages, PlanRow, StepPlan


@dataclass(eq=False)
class Scheduler:
    """Owns the queues. Writes Request.row, phase, prefilled; calls the ledger's open, reserve, launch and close.

    steps: how many positions each verify round writes per request (root included); every reservation is for the widest
    round. overrun: positions that rounds launched before a request's end was known may write past its last token.
    chunk: tokens of one prefill step.
    host_tokens: verify rounds carry each row's tokens, for a drafter that reads them on the host.
    ragged: a row verifies no more nodes than what is left of its length can emit. topk: maximum children of a node.
    mixed: prefill steps also advance every running request by one token, without drafts. budget: of the drafts that a
    round verifies, by what is known of earlier ones; None: all of them.
    """

    ledger: Ledger
    cache: PrefixCache
    counters: Counters
    _: KW_ONLY
    max_running: int
    steps: DraftSteps
    overrun: int
    chunk: int | None
    context_length: int
    host_tokens: bool = False
    ragged: bool = False
    topk: int = 1
    mixed: bool = False
    budget: VerifyBudget | None = None

    def __post_init__(self) -> None:
        self.width = self.steps.max_width
        self._nodes = 0  # of the latest round's trees
        self.requests: dict[int, Request] = {}
        self.waiting: list[Request] = []  # by age
        self.active: list[Request] = []  # running or draining, by age
        # Requests that run alone after a failed step: the step's kind, and the request's token count.
        self.isolated: dict[int, tuple[bool, int]] = {}
        self.held = SessionKV(self.ledger, self.counters)
        owned = self.ledger, self.cache, self.held, self.counters, self.waiting, self.active
        self.admission = Admission(*owned, self.width, self.overrun, self.chunk, self.context_length)
        self.free_rows = list(range(self.max_running, 0, -1))  # row 0 is padding

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError if it could not run even alone."""
        self.admission.check(request)
        self.requests[request.rid] = request
        self.waiting.append(request)

    @property
    def has_work(self) -> bool:
        """Whether any request is not yet released."""
        return bool(self.waiting or self.active)

    def plan(self) -> StepPlan | None:
        """The next step, with its positions reserved and launched in the ledger; None if nothing can run."""
        running = [request for request in self.active if request.decoding] if self.mixed else []
        rows = self._prefill_rows()
        prefill = bool(rows)
        rows += self._plain_rows(running, rows[0].rid) if prefill else self._decode_rows()
        if not rows:
            return None
        self.counters.hit("prefill.step" if prefill else "decode.round")
        if not prefill and len(rows) > 1:
            self.counters.hit("decode.batched")
        greedy, wanted, adjusts, scored, constrained = True, -1, False, -1, False
        for row in rows:
            request = self.requests[row.rid]
            params, adjusts = request.params, adjusts or request.adjusts
            greedy = greedy and params.greedy
            constrained = constrained or request.constraint is not None
            if params.wants_logprobs:
                wanted = max(wanted, params.top_logprobs_num)
            if prefill and request.unscored < len(request.prompt):
                scored = max(scored, params.top_logprobs_num)
        nodes, budget = 0 if prefill else self._nodes, None
        if nodes and self.budget is not None:
            # Nothing is known yet of a request's first drafts, so all of them may be right.
            budget = self.budget.of([self.requests[row.rid].survivals or (1.0,) * (nodes - 1) for row in rows])
        return StepPlan(prefill, tuple(rows), greedy, wanted, adjusts, scored, constrained, nodes, budget)

    def settle(self, row: PlanRow, written: int) -> None:
        """Commit the positions that a resolved step wrote for a row, which frees pages that are no longer read."""
        for freed in self.ledger.settle(row.account, written):
            self.counters.hit("window.slid", len(freed))

    def finish(self, request: Request, finish: Finish) -> None:
        """Stop a running request; it is released once it has nothing in flight."""
        request.finish = finish
        request.move(Phase.DRAINING)
        self.release_drained((request,))

    def abort(self, rid: int) -> bool:
        """Stop a request in any phase. False if it has already ended."""
        request = self.requests.get(rid)
        if request is None or request.phase is Phase.DONE or (request.finish and not request.retracting):
            return False
        self.counters.hit("abort.waiting" if request.phase is Phase.WAITING else "abort.running")
        self.end(request, Finish("abort"))
        return True

    def end(self, request: Request, finish: Finish) -> None:
        """Finish a request in any phase, unless it has ended."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
            request.finish = finish
            request.move(Phase.DONE)
        elif request.phase is Phase.RUNNING:
            self.finish(request, finish)
        elif request.retracting:  # end it instead of queueing it again
            request.retracting = False
            request.finish = finish

    def end_all(self, finish: Finish) -> None:
        """End every live request without freeing pages: the accounting can no longer be trusted."""
        for request in self.requests.values():
            if request.phase is Phase.RUNNING:
                request.move(Phase.DRAINING)
            if request.phase is not Phase.DONE:
                request.finish = request.finish or finish
                request.move(Phase.DONE)
        self.waiting.clear()
        self.active.clear()

    def isolate(self, plan: StepPlan) -> None:
        """Run each request of a failed step alone, until a step of the same kind succeeds for it."""
        for row in plan.rows:
            self.isolated[row.rid] = plan.prefill, self.requests[row.rid].num_tokens

    def passed(self, plan: StepPlan, request: Request) -> None:
        """A step of this kind has succeeded for the request."""
        prefill, tokens = self.isolated.get(request.rid, (not plan.prefill, 0))
        if prefill is plan.prefill and request.num_tokens > tokens:
            del self.isolated[request.rid]

    def cancel(self, plan: StepPlan) -> None:
        """Undo the newest plan, which was not launched: its requests are retracted."""
        requests = [self.requests[row.rid] for row in plan.rows]
        for row, request in zip(plan.rows, requests, strict=True):
            self.ledger.cancel(row.account)
            if request.phase is Phase.RUNNING:
                self.retract(request)
        self.release_drained(requests)

    def rollback(self) -> None:
        """Undo every planned step: running requests are retracted, draining ones released."""
        for request in list(self.active):
            while self._account(request).in_flight:
                self.ledger.cancel(request.account)
            if request.phase is Phase.RUNNING:
                self.retract(request)
        self.release_drained(list(self.active))

    def release_drained(self, requests: Iterable[Request]) -> None:
        """Release every draining request in `requests` that has nothing in flight."""
        for request in requests:
            if request.phase is Phase.DRAINING and not self._account(request).in_flight:
                self._release(request)

    def _release(self, request: Request) -> None:
        self._give_back(request)
        self.free_rows.append(request.row)
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

    def _give_back(self, request: Request) -> None:
        """Hold the account for the session's next turn, or close it."""
        keep = self.kv_to_keep(request)
        if keep:
            self.held.hold(request.account, keep)
            return
        if not request.retracting:
            self.publish(request)
        self.ledger.close(request.account)

    def kv_to_keep(self, request: Request) -> int:
        """Positions that the session keeps: only those computed for tokens that the user saw (0: none).

        An aborted turn rolls back to what it inherited, and so does a retracted one: its own part is freed at once, and
        the inherited part is the last to be freed before another request is retracted.
        """
        if not request.holds:
            return 0
        aborted = request.finish is not None and request.finish.reason == "abort"
        undone = aborted or request.retracting
        computed = self._account(request).computed
        keep = request.inherited if undone else min(request.num_tokens, computed)
        if not self.ledger.rewinds:
            # Draft KV of the last positions depends on tokens that the user may not have seen.
            keep = min(keep, request.num_tokens - self.cache.key_span)
        keep = self.ledger.reach(request.account, keep)
        if keep <= 0:
            return 0
        if undone:
            self.counters.hit("session.spared" if request.retracting else "session.rolled_back")
        else:
            self.counters.hit("session.held")
            self.counters.hit("session.trimmed", computed - keep)
        return keep

    def publish(self, request: Request) -> None:
        """Give the request's whole pages to the prefix cache, unless it inherited KV, so that aborts can roll back."""
        if not request.inherited:
            duplicates = self.cache.duplicates
            self.counters.hit("prefix.insert", self.cache.insert(request.account, request.tokens))
            self.counters.hit("prefix.duplicate", self.cache.duplicates - duplicates)

    def _prefill_rows(self) -> list[PlanRow]:
        budget = self.chunk if self.chunk is not None else self.context_length * self.max_running
        rows: list[PlanRow] = []
        for request in list(self.active):
            if self.isolated and not self._joins(request, rows[0].rid if rows else None):
                continue
            if budget and request.phase is Phase.RUNNING and not request.decoding:
                take = self._take(request, budget)
                if self._make_room(request, take):
                    rows.append(self._chunk(request, take))
                    budget -= take
        while budget and self.free_rows and self.waiting and self.admission.fits(self.waiting[0]):
            if self.isolated and not self._joins(self.waiting[0], rows[0].rid if rows else None):
                break
            request = self._admit(self.waiting.pop(0))
            take = self._take(request, budget)
            rows.append(self._chunk(request, take, admitted=True))
            budget -= take
        if self.waiting:
            self.counters.hit("queue.waited")
        return rows

    def _take(self, request: Request, budget: int) -> int:
        """Tokens of the request's next chunk."""
        return min(budget, self.ledger.chunk_end(request.prefilled, request.prefill_target) - request.prefilled)

    def _plain_rows(self, running: Sequence[Request], first: int) -> list[PlanRow]:
        """Advance running requests by one token in a prefill step whose first request is `first`; no other request is
        retracted for it."""
        rows = []
        for request in running:
            joins = not self.isolated or self._joins(request, first)
            # A chunk may have retracted it.
            if joins and request.decoding and self._verified(request, 1) and self.admission.reclaim(request, 1):
                added = self.ledger.reserve(request.account, 1)
                rows.append(self._round_row(request, added, 1)._replace(start=-1, tokens=(-1,)))
        self.counters.hit("mixed.step", bool(rows))
        self.counters.hit("mixed.token", len(rows))
        return rows

    def _decode_rows(self) -> list[PlanRow]:
        """Reserve for the widest round, whatever the next depth is; then set the width by batch size. A request that
        the rounds in flight end for certain is left out."""
        ready: list[tuple[Request, Pages]] = []
        crossed = 0
        for request in list(self.active):
            if not request.decoding:
                continue
            if self.isolated and not self._joins(request, ready[0][0].rid if ready else None):
                continue
            widest = self._verified(request, self.width)
            added = self._reserve(request, widest) if widest else None
            if added is None:
                continue
            crossed += bool(added)
            ready.append((request, added))
        self.counters.hit("page.crossed", crossed)
        self._nodes = self.steps.activate(len(ready)) if ready else 0
        return [self._round_row(*parts, self._verified(parts[0], self._nodes)) for parts in ready]

    def _verified(self, request: Request, nodes: int) -> int:
        """Upper bound of the nodes that a row verifies in a round of `nodes`; every step in flight adds a token."""
        room = request.limit - request.num_tokens - len(self._account(request).in_flight)
        if room <= 0:
            return 0
        return nodes_within(room, self.topk, nodes) if self.ragged else nodes

    def _joins(self, request: Request, first: int | None) -> bool:
        """Whether a request may join a step whose first request is `first`, while some requests are isolated."""
        return first is None or self.isolated.keys().isdisjoint((first, request.rid))

    def _round_row(self, request: Request, added: Pages, width: int) -> PlanRow:
        """Launch one row of a verify round."""
        account = self._account(request)
        return PlanRow(
            rid=request.rid,
            account=request.account,
            row=request.row,
            width=width,
            bound=self.ledger.launch(request.account, width),
            generation=account.generation,
            pages=_new(account, added),
            tokens=tuple(request.tokens) if self.host_tokens else (),
            prompt=len(request.prompt),
        )

    def _admit(self, request: Request) -> Request:
        self.admission.open(request)
        request.row = self.free_rows.pop()
        request.move(Phase.RUNNING)
        request.prefill_target = request.num_tokens
        self.active.append(request)
        self.active.sort(key=lambda r: r.rid)
        return request

    def _chunk(self, request: Request, take: int, admitted: bool = False) -> PlanRow:
        account = self._account(request)
        added = self.ledger.reserve(request.account, take)
        self.ledger.launch(request.account, take)
        tokens = request.tokens
        start = request.prefilled
        end = request.prefilled = start + take
        needs_tokens = request.adjusts or request.constraint is not None
        following = tokens[end] if end < len(tokens) else None
        if following is not None:
            self.counters.hit("prefill.chunked")
        return PlanRow(
            rid=request.rid,
            account=request.account,
            row=request.row,
            width=take,
            bound=end,
            generation=account.generation,
            pages=_new(account, [own.pages for own in account.groups] if admitted else added),
            start=start,
            tokens=tuple(tokens[start:end]),
            following=following,
            admit=(request.params, request.seed, request.limit) if admitted else None,
            writers=tuple(account.writers.items()) if admitted else (),
            arrived=(len(request.prompt), tuple(tokens)) if admitted and needs_tokens else None,
        )

    def _reserve(self, request: Request, width: int) -> Pages | None:
        """The pages that a step of `width` adds, freeing some if necessary. None: the request cannot join this step."""
        try:
            return self.ledger.reserve(request.account, width)
        except OutOfPages:
            return self.ledger.reserve(request.account, width) if self._make_room(request, width) else None

    def _make_room(self, request: Request, width: int) -> bool:
        """Free pages for a step of `width`, if necessary by retracting the youngest. False: it must skip this step."""
        if request.phase is not Phase.RUNNING:
            return False
        while not self.admission.reclaim(request, width):
            if any(r.phase is Phase.DRAINING for r in self.active):
                return False
            victim = max((r for r in self.active if r.phase is Phase.RUNNING), key=lambda r: r.rid)
            self.retract(victim)
            if victim is request or victim.phase is Phase.DRAINING:
                return False
        return True

    def retract(self, victim: Request) -> None:
        self.counters.hit("retract.done")
        victim.retracting = True
        victim.move(Phase.DRAINING)
        self.release_drained((victim,))

    def check(self) -> None:
        """Check every ledger law, and that each account has exactly one user."""
        self.ledger.check()
        self.held.check([request.account for request in self.active])

    def _account(self, request: Request) -> Account:
        return self.ledger.accounts[request.account]


def _new(account: Account, added: Sequence[Sequence[int]]) -> tuple[NewPages, ...]:
    """The account's latest pages with the index of the first in its row, by group."""
    if not added:
        return ()
    return tuple([(own.end - len(pages), tuple(pages)) for own, pages in zip(account.groups, added, strict=False)])
