"""Journal replay: audits a run's ledger operations, on any machine and at any time later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from specmatrix.engine.core.memory.groups import KINDS
from specmatrix.engine.core.memory.ledger import HEADER, Entry, Ledger
from specmatrix.errors import LedgerError

CHECK_EVERY: Final = 64


def replay(journal: Iterable[Entry]) -> Ledger:
    """Re-run a journal on a fresh ledger. Checks the touched row's laws after every operation, and all laws every
    CHECK_EVERY operations and at the end.

    Raises LedgerError if a law is broken, if an operation does not give what was recorded, or if the journal is an old
    one, which does not begin with its groups.
    """
    entries = iter(journal)
    first = next(entries, None)
    if first is None or first[0] != HEADER:
        raise LedgerError(f"a journal begins with its KV groups, this one with {first}: it is old, record it again")
    _, _, page_size, groups = first
    ledger = Ledger(*[KINDS[kind](pages, page_size, *sizes) for kind, pages, *sizes in groups])
    latest: deque[Entry] = deque(maxlen=1)
    ledger.subscribe(latest.append)
    for index, entry in enumerate(entries, 1):
        _repeat(ledger, index, entry)
        if latest[0] != entry:
            raise LedgerError(f"journal entry {index}: the run recorded {entry}, but its replay gives {latest[0]}")
        ledger.check_row(entry[1])
        if index % CHECK_EVERY == 0:
            ledger.check()
    ledger.check()
    return ledger


def _repeat(ledger: Ledger, index: int, entry: Entry) -> None:
    operation, rid, amount, pages = entry
    if operation == "open":
        ledger.open(rid, pages[0] if pages else ())
    elif operation == "evict":
        ledger.evict(*pages[0])
    elif operation in ("cancel", "close"):
        getattr(ledger, operation)(rid)
    elif operation in ("reserve", "launch", "settle", "donate", "hold", "resume"):
        getattr(ledger, operation)(rid, amount)
    else:
        raise LedgerError(f"journal entry {index}: unknown operation {operation!r}")
