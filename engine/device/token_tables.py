"""Token tables of small grammars on the device: which tokens may follow each state of a grammar, and the state after.

A request's state stays on the device and follows the tokens that each step emits, so that its masks need no host at any
lag, and rounds stay whole CUDA graphs. State 0 allows everything: of requests without a table, and behind the end of a
grammar or a draft that it refuses. Masks equal those of the host's matchers to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmatrix.engine.core.schedule.grammar import Constraint
from specmatrix.engine.device.staging import integers, sent

# The largest table that is kept: its states, and its classes of tokens, within which no state differs.
MAX_STATES: Final = 1024
MAX_CLASSES: Final = 512
# Tables on the device at once, in 16 MiB and two bytes for each token of the vocabulary.
KEPT: Final = 16
FORBIDDEN, ENDED = -1, -2
# What GrammarRows counts for each row: forbidden drafts, and masked ones.
FORBADE, MASKED = range(2)
# A grammar, and the tokens that end the reasoning before it.
Key: TypeAlias = tuple[Constraint, tuple[int, ...]]


class TokenTable(NamedTuple):
    """after int16 [states, classes]: the state after each state's tokens, FORBIDDEN, or ENDED for a token that ends the
    text; 0 is the start. class_of int16 [V]."""

    after: NDArray[np.int16]
    class_of: NDArray[np.int16]

    def state(self, output: Sequence[int]) -> int:
        """The state after an output that the grammar allows."""
        state = 0
        for token in output:
            state = int(self.after[state, self.class_of[token]]) if state >= 0 else state
        return state

    def behind(self, marker: tuple[int, ...]) -> TokenTable | None:
        """The table with a state for each part of the marker that ends reasoning; None if it would be too large."""
        ids = sorted({*marker})
        kinds = np.zeros(len(self.class_of), np.int64)
        kinds[ids] = np.arange(1, len(ids) + 1)
        pairs, class_of = np.unique(self.class_of.astype(np.int64) * 1024 + kinds, return_inverse=True)
        size, grammar = len(marker), self.after[:, pairs // 1024]
        if len(grammar) + size > MAX_STATES or len(pairs) > MAX_CLASSES:
            return None
        before = np.zeros((size, len(pairs)), np.int16)
        for place, (column, kind) in product(range(size), enumerate(pairs % 1024)):
            read = (*marker[:place], ids[kind - 1]) if kind else ()
            fits = (n for n in range(len(read), 0, -1) if read[len(read) - n :] == marker[:n])
            before[place, column] = next(fits, 0)
        return TokenTable(np.concatenate((before, np.where(grammar < 0, grammar, grammar + size))), class_of)


@dataclass(eq=False)
class CompiledGrammar:
    """An xgrammar.CompiledGrammar, and its table over tokens if that is small. Other ranks get the table only."""

    grammar: Any
    table: TokenTable | None = None

    def __reduce__(self) -> tuple[type[CompiledGrammar], tuple[None, TokenTable | None]]:
        return CompiledGrammar, (None, self.table)


class TokenTables:
    """The tables of an engine's requests, at most KEPT, and the state of each row of requests.

    after int16 [1 + KEPT * MAX_STATES, MAX_CLASSES]: the table in slot s begins at 1 + s * MAX_STATES. class_of int16
    [KEPT, V]. state, slot int64 [rows].
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.after = torch.zeros(1 + KEPT * MAX_STATES, MAX_CLASSES, dtype=torch.int16, device=device)
        self.class_of = torch.zeros(KEPT, vocab_size, dtype=torch.int16, device=device)
        self.state = torch.zeros(rows, dtype=torch.int64, device=device)
        self.slot = torch.zeros_like(self.state)
        self._slots: dict[Key, tuple[int, TokenTable]] = {}
        self._used: dict[int, int] = {}  # slot by row

    def clear(self, rows: Sequence[int]) -> None:
        """Free these rows."""
        if any([self._used.pop(row, None) is not None for row in rows]):
            self.state.index_fill_(0, integers(rows, self.state.device), 0)

    def admit(self, row: int, key: Key, table: TokenTable, output: Sequence[int]) -> bool:
        """Put a free row in its state after an output. False if there is no room for its table."""
        known = self._slots.get(key)
        if known is None:
            whole = table.behind(key[1]) if key[1] else table
            unused = {*range(KEPT)} - {*self._used.values()}
            if whole is None or not unused:
                return False
            empty = unused - {slot for slot, _ in self._slots.values()}
            known = min(empty or unused), whole
            self._slots = {other: held for other, held in self._slots.items() if held[0] != known[0]} | {key: known}
            self._upload(*known)
        slot, state = known[0], known[1].state(output)
        self._used[row] = slot
        at = integers([row], self.state.device)
        self.slot.index_fill_(0, at, slot)
        self.state.index_fill_(0, at, 1 + slot * MAX_STATES + state if state >= 0 else 0)
        return True

    def _upload(self, slot: int, table: TokenTable) -> None:
        device, first = self.state.device, 1 + slot * MAX_STATES
        states, classes = table.after.shape
        placed = np.where(table.after >= 0, table.after + first, np.where(table.after == ENDED, 0, FORBIDDEN))
        self.after[first : first + states, :classes] = sent(torch.from_numpy(placed.astype(np.int16)), device)
        self.class_of[slot] = sent(torch.from_numpy(table.class_of.astype(np.int16)), device)


