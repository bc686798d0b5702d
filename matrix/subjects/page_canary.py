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
        self._copies: dict[int, list[Tensor]] = {}
        self._gone: list[Tensor] = []
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
    def overwritten(self) -> int:
        """How many cached pages were written to. Waits for the device."""
        found = [*self._gone, *(self._differs(page) for page in self._copies)]
        return int(torch.stack(found).sum()) if found else 0

    def _note(self, entry: Entry) -> None:
        operation, _, _, pages = entry
        if operation == "donate":
            for page in pages[0]:
                self._copies[page] = [part.clone() for part in self._parts(page)]
                self.watched += 1
        elif operation == "evict":
            for page in self._copies.keys() & set(pages[0]):
                self._gone.append(self._differs(page))
                del self._copies[page]

    def _parts(self, page: int) -> Sequence[Tensor]:
        return [pool[:, page * self._size : (page + 1) * self._size] for pool in self._pools]

    def _differs(self, page: int) -> Tensor:
        """Whether a page changed, as a bool tensor on the device; NaN equals NaN."""
        changed = [
            (one != two).logical_and((one == one) | (two == two)).any()
            for one, two in zip(self._parts(page), self._copies[page], strict=True)
        ]
        return torch.stack(changed).any()
