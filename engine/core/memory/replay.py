"""Journal replay: audits a run's ledger operations, on any machine and at any time later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from specmatrix.engine.core.memory.ledger import Entry, Ledger
from specmatrix.engine.core.memory.window_ledger import Window
from specmatrix.errors import LedgerError

CHECK_EVERY: Final = 64


def replay(journal: Iterable[Entry], num_pages: int, page_size: int) -> Ledger:
    """Re-run a journal on a fresh ledger. Checks the touched row's laws after every operation, and all laws every
    CHECK_EVERY operations and at the end.

    Raises LedgerError if a law is broken, or if the pages allocated or freed differ from the recorded ones.
    """
    ledger = Ledger(num_pages, page_size)
    for index, (operation, rid, numbers) in enumerate(journal):
        if operation == "window" and not index:
            ledger = Ledger(num_pages, page_size, window=Window(*numbers))
        elif operation == "open":
            ledger.open(rid, numbers)
        elif operation == "reserve":
            _same(index, operation, ledger.reserve(rid, numbers[0]), numbers[1:])
        elif operation == "cover":
            _same(index, operation, ledger.cover(rid), numbers)
        elif operation == "slide":
            _same(index, operation, (ledger.slide(rid),), numbers)
        elif operation == "launch":
            ledger.launch(rid, numbers[0])
        elif operation == "settle":
            ledger.settle(rid, numbers[0])
        elif operation == "cancel":
            ledger.cancel(rid)
        elif operation == "donate":
            _same(index, operation, ledger.donate(rid, numbers[0]), numbers[1:])
        elif operation == "hold":
            _same(index, operation, ledger.hold(rid, numbers[0]), numbers[1:])
        elif operation == "resume":
            ledger.resume(rid, numbers[0])
        elif operation == "close":
            ledger.close(rid)
        elif operation == "evict":
            ledger.evict(numbers[0])
        else:
            raise LedgerError(f"journal entry {index}: unknown operation {operation!r}")
        ledger.check_row(rid)
        if index % CHECK_EVERY == 0:
            ledger.check()
    ledger.check()
    return ledger


def _same(index: int, operation: str, got: tuple[int, ...], recorded: tuple[int, ...]) -> None:
    if got != recorded:
        raise LedgerError(f"journal entry {index}: {operation} returned pages {got}, but the run recorded {recorded}")
