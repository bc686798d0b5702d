"""A scheduler without a device, whose ledger checks its laws after every operation."""

from __future__ import annotations

from specmatrix.engine.core.draft.depth import DraftSteps
from specmatrix.engine.core.memory.groups import FullAttention, SlidingWindow
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.scheduler import Scheduler


def scheduler_of(
    pages: int = 40,
    size: int = 2,
    rows: int = 4,
    width: int = 3,
    overrun: int | None = None,
    cache: bool = False,
    span: int = 1,
    chunk: int | None = None,
    context: int = 200,
    window: tuple[int, ...] | None = None,
    host_tokens: bool = False,
) -> Scheduler:
    """overrun: the width by default. window: pages, tokens and margin."""
    windows = [SlidingWindow(window[0], size, *window[1:])] if window else []
    ledger, counters = Ledger(FullAttention(pages, size), *windows, strict=True), Counters()
    return Scheduler(
        ledger,
        PrefixCache(ledger, span, cache),
        counters,
        max_running=rows,
        steps=DraftSteps.static(width - 1, width, counters),
        overrun=width if overrun is None else overrun,
        chunk=chunk,
        context_length=context,
        host_tokens=host_tokens,
    )