class GrammarRows:
    """The states of a batch's rows during one step.

    state [B]: after the tokens known so far. nodes [B, N]: after each node of the tree. counts int64 [B, 2]: see
    FORBADE. emits: rows [B] whose prefill chunk is their last; None: all rows emit.
    """

    def __init__(self, tables: TokenTables, rows: Tensor, emits: Tensor | None) -> None:
        self._tables, self._rows, self._emits = tables, rows, emits
        self._held = tables.state.index_select(0, rows)
        self._slot = tables.slot.index_select(0, rows)
        self.state = self._held if emits is None else self._held.masked_fill(~emits, 0)
        self.nodes = self.state[:, None]
        self.counts = torch.zeros(len(rows), 2, dtype=torch.int64, device=rows.device)

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The states after tokens, both [B, N]; FORBIDDEN if one is."""
        return self._tables.after[states, self._tables.class_of[self._slot[:, None], tokens].long()].long()

    def allowed(self, states: Tensor) -> Tensor:
        """The tokens that may follow states [B, N] -> bool [B, N, V]."""
        classes = self._tables.class_of[self._slot].long()
        return self._tables.after[states].gather(2, classes[:, None].expand(-1, states.shape[1], -1)) >= 0

    def walk(self, tokens: Tensor, parents: Tensor, depth: int) -> None:
        """Set the states of a tree's nodes [B, N]."""
        root, above = self.state[:, None], parents.clamp(min=0)
        self.nodes = root.expand_as(tokens)
        for _ in range(depth):
            reached = self.after(self.nodes.gather(1, above), tokens)[:, 1:]
            self.nodes = torch.cat((root, reached.clamp(min=0)), 1)
            self.counts[:, FORBADE] = (reached < 0).sum(1)

    def advance(self, last: Tensor, bonus: Tensor) -> None:
        """Follow the emitted tokens: to the last accepted node [B, 1], and the token after it [B, 1]."""
        node = self.nodes.gather(1, last)
        ended = self.after(node, bonus).clamp(min=0)
        self.state = ended[:, 0]
        held = self.state if self._emits is None else torch.where(self._emits, self.state, self._held)
        self._tables.state.index_copy_(0, self._rows, held)

    def masked(self, logits: Tensor, states: Tensor, ids: Tensor) -> Tensor:
        """Draft logits [B, N, X] of the tokens ids [X], with -inf for those that may not follow states [B, N]; a row in
        which nothing would be left stays as it is."""
        allowed = self.allowed(states).index_select(2, ids)
        self.counts[:, MASKED] += (~allowed.gather(2, logits.argmax(-1, keepdim=True))).sum((1, 2))
        masked = logits.masked_fill(~allowed, float("-inf"))
        return torch.where(masked.amax(-1, keepdim=True) > float("-inf"), masked, logits)
