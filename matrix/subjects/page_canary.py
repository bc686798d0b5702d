"""Watches the contents of cached pages: once the cache owns a page, nothing may write to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.core.memory.ledger import Entry


class PageCanary:
    """Attaches to an engine without changing its results: copies each page when it is cached, and compares it when it
    is evicted or, if still cached, when the result is read. Sliding-window layers have no cached pages.

    watched: pages copied so far. Copies run in the steps' stream, after any step in flight.
    """

    def __init__(self, llm: LLM) -> None:
        self.watched = 0
        self._size = llm.loop.scheduler.ledger.page_size
        self._slots = (llm.loop.scheduler.ledger.groups[0].num_pages + 1) * self._size
        self._copies: dict[int, tuple[int, list[Tensor]]] = {}  # account that cached a page, and its content
        self._gone: list[tuple[int, Tensor]] = []
        self._pools: list[Tensor] = []
        self.attach(llm.loop.executor)
        llm.subscribe_journal(self._note)

    def attach(self, executor: Any) -> None:  # noqa: ANN401 - an executor of any stack
        """Watch the pools of this executor: an engine has new ones once its memory or weights are renewed."""
        self._pools = [pool.data[:, : self._slots] for pool in executor.kv.full.pools]

    def release(self) -> None:
        """Drop all references to the pools, which are about to be renewed."""
        self._pools, self._copies = [], {}

    @property
    def overwritten(self) -> list[int]:
        """Of each cached page that was written to the account that cached it. Waits for the device."""
        found = [*self._gone, *map(self._differs, self._copies)]
        changed = torch.stack([one for _, one in found]).tolist() if found else ()
        return [account for (account, _), wrong in zip(found, changed, strict=True) if wrong]

    def _note(self, entry: Entry) -> None:
        operation, account, _, pages = entry
        if operation == "donate":
            for page in pages[0]:
                self._copies[page] = account, [part.clone() for part in self._parts(page)]
                self.watched += 1
        elif operation == "evict":
            for page in self._copies.keys() & set(pages[0]):
                self._gone.append(self._differs(page))
                del self._copies[page]

    def _parts(self, page: int) -> Sequence[Tensor]:
        return [pool[:, page * self._size : (page + 1) * self._size] for pool in self._pools]

    def _differs(self, page: int) -> tuple[int, Tensor]:
        """Who cached a page, and whether it changed, as a bool tensor on the device; NaN equals NaN."""
        account, copies = self._copies[page]
        changed = [
            (one != two).logical_and((one == one) | (two == two)).any()
            for one, two in zip(self._parts(page), copies, strict=True)
        ]
        return account, torch.stack(changed).any()
