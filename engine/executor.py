"""One launch on the device: propose, verify, compact, absorb, relay. The host reads nothing until `collect`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from specmatrix.engine.core.errors import KernelError
from specmatrix.engine.core.schedule.step import PlanRow, StepPlan, StepResult
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import StepBatch, count, tree_bias
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.cuda_graphs import CudaGraphs, GraphShape, Results, reach_of
from specmatrix.engine.device.pinned_copy import floats, integers
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.device.relay import DraftState, Relay
from specmatrix.engine.device.sampling import SamplingRows, chosen_logprobs, pick, top_logprobs
from specmatrix.engine.device.slot_table import SlotTable, stamp
from specmatrix.engine.device.staging import Staged, StagingRing
from specmatrix.engine.device.window_kv import SplitAttention, WindowMemory, WindowStep
from specmatrix.engine.models.target import Target
from specmatrix.engine.rank_digest import RankDigest
from specmatrix.engine.spec.drafter import Drafter, agreed_tree
from specmatrix.engine.spec.guard import Guard
from specmatrix.engine.spec.verify import verify


class InFlight(NamedTuple):
    """A launched step: its plan and its results on their way to the host."""

    plan: StepPlan
    staged: Staged


class DeviceExecutor:
    """Runs plans on tensors. Holds every device buffer; makes no decision."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        pools: tuple[KVPool, ...],
        table: SlotTable,
        relay: Relay,
        staging: StagingRing,
        window: WindowMemory | None = None,
        guard: Guard | None = None,
        graphs: CudaGraphs | None = None,
        waits: AbstractContextManager[None] | None = None,
        ranks: Ranks = ALONE,
        witness: RankDigest | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.pool = pools[0]
        self.pools = pools
        self.table = table
        self.relay = relay
        self.staging = staging
        self.window = window
        self.guard = guard
        self.graphs = graphs
        self._waits = nullcontext() if waits is None else waits
        self.ranks = ranks
        self.witness = witness
        self._inference = torch.inference_mode()  # one for all steps: as a decorator it would make one for each

    def launch(self, plan: StepPlan) -> InFlight:
        """Start a step. Returns without waiting for the device. KernelError if the device failed."""
        if self.witness is not None:
            self.witness.planned(plan)
        with _device_errors(), self._inference, self._waits:
            self.table.extend(plan.rows)
            self._admit(plan.rows)
            if self.window is not None:
                self.window.extend(plan.rows)
            if self._repeatable(plan):
                results = self._repeated(plan)
            else:
                results = self._step(plan, StepBatch.of(plan, self.relay, self.table))
            return InFlight(plan, self.staging.put(results))

    def collect(self, handle: InFlight) -> StepResult:
        """Wait for a step and read it. KernelError if the device failed."""
        with _device_errors():
            values = {name: tensor.tolist() for name, tensor in self.staging.take(handle.staged).items()}
        size = len(handle.plan.rows)
        result = StepResult(
            values["tokens"],
            values["count"],
            values.get("moved", [False] * size),
            values.get("branched", [False] * size),
            values.get("logprobs"),
            _pairs(values["top_ids"], values["top_values"]) if "top_ids" in values else None,
            *values.get("stamps", (0, 0)),
            lies=None if self.guard is None else self.guard.read(values["lies"]),
        )
        if self.witness is not None:
            self.witness.read(result, values.get("drafts", []))
        return result

    def drop(self) -> None:
        """Forget the launched steps that were not collected."""
        self.staging.drop()

    def _step(self, plan: StepPlan, batch: StepBatch) -> Results:
        """All that a step does behind its uploads."""
        side = None if self.window is None else self.window.step(batch)
        if self.guard is not None:
            self.guard.begin(batch)
        results = (self._prefill if plan.prefill else self._round)(plan, batch, side)
        if self.guard is not None:
            results["lies"] = self.guard.codes()
        return results

    def _repeatable(self, plan: StepPlan) -> bool:
        """Whether the step may be a graph: a round that is not too large, of a drafter that is still asked."""
        if self.graphs is None or plan.prefill:
            return False
        if len(plan.rows) <= self.graphs.max_batch and (self.guard is None or self.guard.error is None):
            return True
        self.graphs.probes.hit("graph.eager")
        return False

    def _repeated(self, plan: StepPlan) -> Results:
        """A round by its graph. Requests that only fill it up have row 0, which owns no page and stays empty."""
        graphs, table, size = self.graphs, self.table, len(plan.rows)
        assert graphs is not None
        rows, generations = graphs.give([row.row for row in plan.rows], [row.generation for row in plan.rows])
        width, reach = plan.rows[0].width, reach_of(max(row.bound for row in plan.rows), table.positions)
        self.relay.settle()

        def whole_round() -> Results:
            results = self._step(plan, StepBatch.round(rows, generations, width, reach, self.relay, table))
            self.relay.settle()
            self.relay.length[:1].zero_()
            return results

        try:
            results = graphs.run(GraphShape(plan.greedy, plan.logprobs, len(rows), width, reach), whole_round)
        except BaseException:
            # What a capture that broke off published was recorded, but never computed.
            self.relay.drop()
            raise
        return {name: tensor if name == "stamps" else tensor[:size] for name, tensor in results.items()}

    def _admit(self, rows: tuple[PlanRow, ...]) -> None:
        """Upload the sampling parameters of requests that begin a residence, and clear what their rows carry."""
        new = [(row.row, *row.admit) for row in rows if row.admit is not None]
        if not new:
            return
        sampling = self.relay.sampling
        device = sampling.seed.device
        at = integers([row for row, _, _ in new], device)
        self.relay.forget(at)
        columns = (
            floats([p.temperature for _, p, _ in new], device),
            integers([max(0, p.top_k) for _, p, _ in new], device),
            floats([p.top_p for _, p, _ in new], device),
            integers([seed for _, _, seed in new], device),
        )
        for field, column in zip(sampling, columns, strict=True):
            field.index_copy_(0, at, column)

    def _prefill(self, plan: StepPlan, batch: StepBatch, side: WindowStep | None) -> Results:
        device = batch.rows.device
        chunks = [_padded(row.tokens, batch.width) for row in plan.rows]
        tokens = integers(chain.from_iterable(chunks), device).view(len(chunks), batch.width)
        positions, write, bias = batch.causal(batch.width, self.pool.data.dtype)
        stamps = self._stamp(batch, side, write, positions)
        attend = self._attention(batch, side, write, bias, positions)
        hidden, aux = self.target.forward(tokens, positions, attend, self.drafter.capture)
        assert batch.lengths is not None
        last = hidden.gather(1, (batch.lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[2]))
        logits = self.target.logits(last)
        end = batch.start + batch.lengths
        rows = None if plan.greedy else self.relay.sampling_of(batch.rows)
        sampled = self.ranks.agreed(pick(logits, end[:, None], rows))
        following = integers([-1 if r.following is None else r.following for r in plan.rows], device)
        state = self._asked().prime(batch, tokens, aux, sampled[:, 0], following)
        self._relay(batch, end, sampled, state)
        results = {"tokens": sampled, "count": (following < 0).long()}
        return results | stamps | _logprobs(plan, logits, sampled, rows)

    def _round(self, plan: StepPlan, batch: StepBatch, side: WindowStep | None) -> Results:
        rows = None if plan.greedy else self.relay.sampling_of(batch.rows)
        tree = agreed_tree(self._asked().propose(batch, self.relay), self.ranks)
        write = batch.write
        if tree.ancestors is None:
            positions, _, bias = batch.causal(batch.width, self.pool.data.dtype)
        else:
            positions = batch.start[:, None] + tree.depths
            bias = tree_bias(batch.start, tree.ancestors, batch.reach, self.pool.data.dtype)
        stamps = self._stamp(batch, side, write, positions)
        attend = self._attention(batch, side, write, bias, positions)
        hidden, aux = self.target.forward(tree.tokens, positions, attend, self.drafter.capture)
        logits = self.target.logits(hidden)
        verdict = verify(logits, tree, batch.start, rows, self.ranks)
        results = {"tokens": verdict.tokens, "count": verdict.count}
        if self.witness is not None:
            results["drafts"] = tree.tokens
        if tree.ancestors is not None:
            results |= self._compact(tree.parents, verdict.path, verdict.count, write, side)
            aux = None if aux is None else aux.gather(1, verdict.path[:, :, None].expand(-1, -1, aux.shape[2]))
            if plan.logprobs >= 0:
                logits = logits.gather(1, verdict.path[:, :, None].expand(-1, -1, logits.shape[2]))
        state = self._asked().absorb(batch, verdict, aux)
        bonus = verdict.tokens
        if batch.width > 1:
            bonus = verdict.tokens.gather(1, (verdict.count - 1)[:, None])
        self._relay(batch, batch.start + verdict.count, bonus, state)
        return results | stamps | _logprobs(plan, logits, verdict.tokens, rows)

    def _asked(self) -> Drafter | Guard:
        return self.drafter if self.guard is None else self.guard.of(self.drafter)

    def _attention(
        self, batch: StepBatch, side: WindowStep | None, write: Tensor, bias: Tensor, positions: Tensor
    ) -> StepAttention | SplitAttention:
        """How the target's layers reach their keys; bias [B, 1, W, T] is that of layers without a window."""
        full = StepAttention(self.pool, write, batch.slots, bias, start=batch.start)
        if self.window is None or side is None:
            return full
        return self.window.beside(full, batch, side, bias, positions)

    def _relay(self, batch: StepBatch, length: Tensor, bonus: Tensor, state: DraftState | None) -> None:
        self.relay.publish(batch.rows, length, bonus)
        if state is not None:
            self.relay.stash(batch.rows, state)

    def _compact(
        self, parents: Tensor, path: Tensor, accepted: Tensor, write: Tensor, side: WindowStep | None
    ) -> Results:
        """Move the accepted path's KV to the front of the block. Sources never lie before their destination."""
        order = count(path.shape[1], path.device)
        taken = torch.where(order < accepted[:, None], path, order)
        self.pool.move(write.gather(1, taken).flatten(), write[:, : path.shape[1]].flatten())
        if self.window is not None and side is not None:
            self.window.move(side, taken)
        siblings = (parents[:, 1:, None] == parents[:, None, 1:]).sum((1, 2)) > parents.shape[1] - 1
        return {"moved": (taken != order).any(1), "branched": siblings}

    def _stamp(self, batch: StepBatch, side: WindowStep | None, write: Tensor, positions: Tensor) -> Results:
        """Stamp the slots about to be written, and compare the stamps of every position below `start`."""
        generations = batch.generations
        if self.pool.stamps is None or generations is None:
            return {}
        expected = self.table.expected(batch.rows, batch.reach)
        below = count(batch.reach, write.device) < batch.start[:, None]
        wrong = (self.pool.stamps[batch.slots] != expected) & below
        self.pool.stamps[write.flatten()] = stamp(generations[:, None], positions).flatten()
        checked, bad = below.sum(), wrong.sum()
        if self.window is not None and side is not None:
            more, worse = self.window.stamp(batch, side, generations, positions)
            checked, bad = checked + more, bad + worse
        return {"stamps": torch.stack((checked, bad))}


@contextmanager
def _device_errors() -> Iterator[None]:
    """An error that the device reports says nothing about the step at hand, and no later one can be trusted."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise KernelError(f"the device failed: {' '.join(str(error).split())}") from error


def _padded(tokens: tuple[int, ...], width: int) -> list[int]:
    return [*tokens, *([0] * (width - len(tokens)))]


def _logprobs(plan: StepPlan, logits: Tensor, tokens: Tensor, rows: SamplingRows | None) -> Results:
    """Log-probabilities of `tokens` [B, W] and of the best `plan.logprobs` tokens, from logits [B, W, V]."""
    if plan.logprobs < 0:
        return {}
    results = {"logprobs": chosen_logprobs(logits, tokens, rows)}
    if plan.logprobs:
        results["top_values"], results["top_ids"] = top_logprobs(logits, plan.logprobs, rows)
    return results


def _pairs(ids: list[list[list[int]]], values: list[list[list[float]]]) -> list[list[list[tuple[int, float]]]]:
    return [
        [list(zip(*column, strict=True)) for column in zip(*row, strict=True)] for row in zip(ids, values, strict=True)
    ]
