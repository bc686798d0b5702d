"""Masks of the tokens that a request's grammar allows, exact at each node of a draft tree, at every lag.

A mask is a function of the request's committed tokens and the tree. The round's forward is launched first; then the
host waits for the steps in flight, whose tokens reach the matchers, copies the tree down, walks it, and sends the masks
up behind the forward, which hides most of the cost. As CUDA graphs a round is two, before and after this. A matcher is
advanced here only, once per step: a second reader would advance it twice (sglang#29110). Small grammars take none of
this: their masks are read from tables on the device (`token_tables.py`).

Masks come after bias, penalties and bans and before temperature and min_p, as in SGLang. A node's row allows what may
follow the node; rows that cannot be emitted, after a draft that the grammar refuses or after its end, are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import thread_time
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from specmatrix.engine.core.observe.step_counter import Counters
from specmatrix.engine.core.schedule.grammar import Constraint
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.step import PlanRow, StepPlan
from specmatrix.engine.device.batch import count
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.cuda_graphs import HostWork
from specmatrix.engine.device.staging import Staged, received, sent
from specmatrix.engine.device.token_tables import CompiledGrammar, GrammarRows, TokenTables

CompiledGrammars: TypeAlias = Mapping[Constraint, CompiledGrammar]
WORD: Final = 32
TABLES, HOST = 1, 2
# CPU time of the masks of one request's round, behind which no token of it is legal: the whole batch waits for them.
MASK_SECONDS: Final = 0.5
# Stands for a matcher on ranks that get their masks from rank 0.
ELSEWHERE: Final[Any] = object()


class RequestMatcher:
    """The place of one request's output in its grammar, and of the drafts behind it.

    Until the marker that ends reasoning, every token is free and none reaches the grammar. The marker is looked for in
    the tokens themselves, so that removing drafts that completed it also switches the grammar off again.
    """

    def __init__(self, compiled: Any, params: SamplingParams, output: Sequence[int]) -> None:  # noqa: ANN401
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        # xgrammar refuses these too, and warns on stderr of each.
        self._special = frozenset(compiled.tokenizer_info.special_token_ids)
        self._marker = list(params.reasoning_end_ids)
        self._tokens: list[int] = []
        self._fed: list[bool] = []  # whether each token has reached the grammar
        for token in output:
            self.push(token)

    @property
    def begun(self) -> bool:
        """Whether the next token is the grammar's."""
        return self._fed[-1:] == [True] or self._tokens[len(self._tokens) - len(self._marker) :] == self._marker

    @property
    def ended(self) -> bool:
        """Whether the grammar has ended."""
        return bool(self._matcher.is_terminated())

    def push(self, token: int) -> bool:
        """Advance by a token. False, without a change, if the grammar refuses it."""
        begun = self.begun
        if begun and (self.ended or token in self._special or not self._matcher.accept_token(token)):
            return False
        self._tokens.append(token)
        self._fed.append(begun)
        return True

    def pop(self) -> None:
        """Take back the last token."""
        self._tokens.pop()
        if self._fed.pop():
            self._matcher.rollback(1)

    def fill(self, masks: Tensor, row: int) -> None:
        """Write the tokens that may follow to a row of masks int32 [rows, words], whose bits are set."""
        if self.begun and not self.ended:
            self._matcher.fill_next_token_bitmask(masks, row)


