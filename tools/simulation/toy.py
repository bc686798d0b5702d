"""A toy device in pure Python: KV slots hold tokens, and the next token is a hash of the slots' contents.

A wrong page table, a lost trim or a stale relay therefore changes tokens. Lags above 1 work too. With a window, the
last positions of a history are read from window slots, as sliding-window layers do.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

from specmatrix.engine.core.config.adaptive_file import AdaptiveSlot
from specmatrix.engine.core.draft.depth import DraftSteps
from specmatrix.engine.core.memory.groups import FullAttention, PageGroup
from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.memory.prefix_cache import PrefixCache
from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.request import Finish, OutputText, Request, SamplingParams, StopRules
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.engine.core.schedule.step import PlanRow, StepPlan, StepResult
from specmatrix.engine.loop import Loop

VOCAB = 11


def next_token(history: Sequence[int]) -> int:
    """The toy target: a deterministic function of the whole history."""
    return zlib.crc32(bytes(history)) % VOCAB


class Letters:
    """Detokenizer: one letter per token."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, tokens: Sequence[int]) -> str:
        """The text of all tokens so far."""
        self.text += "".join(chr(ord("a") + token) for token in tokens)
        return self.text


class PageTable:
    """The slots of one pool and, for each row, the slot of each position."""

    def __init__(self, page_size: int, pages: int) -> None:
        self.page_size = page_size
        self.slots = [VOCAB] * (page_size * (pages + 1))
        self.rows: dict[int, list[int]] = {}

    def enter(self, row: int, first: int, pages: Sequence[int]) -> None:
        """Enter pages at indices `first`, `first` + 1, .. of the row; earlier gaps point to the padding page."""
        size, slots = self.page_size, self.rows[row]
        slots.extend([0] * (first * size - len(slots)))
        for index, page in enumerate(pages, first):
            slots[index * size : index * size + size] = range(page * size, page * size + size)

    def write(self, row: int, start: int, tokens: Sequence[int]) -> None:
        """Write tokens to the slots of positions from `start`."""
        where = self.rows[row]
        for position, token in enumerate(tokens, start):
            self.slots[where[position]] = token

    def clear(self, pages: Sequence[int]) -> None:
        """Fill pages with a token that is in no vocabulary."""
        for page in pages:
            self.slots[page * self.page_size : (page + 1) * self.page_size] = [VOCAB] * self.page_size

    def read(self, row: int, start: int, end: int) -> list[int]:
        """The contents of the slots of positions start..end-1."""
        slots = self.slots
        return [slots[slot] for slot in self.rows[row][start:end]]


class ToyExecutor:
    """Keeps slots, page tables and a relay like the device; `collect` returns what `launch` computed."""

    def __init__(self, groups: Sequence[PageGroup]) -> None:
        self.groups = groups
        self.tables = [PageTable(group.page_size, group.num_pages) for group in groups]
        self.relay: dict[int, tuple[int, int]] = {}  # row -> KV length and last token
        self.computed: dict[int, int] = {}  # account -> KV length after its last step

    def launch(self, plan: StepPlan) -> StepResult:
        """Run the step at once."""
        tokens, counts = [], []
        for row in plan.rows:
            for table, (first, pages) in zip(self.tables, row.pages, strict=False):
                if row.admit is not None:
                    table.rows[row.row] = []
                table.enter(row.row, first, pages)
            out = self._prefill(row) if plan.prefill else self._round(row)
            self.computed[row.account] = self.relay[row.row][0]
            counts.append(len(out))
            tokens.append(out + [0] * (row.width - len(out)))
        no = [False] * len(counts)
        return StepResult(tokens=tokens, counts=counts, moved=no, branched=no)

    def collect(self, handle: StepResult) -> StepResult:
        """The step's result."""
        return handle

    def drop(self) -> None:
        """No effect: `launch` leaves no pending results."""

    def clear(self, free: Sequence[Sequence[int]]) -> None:
        """Fill pages with a token that no row wrote."""
        for table, pages in zip(self.tables, free, strict=True):
            table.clear(pages)

    def _store(self, row: int, start: int, tokens: Sequence[int]) -> None:
        for table in self.tables:
            table.write(row, start, tokens)

    def _history(self, row: int, length: int, first: int) -> list[int]:
        """The slots' contents for positions below `length`, as queries from position `first` read them."""
        near = self.groups[-1].reads_from(first)
        return self.tables[0].read(row, 0, near) + self.tables[-1].read(row, near, length)

    def _prefill(self, row: PlanRow) -> list[int]:
        start, tokens = row.start, row.tokens
        if start < 0:
            start, last = self.relay[row.row]
            tokens = (last,)
        self._store(row.row, start, tokens)
        end = start + len(tokens)
        bonus = next_token(self._history(row.row, end, start))
        self.relay[row.row] = (end, bonus)
        return [] if row.following is not None else [bonus]

    def _round(self, row: PlanRow) -> list[int]:
        length, last = self.relay[row.row]
        accepted = 1 + (length * 7 + last) % row.width
        state = zlib.crc32(bytes(self._history(row.row, length, length)))
        kept, out = [last], []
        for _ in range(accepted):
            state = zlib.crc32(bytes(kept[-1:]), state)
            out.append(state % VOCAB)
            kept.append(out[-1])
        self._store(row.row, length, [*kept[:-1], *[VOCAB] * (row.width - accepted)])
        self.relay[row.row] = (length + accepted, out[-1])
        return out


def toy_loop(
    *,
    lag: int,
    page_size: int,
    pages: int,
    width: int = 1,
    rows: int = 4,
    chunk: int | None = None,
    cache: bool = True,
    key_span: int = 1,
    eos: Collection[int] = (),
    windows: Sequence[PageGroup] = (),
    mixed: bool = False,
    slots: tuple[AdaptiveSlot, ...] | None = None,
) -> Loop[StepResult]:
    """A loop over the toy device that checks every law after every operation; with windows there is no prefix cache.

    width: nodes of every round, or with `slots` (adaptive steps) of the first ones.
    """
    counters = Counters()
    steps = DraftSteps(slots, width - 1, counters) if slots else DraftSteps.static(width - 1, width, counters)
    ledger = Ledger(FullAttention(pages, page_size), *windows, strict=True)
    scheduler = Scheduler(
        ledger,
        PrefixCache(ledger, key_span, cache and not windows),
        counters,
        max_running=rows,
        steps=steps,
        overrun=(lag + 1) * steps.max_width,
        chunk=chunk,
        context_length=10_000,
        mixed=mixed,
    )
    return Loop(
        scheduler,
        ToyExecutor(ledger.groups),
        counters,
        lag=lag,
        eos_ids=frozenset(eos),
        text_stream=Letters,
        strict_memory=2,
    )


def reference(
    prompt: Sequence[int], params: SamplingParams, eos: Collection[int] = ()
) -> tuple[list[int], str, Finish]:
    """The result of plain token-by-token decoding: tokens, text and finish."""
    rules, transcript = StopRules.of(params, frozenset(eos)), OutputText(Letters())
    state = zlib.crc32(bytes(prompt))
    out: list[int] = []
    while True:
        token = state % VOCAB
        state = zlib.crc32(bytes((token,)), state)
        out.append(token)
        finish = rules.judge(token, len(out), transcript)
        if finish is not None:
            return out, transcript.read(), finish


def request(rid: int, prompt: Sequence[int], params: SamplingParams) -> Request:
    """A request for the toy loop."""
    return Request(rid, tuple(prompt), params, seed=0)
