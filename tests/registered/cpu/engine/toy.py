"""A toy device in pure Python: KV slots hold tokens, and the next token is a hash of what the slots say.

A wrong page table, a lost compaction or a stale relay therefore changes tokens. Lags beyond 1 work too.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from engine.core.finish import StopRules
from engine.core.ledger import Ledger
from engine.core.plan import StepPlan, StepResult
from engine.core.prefix import PrefixCache
from engine.core.probes import Probes
from engine.core.request import Finish, Request, SamplingParams
from engine.core.schedule import Scheduler
from engine.loop import Loop

VOCAB = 11


def next_token(history: Sequence[int]) -> int:
    """The toy target: a deterministic function of the whole history."""
    return zlib.crc32(bytes(history)) % VOCAB


class Letters:
    """Token -> letter."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, token: int) -> str:
        self.text += chr(ord("a") + token)
        return self.text


class ToyExecutor:
    """Keeps slots, page tables and a relay, as the device does; `collect` hands over what `launch` computed."""

    def __init__(self, page_size: int, pages: int) -> None:
        self.page_size = page_size
        self.slots = [-1] * (page_size * (pages + 1))
        self.tables: dict[int, dict[int, int]] = {}
        self.relay: dict[int, tuple[int, int]] = {}

    def _slot(self, row: int, position: int) -> int:
        return self.tables[row][position // self.page_size] * self.page_size + position % self.page_size

    def _history(self, row: int, length: int) -> list[int]:
        return [self.slots[self._slot(row, p)] for p in range(length)]

    def launch(self, plan: StepPlan) -> StepResult:
        tokens, counts = [], []
        for row in plan.rows:
            if row.admit is not None:
                self.tables[row.row] = {}
            for index, page in enumerate(row.pages):
                self.tables[row.row][row.first_page + index] = page
            out = self._prefill(row) if plan.prefill else self._round(row)
            counts.append(len(out))
            tokens.append(out + [0] * (row.width - len(out)))
        return StepResult(tokens, counts, [False] * len(counts), [False] * len(counts))

    def _prefill(self, row):
        for index, token in enumerate(row.tokens):
            self.slots[self._slot(row.row, row.start + index)] = token
        end = row.start + len(row.tokens)
        bonus = next_token(self._history(row.row, end))
        self.relay[row.row] = (end, bonus)
        return [bonus] if row.last_chunk else []

    def _round(self, row):
        length, last = self.relay[row.row]
        history = [*self._history(row.row, length), last]
        accepted = 1 + (length * 7 + last) % row.width
        for offset in range(row.width):
            truth = history[length + offset] if offset < accepted else VOCAB
            self.slots[self._slot(row.row, length + offset)] = truth
            if offset < accepted:
                history.append(next_token(history[: length + offset + 1]))
        out = history[length + 1 :]
        self.relay[row.row] = (length + accepted, out[-1])
        return out

    def collect(self, handle: StepResult) -> StepResult:
        return handle


def toy_loop(*, lag, page_size, pages, width=1, rows=4, chunk=None, cache=True, key_span=1, eos=()):
    """A loop over the toy device with every law checked after every verb."""
    probes = Probes()
    ledger = Ledger(pages, page_size, strict=True)
    scheduler = Scheduler(
        ledger,
        PrefixCache(ledger, key_span, cache),
        probes,
        max_running=rows,
        width=width,
        slack=(lag + 1) * width,
        chunk=chunk,
        context_length=10_000,
    )
    return Loop(
        scheduler,
        ToyExecutor(page_size, pages),
        probes,
        lag=lag,
        eos_ids=frozenset(eos),
        text_stream=Letters,
        strict_memory=2,
    )


def reference(prompt: Sequence[int], params: SamplingParams, eos=()) -> tuple[list[int], str, Finish]:
    """What plain token-by-token decoding gives."""
    rules, letters = StopRules.of(params, frozenset(eos)), Letters()
    tokens, out, text = list(prompt), [], ""
    while True:
        token = next_token(tokens)
        tokens.append(token)
        out.append(token)
        finish, text = rules.judge(token, len(out), text, letters.push(token))
        if finish is not None:
            return out, text, finish


def request(rid: int, prompt: Sequence[int], params: SamplingParams) -> Request:
    return Request(rid, tuple(prompt), params, seed=0)