@dataclass(eq=False)
class GrammarMasks:
    """The matchers and table states of the requests in all rows. compiled: holds the grammars of all live requests.
    size: rows, and tokens of the vocabulary. on_host: does the host's work in the middle of a round, which may be a
    CUDA graph. tabled: small grammars have tables on the device. ranks: rank 0's matchers, and its clock, decide."""

    compiled: CompiledGrammars
    size: tuple[int, int]
    counters: Counters
    on_host: Callable[[HostWork, StepPlan], None]
    device: torch.device
    tabled: bool = True
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        self._tables: TokenTables | None = None  # from the first grammar that has one
        self._by_row: dict[int, RequestMatcher | None] = {}  # of rows with a grammar; None if it is in the tables
        self._unread: deque[tuple[list[RequestMatcher | None], Staged]] = deque()

    def admit(self, rows: Sequence[PlanRow]) -> None:
        """Start the matchers of requests that begin a residence, from the tokens of their earlier ones."""
        for row in rows:
            if row.admit is None:
                continue
            self._by_row.pop(row.row, None)
            if self._tables is not None:
                self._tables.clear(row.row)
            params = row.admit[0]
            if params.constraint is not None:
                assert row.arrived is not None
                prompt, tokens = row.arrived
                self._by_row[row.row] = self._matcher(row.row, params, tokens[prompt:])

    def _matcher(self, row: int, params: SamplingParams, output: Sequence[int]) -> RequestMatcher | None:
        """A new matcher; None if the row has a state in the tables."""
        assert params.constraint is not None
        compiled = self.compiled[params.constraint]
        if self.tabled and compiled.table is not None:
            self._tables = self._tables or TokenTables(*self.size, self.device)
            if self._tables.admit(row, (params.constraint, (*params.reasoning_end_ids,)), compiled.table, output):
                return None
        return ELSEWHERE if self.ranks.rank else RequestMatcher(compiled.grammar, params, output)

    def path(self, plan: StepPlan) -> int:
        """Where a plan's masks come from: 0 has none, TABLES, HOST, or both."""
        found = [self._by_row[row.row] for row in plan.rows if row.row in self._by_row] if plan.constrained else []
        return TABLES * (None in found) + HOST * any(found)

    def rows_of(self, plan: StepPlan, rows: Tensor, emits: Tensor | None = None) -> GrammarRows | None:
        """The table states of a batch's rows [B]; None if its plan needs none. emits: as in GrammarRows."""
        return GrammarRows(self._tables, rows, emits) if self._tables and self.path(plan) & TABLES else None

    def launched(self, plan: StepPlan, staged: Staged) -> None:
        """Remember a launched step, whose tokens the next step's masks need."""
        path, constrained = self.path(plan), sum(row.row in self._by_row for row in plan.rows)
        if path & HOST:
            self._unread.append(([self._by_row.get(row.row) for row in plan.rows], staged))
        if not plan.prefill:
            self.counters.hit("grammar.round")
            self.counters.hit("grammar.on_device", path == TABLES)
            self.counters.hit("grammar.mixed", constrained < len(plan.rows))

    def drop(self) -> None:
        """Forget the launched steps; their requests begin another residence."""
        self._unread.clear()

    def apply(
        self, plan: StepPlan, tokens: Tensor, parents: Tensor, logits: Tensor, states: GrammarRows | None
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, N, V] with -inf for forbidden tokens, and the legality int64 [B, N] of each row.
        tokens, parents [B, N]: the draft trees. states: `rows_of`, after the trees.

        A row in which nothing would be left stays as it is.
        """
        allowed: Any = True if states is None else states.allowed(states.nodes)
        if states is None or self.path(plan) & HOST:
            allowed = self._from_host(plan, tokens, parents) & allowed
        masked = logits.masked_fill(~allowed, float("-inf"))
        left = masked.amax(-1) > float("-inf")
        changed = ~allowed.gather(2, logits.argmax(-1, keepdim=True))[..., 0]
        return torch.where(left[..., None], masked, logits), left * (1 + changed.long())

    def _from_host(self, plan: StepPlan, tokens: Tensor, parents: Tensor) -> Tensor:
        """The matchers' masks, bool [B, N, V]."""
        words = torch.empty(*tokens.shape, -(-self.size[1] // WORD), dtype=torch.int32, device=tokens.device)
        self.on_host(partial(self._write, torch.stack((tokens, parents)), words), plan)
        bits = self.ranks.agreed(words)[..., None] >> count(WORD, tokens.device).int() & 1
        return bits.flatten(2)[..., : self.size[1]].bool()

    def _write(self, trees: Tensor, words: Tensor, plan: StepPlan) -> None:
        """Write the masks [B, N, words] of the trees [2, B, N], tokens and parents. Waits for the steps in flight, and
        for the trees; rows beyond the plan's are padding."""
        if self.ranks.rank:
            self._unread.clear()
            return
        while self._unread:
            self._read(*self._unread.popleft())
        masks = torch.full(words.shape, -1, dtype=torch.int32)
        drafted, above = received(trees).tolist()
        for index, row in enumerate(plan.rows):
            matcher = self._by_row.get(row.row)
            if matcher is not None and not (plan.prefill and row.following is not None):
                self.walk(matcher, drafted[index], above[index], masks[index])
        words.copy_(sent(masks, words.device))

    def walk(self, matcher: RequestMatcher, tokens: list[int], parents: list[int], masks: Tensor) -> None:
        """Fill the masks [N, words] of a tree's nodes; the matcher has consumed the root and is left there."""
        children: list[list[int]] = [[] for _ in tokens]
        for node, parent in enumerate(parents[1:], 1):
            children[parent].append(node)

        def visit(node: int) -> None:
            matcher.fill(masks, node)
            for child in (later for later in children[node] if thread_time() - began <= MASK_SECONDS):
                if matcher.push(tokens[child]):
                    visit(child)
                    matcher.pop()
                else:
                    self.counters.hit("grammar.forbade", not matcher.ended)

        began = thread_time()
        visit(0)
        if thread_time() - began > MASK_SECONDS:
            masks.zero_()

    def _read(self, matchers: list[RequestMatcher | None], staged: Staged) -> None:
        """Advance the matchers by a launched step's tokens."""
        if staged.event is not None:
            staged.event.synchronize()
        rows = zip(matchers, staged.output.tokens.tolist(), staged.output.count.tolist(), strict=True)
        for matcher, tokens, taken in rows:
            for token in tokens[:taken] if matcher is not None else ():
                matcher.push(token)
