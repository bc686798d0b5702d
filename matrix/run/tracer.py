"""Traces a reference engine: every step as it is scheduled, launched and resolved, with drafts, draws and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

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
from specmatrix.reports.schema import MAX_NUMBER, Phase, StepEvent, StepRow, Token, TreeNode
from specmatrix.reports.wording import spans

MAX_EVENTS: Final = 3000
# Maximum nodes over all drafts; later rounds show only their widths.
MAX_NODES: Final = 20_000
# The fields of an event or of one of its rows, before requests and accounts have their names.
Traced: TypeAlias = dict[str, Any]


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
        self._events: list[Traced] = []
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
        read = zip(event["rows"], result.tokens, deliveries, strict=False)
        for row, tokens, (request, outcome, taken, finish) in read:
            row["tokens"], row["start"] = tokens_of(tokens[:taken]), len(request.output) - taken
            row["outcome"] = outcome.value if finish is None else f"ended by {finish.reason}"
            if plan.prefill and taken:
                self._last.setdefault(row["request"], row["tokens"][-1])

    def _traced_launch(self, plan: StepPlan) -> Any:  # noqa: ANN401 - as the executor's handle
        self._trees = []
        handle = self._launch(plan)
        event = self._note("launch", plan, len(self._loop.pending) + 1)
        if event is not None:
            for row, tree in zip(event["rows"], self._trees, strict=False):
                row |= {"tree": tree, "note": self._unlike_last(row["request"], tree)}
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

    def _note(self, phase: Phase, plan: StepPlan, in_flight: int) -> Traced | None:
        """Add an event with the pages as they are now; None once there are too many."""
        if len(self._events) >= MAX_EVENTS:
            self.cut = True
            return None
        rows: list[Traced] = []
        for each in plan.rows:
            rows.append({"request": each.rid, "width": each.width})
            if (account := self._ledger.accounts.get(each.account)) is not None:
                rows[-1] |= {"pages": spans(account.groups[0].pages), "committed": account.committed}
                rows[-1]["in_flight"] = tuple(account.in_flight)
        _, free, cached = self._ledger.counts
        event: Traced = {"event": phase, "step": self._steps[id(plan)], "prefill": plan.prefill, "in_flight": in_flight}
        event |= {"rows": rows, "free": free, "cached": cached, "journal": self._entries[self._taken :]}
        event["waiting"] = [request.rid for request in self._loop.scheduler.waiting]
        self._taken = len(self._entries)
        self._events.append(event)
        return event

    def events(self, names: Mapping[int, str]) -> tuple[StepEvent, ...]:
        """The events so far. names: of requests, by id."""

        def name(rid: int) -> str:
            return names.get(rid, f"request {rid}") if rid else "ledger"

        def named(each: Traced) -> StepEvent:
            rows = tuple(StepRow(**row | {"request": name(row["request"])}) for row in each["rows"])
            journal = tuple(f"{name(entry[1])}: {entry_text(entry)}" for entry in each["journal"])
            return StepEvent(**each | {"rows": rows, "waiting": tuple(map(name, each["waiting"])), "journal": journal})

        return tuple(map(named, self._events))


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
