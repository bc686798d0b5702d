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
    for index, (verb, rid, numbers) in enumerate(journal):
        if verb == "window" and not index:
            ledger = Ledger(num_pages, page_size, window=Window(*numbers))
        elif verb == "open":
            ledger.open(rid, numbers)
        elif verb == "reserve":
            _same(index, verb, ledger.reserve(rid, numbers[0]), numbers[1:])
        elif verb == "cover":
            _same(index, verb, ledger.cover(rid), numbers)
        elif verb == "slide":
            _same(index, verb, (ledger.slide(rid),), numbers)
        elif verb == "launch":
            ledger.launch(rid, numbers[0])
        elif verb == "settle":
            ledger.settle(rid, numbers[0])
        elif verb == "cancel":
            ledger.cancel(rid)
        elif verb == "donate":
            _same(index, verb, ledger.donate(rid, numbers[0]), numbers[1:])
        elif verb == "hold":
            _same(index, verb, ledger.hold(rid, numbers[0]), numbers[1:])
        elif verb == "resume":
            ledger.resume(rid, numbers[0])
        elif verb == "close":
            ledger.close(rid)
        elif verb == "evict":
            ledger.evict(numbers[0])
        else:
            raise LedgerError(f"journal entry {index}: unknown operation {verb!r}")
        ledger.check_row(rid)
        if index % CHECK_EVERY == 0:
            ledger.check()
    ledger.check()
    return ledger


def _same(index: int, verb: str, got: tuple[int, ...], recorded: tuple[int, ...]) -> None:
    if got != recorded:
        raise LedgerError(f"journal entry {index}: {verb} returned pages {got}, but the run recorded {recorded}")
