"""Accounts that outlive their request: the KV of streaming sessions between two turns.

They are evicted least recently used first when pages run short, so sessions can never starve requests (sglang#27024
pinned them forever).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.errors import LedgerError


class SessionKV:
    """The ledger's held accounts, ordered by the end of their last turn, oldest first."""

    def __init__(self, ledger: Ledger, counters: Counters) -> None:
        self.ledger = ledger
        self.counters = counters
        self.order: dict[int, None] = {}

    def __contains__(self, account: object) -> bool:
        return account in self.order

    def __len__(self) -> int:
        return len(self.order)

    def hold(self, account: int, keep: int) -> None:
        """Keep the first `keep` positions of an account when its request ends."""
        self.ledger.hold(account, keep)
        self.order[account] = None

    def resume(self, account: int, span: int) -> int:
        """Assign an account to the next turn. Returns the number of positions that it inherits.

        A position's draft KV depends on the next `span` tokens, which the ended turn did not know for its last
        positions. So the new turn recomputes these positions, unless they are cached: the cache's key includes the next
        tokens. Where positions cannot be computed again, none such was kept.
        """
        held = self.ledger.accounts[account]
        inherited, cached = held.committed, held.groups[0].shared * self.ledger.page_size
        again = min(span, inherited - cached) if self.ledger.rewinds else 0
        while self.ledger.reach(account, inherited - again) < 0:
            again -= 1
        del self.order[account]
        self.ledger.resume(account, again)
        return inherited

    def close(self, account: int) -> None:
        """Close an account whose session ended."""
        del self.order[account]
        self.ledger.close(account)

    def drop(self, waiting: Sequence[int], spare: int) -> bool:
        """Close one account to free pages for a request. False if there is none but `spare`.

        Idle sessions are closed first, then those in `waiting` (accounts of queued turns, next first), last to first.
        """
        idle = next((a for a in self.order if a != spare and a not in waiting), None)
        queued = next((a for a in reversed(waiting) if a != spare and a in self.order), None)
        account = queued if idle is None else idle
        if account is None:
            return False
        self.close(account)
        self.counters.hit("session.dropped")
        return True

    def droppable(self, group: int, spare: int, pinned: Collection[int]) -> int:
        """Pages of a group that closing every account but `spare`, and then evicting, would free.

        A cached page counts only if no other account uses it and it is not in `pinned`.
        """
        private = 0
        users: Counter[int] = Counter()
        for account in self.order:
            if account != spare:
                own = self.ledger.accounts[account].groups[group]
                private += len(own.pages) - own.shared
                users.update(own.pages[: own.shared])
        pins = self.ledger.groups[group].pins
        return private + sum(1 for page, n in users.items() if n == pins[page] and page not in pinned)

    def check(self, used: Sequence[int]) -> None:
        """Raise LedgerError unless every account is either held or in use by exactly one of the requests in `used`."""
        accounts = sorted([*used, *self.order])
        if accounts != sorted(self.ledger.accounts):
            raise LedgerError(f"accounts {sorted(self.ledger.accounts)} are open, but {accounts} are in use or held")
        for account in self.ledger.accounts.values():
            if account.held != (account.rid in self.order):
                raise LedgerError(
                    f"account {account.rid} is {'held' if account.held else 'in use'}, but its session says otherwise"
                )
