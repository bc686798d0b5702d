"""Token tables of small grammars: which tokens may follow each state of a grammar, and the state after.

xgrammar serialises a grammar as rules, each an automaton over bytes that may call other rules. What may follow a text
is decided by the set of its stacks, the places within nested rules (as in llama.cpp's grammars); a call in a rule's
last place leaves nothing on the stack, so that repetition by recursion stays finite. The sets reached are the states.
Each state's tokens are compared with a matcher's mask, to the bit: a grammar of which one differs has no table.

Tables are read on the device. A request's state stays there and follows the tokens that each step emits, so that its
masks need no host at any lag, and rounds stay whole CUDA graphs. State 0 allows everything: of requests without a
table, and behind the end of a grammar or a draft that it refuses.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, pairwise, product
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specmatrix.engine.core.schedule.grammar import Constraint
from specmatrix.engine.device.staging import sent

# The largest table that is kept: its states, and its classes of tokens, within which no state differs.
MAX_STATES: Final = 1024
MAX_CLASSES: Final = 512
# Limits of the search: states between the bytes of tokens, stacks visited, rules within each other, and states by
# tokens.
MAX_BYTE_STATES: Final = 8 * MAX_STATES
MAX_STACKS: Final = 200_000
MAX_DEPTH: Final = 64
MAX_CELLS: Final = 1 << 24
EPSILON, CALL = -1, -2  # edges of xgrammar's automata that are no range of bytes
# A node, and the nodes to return to, innermost first; () is behind the whole text.
Stack: TypeAlias = tuple[int, ...]
State: TypeAlias = frozenset[Stack]
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


class _NoTableError(Exception):
    """A limit of the search was reached, or the grammar has a form that it does not know."""


def token_table(compiled: Any) -> TokenTable | None:  # noqa: ANN401 - xgrammar has no types
    """The table of an xgrammar.CompiledGrammar, or None."""
    try:
        moves, ends = _byte_automaton(json.loads(compiled.grammar.serialize_json()))
        return _over_tokens(compiled, moves, ends)
    except (_NoTableError, MemoryError):
        return None


def _require(condition: object) -> None:
    if not condition:
        raise _NoTableError


def _byte_automaton(grammar: dict[str, Any]) -> tuple[NDArray[np.int32], list[bool]]:
    """The state after each state and byte, int32 [states, 256], -1 for none; and whether the text may end there."""
    search = _Search(grammar)
    states, rows, pending = {search.start: 0}, [], [search.start]
    for state in pending:
        row = np.full(256, -1, np.int32)
        for byte, following in search.after(state).items():
            row[byte] = states.setdefault(following, len(states))
            if len(states) > len(pending):
                pending.append(following)
        rows.append(row)
        _require(len(states) <= MAX_BYTE_STATES)
    return np.stack(rows), [() in state for state in pending]


class _Search:
    """The sets of stacks of a grammar."""

    def __init__(self, grammar: dict[str, Any]) -> None:
        edges, rules = grammar["complete_fsm"]["edges"], grammar["per_rule_fsms"]
        _require(all(rules))
        self._edges = [edges["data_"][low:high] for low, high in pairwise(edges["indptr_"])]
        self._starts = [rule[0][1] for rule in rules]
        self._finals = {node for rule in rules for node in rule[0][2]}
        self._visits = count(1)
        self._closure = cache(self._closed)
        self.start = self._closure(frozenset([(self._starts[grammar["root_rule_id"]],)]))

    def after(self, state: State) -> dict[int, State]:
        """The states after a state's bytes."""
        following: dict[int, set[Stack]] = defaultdict(set)
        for node, *back in state - {()}:
            for low, high, target in self._edges[node]:
                for byte in range(low, high + 1) if low >= 0 else ():
                    following[byte].add((target, *back))
        return {byte: self._closure(frozenset(places)) for byte, places in following.items()}

    def _closed(self, places: State) -> State:
        """The places that read a byte or end the text, of these and those reached from them without a byte."""
        seen, pending = set(places), [*places]
        while pending:
            node, *back = pending.pop()
            found = {self._entered(edge, back) for edge in self._edges[node] if edge[0] < 0}
            if node in self._finals:
                found.add((*back,))
            pending += found - seen - {()}
            seen |= found
            _require(next(self._visits) <= MAX_STACKS)
        return frozenset(place for place in seen if place == () or any(edge[0] >= 0 for edge in self._edges[place[0]]))

    def _entered(self, edge: list[int], back: list[int]) -> Stack:
        """The place behind an edge without bytes."""
        kind, rule, target = edge
        if kind == EPSILON:
            return target, *back
        _require(kind == CALL and len(back) < MAX_DEPTH)
        last = target in self._finals and not self._edges[target]
        return self._starts[rule], *([] if last else [target]), *back


def _over_tokens(compiled: Any, moves: NDArray[np.int32], ends: list[bool]) -> TokenTable:  # noqa: ANN401
    """The table of the states that tokens reach, each compared with a matcher's mask."""
    import xgrammar

    tokens = compiled.tokenizer_info
    size, stops = tokens.vocab_size, tokens.stop_token_ids
    texts = [b"" if token in stops else text for token, text in enumerate(tokens.decoded_vocab)]
    texts += [b""] * (size - len(texts))
    lengths = np.array([*map(len, texts)])
    padded = np.array(texts, f"S{lengths.max()}").view(np.uint8).reshape(size, -1)
    numbers = np.full(len(moves) + 1, FORBIDDEN, np.int16)  # of the states of bytes, and of -1
    numbers[0], rows, pending = 0, [], [(0, xgrammar.GrammarMatcher(compiled))]
    for state, matcher in pending:
        reached = _reached(moves, state, padded, lengths)
        for following, token in zip(*map(np.ndarray.tolist, np.unique(reached, return_index=True)), strict=True):
            if following >= 0 and numbers[following] == FORBIDDEN:
                numbers[following] = len(pending)
                pending.append((following, matcher.fork()))
                _require(pending[-1][1].accept_token(token) and len(pending) <= min(MAX_STATES, MAX_CELLS // size))
        rows.append(numbers[reached])
        rows[-1][stops] = ENDED if ends[state] else FORBIDDEN
        mask = xgrammar.allocate_token_bitmask(1, size)
        matcher.fill_next_token_bitmask(mask)
        allowed = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[:size]
        _require(np.array_equal(allowed, rows[-1] != FORBIDDEN))
    after, class_of = np.unique(np.stack(rows), axis=1, return_inverse=True)
    _require(after.shape[1] <= MAX_CLASSES)
    return TokenTable(np.ascontiguousarray(after), class_of.reshape(-1).astype(np.int16))


def _reached(moves: NDArray[np.int32], state: int, texts: NDArray[np.uint8], lengths: NDArray[Any]) -> NDArray[Any]:
    """The state of bytes after each token's text, -1 where it cannot follow."""
    found = np.where(lengths > 0, state, -1)
    ids = np.flatnonzero(lengths)
    for column in range(texts.shape[1]):
        found[ids] = moves[found[ids], texts[ids, column]]
        ids = ids[(found[ids] >= 0) & (lengths[ids] > column + 1)]
    return found


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

    def clear(self, row: int) -> None:
        """Free a row."""
        if self._used.pop(row, None) is not None:
            self.state[row] = 0

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
        self.slot[row] = slot
        self.state[row] = 1 + slot * MAX_STATES + state if state >= 0 else 0
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
