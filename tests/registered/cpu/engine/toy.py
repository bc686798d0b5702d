"""A toy device in pure Python: KV slots hold tokens, and the next token is a hash of what the slots say.

A wrong page table, a lost compaction or a stale relay therefore changes tokens. Lags beyond 1 work too. With a window
the last positions of a history are read from window slots, as the layers that look back only so far would.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from engine.core.adaptive import DraftSteps
from engine.core.finish import StopRules
from engine.core.ledger import Ledger
from engine.core.plan import StepPlan, StepResult
from engine.core.prefix import PrefixCache
from engine.core.probes import Probes
from engine.core.request import Finish, Request, SamplingParams
from engine.core.schedule import Scheduler
from engine.core.transcript import Transcript
from engine.core.window import Window
from engine.loop import Loop

VOCAB = 11


def next_token(history: Sequence[int]) -> int:
    """The toy target: a deterministic function of the whole history."""
    return zlib.crc32(bytes(history)) % VOCAB


class Letters:
    """Token -> letter."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, tokens: Sequence[int]) -> str:
        self.text += "".join(chr(ord("a") + token) for token in tokens)
        return self.text


class ToyExecutor:
    """Keeps slots, page tables and a relay, as the device does; `collect` hands over what `launch` computed."""

    def __init__(self, page_size: int, pages: int, window: Window | None = None) -> None:
        self.page_size = page_size
        self.slots = [-1] * (page_size * (pages + 1))
        self.tables: dict[int, dict[int, int]] = {}
        self.window = window
        self.window_slots = [-1] * (page_size * (window.pages + 1) if window else 0)
        self.window_tables: dict[int, dict[int, int]] = {}
        self.relay: dict[int, tuple[int, int]] = {}

    def _slot(self, row: int, position: int) -> int:
        return self.tables[row][position // self.page_size] * self.page_size + position % self.page_size

    def _window_slot(self, row: int, position: int) -> int:
        return self.window_tables[row][position // self.page_size] * self.page_size + position % self.page_size

    def _store(self, row: int, position: int, token: int) -> None:
        self.slots[self._slot(row, position)] = token
        if self.window:
            self.window_slots[self._window_slot(row, position)] = token

    def _history(self, row: int, length: int, first: int = 0) -> list[int]:
        """What the slots say of positions below `length`, to queries from position `first` on."""
        whole = [self.slots[self._slot(row, p)] for p in range(length)]
        if self.window:
            for p in range(max(0, first - self.window.tokens + 1), length):
                whole[p] = self.window_slots[self._window_slot(row, p)]
        return whole

    def launch(self, plan: StepPlan) -> StepResult:
        tokens, counts = [], []
        for row in plan.rows:
            if row.admit is not None:
                self.tables[row.row], self.window_tables[row.row] = {}, {}
            for index, page in enumerate(row.window_pages):
                self.window_tables[row.row][row.window_first + index] = page
            for index, page in enumerate(row.pages):
                self.tables[row.row][row.first_page + index] = page
            out = self._prefill(row) if plan.prefill else self._round(row)
            counts.append(len(out))
            tokens.append(out + [0] * (row.width - len(out)))
        return StepResult(tokens, counts, [False] * len(counts), [False] * len(counts))

    def _prefill(self, row):
        for index, token in enumerate(row.tokens):
            self._store(row.row, row.start + index, token)
        end = row.start + len(row.tokens)
        bonus = next_token(self._history(row.row, end, row.start))
        self.relay[row.row] = (end, bonus)
        return [bonus] if row.last_chunk else []

    def _round(self, row):
        length, last = self.relay[row.row]
        history = [*self._history(row.row, length, length), last]
        accepted = 1 + (length * 7 + last) % row.width
        for offset in range(row.width):
            truth = history[length + offset] if offset < accepted else VOCAB
            self._store(row.row, length + offset, truth)
            if offset < accepted:
                history.append(next_token(history[: length + offset + 1]))
        out = history[length + 1 :]
        self.relay[row.row] = (length + accepted, out[-1])
        return out

    def collect(self, handle: StepResult) -> StepResult:
        return handle


def toy_loop(
    *, lag, page_size, pages, width=1, rows=4, chunk=None, cache=True, key_span=1, eos=(), window=None, slots=None
):
    """A loop over the toy device with every law checked after every verb; a windowed one caches no prefix.

    width is that of every round, unless slots (and the depth to begin with) adapt it.
    """
    probes = Probes()
    steps = DraftSteps(slots, width - 1, probes) if slots else DraftSteps.static(width - 1, width, probes)
    ledger = Ledger(pages, page_size, strict=True, window=window)
    scheduler = Scheduler(
        ledger,
        PrefixCache(ledger, key_span, cache and window is None),
        probes,
        max_running=rows,
        steps=steps,
        slack=(lag + 1) * steps.max_width,
        chunk=chunk,
        context_length=10_000,
    )
    return Loop(
        scheduler,
        ToyExecutor(page_size, pages, window),
        probes,
        lag=lag,
        eos_ids=frozenset(eos),
        text_stream=Letters,
        strict_memory=2,
    )


def reference(prompt: Sequence[int], params: SamplingParams, eos=()) -> tuple[list[int], str, Finish]:
    """What plain token-by-token decoding gives."""
    rules, transcript = StopRules.of(params, frozenset(eos)), Transcript(Letters())
    tokens, out = list(prompt), []
    while True:
        token = next_token(tokens)
        tokens.append(token)
        out.append(token)
        finish = rules.judge(token, len(out), transcript)
        if finish is not None:
            return out, transcript.read(), finish


def request(rid: int, prompt: Sequence[int], params: SamplingParams) -> Request:
    return Request(rid, tuple(prompt), params, seed=0)
