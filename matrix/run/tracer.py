"""Traces a reference engine: every step as it is scheduled, launched and resolved, with drafts, draws and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, cast

import torch
from torch import Tensor

from specmatrix.engine.core.memory.ledger import Entry
from specmatrix.engine.core.observe.step_counter import Delivery
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.sampling import SamplingRows, pick
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult
from specmatrix.matrix.run.failing_request import entry_text, tokens_of
from specmatrix.matrix.subjects.in_process import ReferenceEngine
from specmatrix.reports.gate_numbers import MAX_NUMBER
from specmatrix.reports.schema import Phase, StepEvent, StepRow, Token, TreeNode
from specmatrix.reports.wording import spans

MAX_EVENTS: Final = 3000
# Maximum nodes over all drafts; later rounds show only their widths.
MAX_NODES: Final = 20_000


@dataclass(slots=True)
class TracedRow:
    """One request in one event, before requests and accounts have their names."""

    rid: int
    account: int
    width: int
    pages: str = ""
    committed: int = 0
    in_flight: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    start: int | None = None  # index of the first of `tokens` in the output
    outcome: str = ""
    tree: tuple[TreeNode, ...] = ()
    note: str = ""


@dataclass(slots=True)
class TracedEvent:
    """One event, see `StepEvent`."""

    phase: Phase
    step: int
    prefill: bool
    in_flight: int
    rows: list[TracedRow]
    free: int
    cached: int
    waiting: tuple[int, ...]
    entries: list[Entry] = field(default_factory=list)


class Tracer:
    """Attaches to an engine and records its steps, without changing its results.

    A round that replays as a CUDA graph has no draft here: a graph runs no Python. cut: there were more events than it
    keeps.
    """

    def __init__(self, engine: ReferenceEngine) -> None:
        self._loop = cast(Any, engine.llm.loop)
        self._ledger = self._loop.scheduler.ledger
        self._loop.observers = (*self._loop.observers, self)
        self.attach()
        self._entries: list[Entry] = []
        engine.llm.subscribe_journal(self._entries.append)
        self._taken = len(self._entries)
        self._events: list[TracedEvent] = []
        self._steps: dict[int, int] = {}  # id of a plan in flight to its step
        self._trees: list[tuple[TreeNode, ...]] = []  # of the launch that runs now, by row
        self._last: dict[int, Token] = {}  # request to the last token of its latest round
        self._nodes = self._count = 0
        self.cut = False

    def attach(self) -> None:
        """Trace the running executor: an engine has a new one once its memory or weights are renewed."""
        executor = self._loop.executor
        self._launch, executor.launch = executor.launch, self._traced_launch
        self._verify: Callable[..., VerifyResult] = executor.plain.verify
        executor.plain.verify = self._traced_verify

    def planned(self, plan: StepPlan, in_flight: int) -> None:
        self._steps[id(plan)] = self._count
        self._count += 1
        if plan.prefill:  # after a retraction it yields its own token
            for row in plan.rows:
                self._last.pop(row.rid, None)
        self._note("schedule", plan, in_flight)

    def resolved(self, plan: StepPlan, result: StepResult, deliveries: Sequence[Delivery]) -> None:
        event = self._note("resolve", plan, len(self._loop.pending))
        self._steps.pop(id(plan), None)
        if event is None:
            return
        for row, tokens, (request, outcome, taken, finish) in zip(event.rows, result.tokens, deliveries, strict=False):
            row.tokens, row.start = tuple(tokens[:taken]), len(request.output) - taken
            row.outcome = outcome.value if finish is None else f"ended by {finish.reason}"
            if plan.prefill and taken:
                self._last.setdefault(row.rid, *tokens_of(tokens[taken - 1 : taken]))

    def _traced_launch(self, plan: StepPlan) -> Any:  # noqa: ANN401 - as the executor's handle
        self._trees = []
        handle = self._launch(plan)
        event = self._note("launch", plan, len(self._loop.pending) + 1)
        if event is not None:
            for row, tree in zip(event.rows, self._trees, strict=False):
                row.tree = tree
                row.note = self._unlike_last(row.rid, tree)
        return handle

    def _traced_verify(
        self, logits: Tensor, tree: DraftTree, start: Tensor, rows: SamplingRows | None, ranks: Ranks = ALONE
    ) -> VerifyResult:
        verdict = self._verify(logits, tree, start, rows, ranks)
        if not (logits.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._nodes += tree.tokens.numel()
            if self._nodes <= MAX_NODES:
                self._trees = _drawn(logits, tree, start, rows, verdict)
        return verdict

    def _unlike_last(self, rid: int, tree: Sequence[TreeNode]) -> str:
        """A sentence if a draft's root is not the last token of the request's previous round, else ""."""
        root, last = tree[0].token, self._last.get(rid)
        self._last[rid] = [node for node in tree if node.accepted][-1].draw
        if last is None or last.id == root.id:
            return ""
        return f"the draft's root is {root.text!r} ({root.id}); the step before ended with {last.text!r} ({last.id})"

    def _note(self, phase: Phase, plan: StepPlan, in_flight: int) -> TracedEvent | None:
        """Add an event with the pages as they are now; None once there are too many."""
        if len(self._events) >= MAX_EVENTS:
            self.cut = True
            return None
        rows = []
        for each in plan.rows:
            row, account = TracedRow(each.rid, each.account, each.width), self._ledger.accounts.get(each.account)
            if account is not None:
                row.pages, row.committed = spans(account.groups[0].pages), account.committed
                row.in_flight = tuple(account.in_flight)
            rows.append(row)
        waiting = tuple(request.rid for request in self._loop.scheduler.waiting)
        _, free, cached = self._ledger.counts
        event = TracedEvent(phase, self._steps[id(plan)], plan.prefill, in_flight, rows, free, cached, waiting)
        event.entries, self._taken = self._entries[self._taken :], len(self._entries)
        self._events.append(event)
        return event

    def events(self, names: Mapping[int, str]) -> tuple[StepEvent, ...]:
        """The events so far. names: of requests, by id."""

        def name(rid: int) -> str:
            return names.get(rid, f"request {rid}") if rid else "ledger"

        return tuple(
            StepEvent(
                event=each.phase,
                step=each.step,
                prefill=each.prefill,
                in_flight=each.in_flight,
                rows=tuple(_named(row, name(row.rid)) for row in each.rows),
                free=each.free,
                cached=each.cached,
                waiting=tuple(map(name, each.waiting)),
                journal=tuple(f"{name(entry[1])}: {entry_text(entry)}" for entry in each.entries),
            )
            for each in self._events
        )


def _named(row: TracedRow, name: str) -> StepRow:
    same = {field.name: getattr(row, field.name) for field in fields(row) if field.name in StepRow.__struct_fields__}
    return StepRow(**same | {"request": name, "tokens": tokens_of(row.tokens)})


def _drawn(
    logits: Tensor, tree: DraftTree, start: Tensor, rows: SamplingRows | None, verdict: VerifyResult
) -> list[tuple[TreeNode, ...]]:
    """Each row's draft with the target's own draw and margin at every node."""
    draws = pick(logits, None if rows is None else start[:, None] + tree.depths + 1, rows).tolist()
    best = logits.float().topk(2, -1).values
    margins = (best[..., 0] - best[..., 1]).nan_to_num(0, MAX_NUMBER).clamp(0, MAX_NUMBER).tolist()
    paths, counts = verdict.path.tolist(), verdict.count.tolist()
    found = []
    for row, (tokens, parents) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        accepted = set(paths[row][: counts[row]])
        texts, drawn = tokens_of(tokens), tokens_of(draws[row])
        found.append(
            tuple(
                TreeNode(parents[node], texts[node], drawn[node], round(margins[row][node], 4), node in accepted)
                for node in range(len(tokens))
            )
        )
    return found
