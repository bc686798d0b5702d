"""Accounts that outlive their request: the KV of streaming sessions between two turns.

They are given up least recently used first when pages run short, so sessions can never lock requests out
(sglang#27024 pinned them for ever).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from specmatrix.engine.core.memory.account import Account
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.observe.counters import Probes
from specmatrix.errors import LedgerError


class SessionKV:
    """The held accounts of the ledger, the one whose turn ended longest ago first."""

    def __init__(self, ledger: Ledger, probes: Probes) -> None:
        self.ledger = ledger
        self.probes = probes
        self.order: dict[int, None] = {}

    def __contains__(self, account: object) -> bool:
        return account in self.order

    def __len__(self) -> int:
        return len(self.order)

    def hold(self, account: int, keep: int) -> None:
        """Keep the first `keep` positions of an account whose request ends."""
        self.ledger.hold(account, keep)
        self.order[account] = None

    def resume(self, account: int, span: int) -> int:
        """Hand an account to the next turn. Returns the positions that it inherits.

        Draft KV of a position depends on the `span` tokens behind it, and those behind the last positions were not the
        turn's. So the turn computes these positions again, unless the cache holds them, which knows their tokens.
        """
        held = self.ledger.accounts[account]
        inherited, cached = held.committed, held.shared * self.ledger.page_size
        again = min(span, inherited - cached)
        while not self.ledger.holdable(account, inherited - again):
            again -= 1
        del self.order[account]
        self.ledger.resume(account, again)
        return inherited

    def close(self, account: int) -> None:
        """Give up an account: its session ended."""
        del self.order[account]
        self.ledger.close(account)

    def drop(self, waiting: Sequence[int], spare: int) -> bool:
        """Give up one account for a request that needs its pages. False if there is none but `spare`.

        Idle sessions go first; then those in `waiting` (accounts of queued turns, next first), the last one first.
        """
        idle = next((a for a in self.order if a != spare and a not in waiting), None)
        queued = next((a for a in reversed(waiting) if a != spare and a in self.order), None)
        account = queued if idle is None else idle
        if account is None:
            return False
        self.close(account)
        self.probes.hit("session.dropped")
        return True

    def droppable(self, spare: int, pinned: Collection[int]) -> int:
        """Pages that dropping every account but `spare`, and evicting, would free.

        A cached page counts if only these accounts use it and it is not in `pinned`.
        """
        private = 0
        users: Counter[int] = Counter()
        for account in self._others(spare):
            private += len(account.pages) - account.shared
            users.update(account.pages[: account.shared])
        return private + sum(1 for page, n in users.items() if n == self.ledger.pins[page] and page not in pinned)

    def window_pages(self, spare: int) -> int:
        """Window pages of every held account but `spare`."""
        book = self.ledger.window
        return 0 if book is None else sum(len(book.spans[account.rid].pages) for account in self._others(spare))

    def check(self, used: Sequence[int]) -> None:
        """Raise LedgerError unless every account is either held or in use by exactly one of the requests in `used`."""
        accounts = sorted([*used, *self.order])
        if accounts != sorted(self.ledger.accounts):
            raise LedgerError(f"accounts {sorted(self.ledger.accounts)} are open, but {accounts} are in use or held")
        for account in self.ledger.accounts.values():
            if account.held != (account.rid in self.order):
                raise LedgerError(f"account {account.rid} is {'held' if account.held else 'in use'} by mistake")

    def _others(self, spare: int) -> list[Account]:
        return [self.ledger.accounts[account] for account in self.order if account != spare]
