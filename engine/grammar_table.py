"""The automaton of a compiled grammar over a tokenizer's tokens, if it is small.

xgrammar serialises a grammar as rules, each an automaton over bytes that may call other rules. What may follow a text
is decided by the set of its stacks, the places within nested rules (as in llama.cpp's grammars); a call in a rule's
last place leaves nothing on the stack, so that repetition by recursion stays finite. The sets reached are the states.
Each state's tokens are compared with a matcher's mask, to the bit: a grammar of which one differs has no table.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specmatrix.engine.device.token_tables import ENDED, FORBIDDEN, MAX_CLASSES, MAX_STATES, TokenTable

# Limits of the search: states between the bytes of tokens, stacks visited, rules within each other, and states by
# tokens.
MAX_BYTE_STATES: Final = 8 * MAX_STATES
MAX_STACKS: Final = 200_000
MAX_DEPTH: Final = 64
MAX_CELLS: Final = 1 << 24
EPSILON, CALL = -1, -2  # edges of xgrammar's automata that are no range of bytes

# A node, and the nodes to return to, innermost first; () is behind the whole text.
Stack: TypeAlias = tuple[int, ...]
END: Final[Stack] = ()
State: TypeAlias = frozenset[Stack]


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
    return np.stack(rows), [END in state for state in pending]


class _Search:
    """The sets of stacks of a grammar."""

    def __init__(self, grammar: dict[str, Any]) -> None:
        edges, rules = grammar["complete_fsm"]["edges"], grammar["per_rule_fsms"]
        _require(all(rules))
        bounds = edges["indptr_"]
        self._edges = [edges["data_"][low:high] for low, high in pairwise(bounds)]
        self._starts = [rule[0][1] for rule in rules]
        self._finals = {node for rule in rules for node in rule[0][2]}
        self._visited = 0
        self._closure = cache(self._closed)
        self.start = self._closure(frozenset([(self._starts[grammar["root_rule_id"]],)]))

    def after(self, state: State) -> dict[int, State]:
        """The states after a state's bytes."""
        following: dict[int, set[Stack]] = defaultdict(set)
        for node, *back in state - {END}:
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
            pending += found - seen - {END}
            seen |= found
            self._visited += 1
            _require(self._visited <= MAX_STACKS)
        return frozenset(place for place in seen if place == END or any(edge[0] >= 0 for edge in self._edges[place[0]]))

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
    import torch
    import xgrammar

    tokens = compiled.tokenizer_info
    size, stops = tokens.vocab_size, tokens.stop_token_ids
    texts = [b"" if token in stops else text for token, text in enumerate(tokens.decoded_vocab)]
    texts += [b""] * (size - len(texts))
    lengths, padded = np.array([*map(len, texts)]), np.array(texts, "S").view(np.uint8).reshape(size, -1)
    numbers = np.full(len(moves) + 1, FORBIDDEN, np.int16)  # of the states of bytes, and of -1
    numbers[0], rows, pending = 0, [], [(0, xgrammar.GrammarMatcher(compiled))]
    mask = torch.empty(1, -(-size // 32), dtype=torch.int32)
    for state, matcher in pending:
        reached = _reached(moves, state, padded, lengths)
        for following, token in zip(*map(np.ndarray.tolist, np.unique(reached, return_index=True)), strict=True):
            if following >= 0 and numbers[following] == FORBIDDEN:
                numbers[following] = len(pending)
                pending.append((following, matcher.fork()))
                _require(pending[-1][1].accept_token(token) and len(pending) <= min(MAX_STATES, MAX_CELLS // size))
        rows.append(numbers[reached])
        rows[-1][stops] = ENDED if ends[state] else FORBIDDEN
        mask.fill_(-1)
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
