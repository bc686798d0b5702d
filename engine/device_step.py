"""The device work of a step: a prefill, or a round that proposes, verifies, compacts, absorbs and relays.

Runs plans on the device. A launch reads nothing from the device; `collect` waits for a step and reads it.

Checks are layers of a stack that `engine.build` assembles: a step wraps another step to check it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Final, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from specmatrix.engine.core.memory.ledger import Ledger
from specmatrix.engine.core.observe.rank_agreement import PLAN, RESULT, StepDigest, digest
from specmatrix.engine.core.observe.step_counter import Counters, Delivery
from specmatrix.engine.core.schedule.step import StepPlan, StepResult
from specmatrix.engine.device.batch import StepBatch, VerifyResult, past, tree_bias
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.device.cuda_graphs import CudaGraphs, GraphShape, pad_kv_len
from specmatrix.engine.device.grammar_masks import GrammarMasks
from specmatrix.engine.device.kv_groups import KVGroups
from specmatrix.engine.device.logit_rules import LogitRules, NodeContext, without_unlikely
from specmatrix.engine.device.relay import DraftState, Relay
from specmatrix.engine.device.sampling import SamplingRows, chosen_logprobs, largest, pick, top_logprobs
from specmatrix.engine.device.staging import Staged, StagingRing, StepOutput, integers
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.spec.drafter import AgreedDrafts, Drafter, DraftHooks, DraftTree, shared_chain, shift_left
from specmatrix.engine.spec.guard import Guard
from specmatrix.engine.spec.verify import verify
from specmatrix.errors import EngineBug, KernelError, NotFiniteError

# Number of prompt positions whose logits are computed at once for prompt log-probabilities.
SCORED: Final = 256


class Step(Protocol):
    """The device work of one step, and how the host reads its output. Checks are steps that wrap another step."""

    @property
    def repeatable(self) -> bool:
        """Whether rounds may currently be captured and replayed as CUDA graphs."""
        ...

    def run(self, plan: StepPlan, batch: StepBatch) -> StepOutput:
        """Enqueue all device work of a step after its uploads. The host reads nothing."""
        ...

    def read(self, output: StepOutput) -> StepResult:
        """Convert an output on the host to plain values. NotFiniteError if the target computed NaN or infinity."""
        ...


@dataclass(eq=False)
class DeviceStep:
    """The innermost step, without checks. capture: target layers whose input states the drafter needs. rule: the
    acceptance rule. ragged: rows verify no more than what is left of their length. verify: the verifier; a trace may
    wrap it."""

    target: CausalLM
    drafter: DraftHooks
    capture: tuple[int, ...]
    kv: KVGroups
    relay: Relay
    rules: LogitRules
    masks: GrammarMasks
    ranks: Ranks
    rule: str = "match"
    ragged: bool = False
    repeatable = True

    def __post_init__(self) -> None:
        self.verify: Callable[..., VerifyResult] = verify if self.rule == "match" else partial(verify, rule=self.rule)
        self._dtype = self.kv.full.pool.data.dtype

    def run(self, plan: StepPlan, batch: StepBatch) -> StepOutput:
        return self._prefill(plan, batch) if plan.prefill else self._round(plan, batch)

    def read(self, output: StepOutput) -> StepResult:
        if output.finite is not None and not output.finite.all():
            raise NotFiniteError("the target computed NaN or infinite numbers; its weights are too large or damaged")
        tokens, counts = output.tokens.tolist(), output.count.tolist()
        no = [False] * len(counts)
        checked, wrong = (0, 0) if output.stamps is None else output.stamps.tolist()
        return StepResult(
            tokens=tokens,
            counts=counts,
            moved=no if output.moved is None else output.moved.tolist(),
            branched=no if output.branched is None else output.branched.tolist(),
            logprobs=None if output.logprobs is None else output.logprobs.tolist(),
            top_logprobs=_pairs(output.top_ids, output.top_values),
            prompt_logprobs=None if output.prompt_logprobs is None else output.prompt_logprobs.tolist(),
            prompt_top_logprobs=_pairs(output.prompt_ids, output.prompt_values),
            legality=None if output.legality is None else output.legality.tolist(),
            grammar=None if output.grammar is None else output.grammar.tolist(),
            lengths=None if output.lengths is None else output.lengths.tolist(),
            confidences=None if output.confidences is None else output.confidences.tolist(),
            stamps_checked=checked,
            stamps_wrong=wrong,
        )

    def _prefill(self, plan: StepPlan, batch: StepBatch) -> StepOutput:
        device = batch.rows.device
        chunks = [_padded(row.tokens, batch.width) for row in plan.rows]
        tokens = integers(chain.from_iterable(chunks), device).view(len(chunks), batch.width)
        tokens = torch.where(tokens < 0, batch.root, tokens)
        positions, _, bias = batch.causal(batch.width, self._dtype)
        kv = self.kv.begin(batch, bias, positions)
        hidden, aux = self.target.forward(tokens, positions, kv.attention, self.capture)
        assert batch.lengths is not None
        last = hidden.gather(1, (batch.lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[2]))
        logits = self.target.logits(last)
        end = batch.start + batch.lengths
        rows = None if plan.greedy else self.relay.sampling_of(batch.rows)
        finite = _finite(logits)
        shown, legality = logits, None
        following = integers([-1 if r.following is None else r.following for r in plan.rows], device)
        batch.grammar = self.masks.rows_of(plan, batch.rows, following < 0)
        if plan.adjusts or plan.constrained:
            node = shared_chain(tokens.gather(1, (batch.lengths - 1)[:, None]))
            shown, logits, legality = self._adjusted(plan, batch, logits, end - 1, node, rows)
        sampled = self.ranks.agreed(pick(logits, end[:, None], rows))
        if batch.grammar is not None:
            batch.grammar.advance(torch.zeros_like(sampled), sampled)
        if plan.adjusts:
            self.rules.record(batch.rows, end, torch.where(following[:, None] < 0, sampled, following[:, None]))
        state = self.drafter.prime(batch, tokens, aux, sampled[:, 0], following)
        self._relay(batch, end, sampled, state)
        count = (following < 0).long()
        output = StepOutput(tokens=sampled, count=count, stamps=kv.stamps, finite=finite, legality=legality)
        if plan.prompt_logprobs >= 0:
            after = shift_left(tokens, batch.lengths, sampled[:, 0], following)
            output = self._with_prompt(output, plan.prompt_logprobs, hidden, after)
        return _with_logprobs(output, plan, shown, rows)

    def _round(self, plan: StepPlan, batch: StepBatch) -> StepOutput:
        rows = None if plan.greedy else self.relay.sampling_of(batch.rows)
        batch.grammar = self.masks.rows_of(plan, batch.rows)
        tree = self.drafter.propose(batch, self.relay)
        if self.ragged or tree.lengths is not None:
            tree = tree.within((self.relay.limit.index_select(0, batch.rows) - batch.start - 1).clamp(min=1))
            assert tree.lengths is not None
            batch.shorten(tree.lengths)
        depths, ancestors = tree.places
        if ancestors is None:
            positions, _, bias = batch.causal(batch.width, self._dtype)
        else:
            positions = batch.start[:, None] + depths
            bias = tree_bias(batch.start, ancestors, batch.padded_kv_len, self._dtype)
        kv = self.kv.begin(batch, bias, positions, None if ancestors is None else tree.parents)
        hidden, aux = self.target.forward(tree.tokens, positions, kv.attention, self.capture)
        shown = logits = self.target.logits(hidden)
        finite, legality = _finite(logits, tree.lengths), None
        if plan.adjusts or plan.constrained:
            shown, logits, legality = self._adjusted(plan, batch, logits, batch.start, tree, rows)
        verdict = self.verify(logits, tree, batch.start, rows, self.ranks)
        if plan.adjusts:
            self.rules.record(batch.rows, batch.start + 1, verdict.tokens)
        output = StepOutput(verdict.tokens, verdict.count, stamps=kv.stamps, finite=finite, lengths=tree.lengths)
        output = output._replace(confidences=tree.confidences)
        bonus = verdict.tokens
        if batch.width > 1:
            bonus = verdict.tokens.gather(1, (verdict.count - 1)[:, None])
        if legality is not None:
            output = output._replace(legality=legality.gather(1, verdict.path))
        if batch.grammar is not None:
            batch.grammar.advance(verdict.path.gather(1, (verdict.count - 1)[:, None]), bonus)
        self.kv.commit(kv, verdict)
        if tree.ancestors is not None:
            output = output._replace(moved=verdict.moved, branched=_branched(tree.parents))
            aux = None if aux is None else aux.gather(1, verdict.path[:, :, None].expand(-1, -1, aux.shape[2]))
            if plan.logprobs >= 0:
                shown = shown.gather(1, verdict.path[:, :, None].expand(-1, -1, shown.shape[2]))
        state = self.drafter.absorb(batch, verdict, aux)
        self._relay(batch, batch.start + verdict.count, bonus, state)
        if batch.grammar is not None:
            output = output._replace(grammar=batch.grammar.counts)
        return _with_logprobs(output, plan, shown, rows)

    def _adjusted(
        self,
        plan: StepPlan,
        batch: StepBatch,
        logits: Tensor,
        start: Tensor,
        tree: DraftTree,
        rows: SamplingRows | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits [B, N, V] under the logit rules and grammars, without and with min_p, and the legality [B, N] of what
        they would emit; None without grammars. start [B]: index of the root."""
        rules = self.rules.of(plan.rows) if plan.adjusts else None
        legality = None
        if rules is not None:
            at = NodeContext(start, batch.padded_kv_len, tree.tokens, tree.parents, tree.depths, tree.ancestors)
            logits = self.rules.adjusted(logits, batch.rows, rules, at)
        if plan.constrained:
            if batch.grammar is not None:
                batch.grammar.walk(tree.tokens, tree.parents, tree.depth)
            logits, legality = self.masks.apply(plan, tree.tokens, tree.parents, logits, batch.grammar)
        if rows is None or rules is None or rules.min_p is None:
            return logits, logits, legality
        return logits, without_unlikely(logits, rows.temperature, rules.min_p), legality

    def _with_prompt(self, output: StepOutput, best: int, hidden: Tensor, after: Tensor) -> StepOutput:
        """Add the log-probabilities of the tokens after each position of a chunk. after [B, W].

        best: number of alternatives. A few positions at a time, as the logits of a whole chunk may not fit.
        """
        parts = []
        for states, tokens in zip(hidden.split(SCORED, 1), after.split(SCORED, 1), strict=True):
            logits = self.target.logits(states.contiguous())
            tops = top_logprobs(logits, best) if best else ()
            parts.append((chosen_logprobs(logits, tokens), *tops))
        scores, *tops = (torch.cat(pieces, 1) for pieces in zip(*parts, strict=True))
        values, ids = tops or (None, None)
        finite = None if output.finite is None else output.finite & scores.isfinite().all(1)
        return output._replace(prompt_logprobs=scores, prompt_values=values, prompt_ids=ids, finite=finite)

    def _relay(self, batch: StepBatch, length: Tensor, bonus: Tensor, state: DraftState | None) -> None:
        self.relay.publish(batch.rows, length, bonus)
        if state is not None:
            self.relay.stash(batch.rows, state)


class GuardedStep:
    """A step whose drafter is validated by `guard`; its result ends requests with invalid drafts."""

    def __init__(self, step: Step, guard: Guard) -> None:
        self._step, self._guard = step, guard

    @property
    def repeatable(self) -> bool:
        # A graph would keep running a drafter that is in quarantine.
        return self._guard.error is None and self._step.repeatable

    def run(self, plan: StepPlan, batch: StepBatch) -> StepOutput:
        self._guard.begin(batch)
        output = self._step.run(plan, batch)
        return output._replace(codes=self._guard.codes())

    def read(self, output: StepOutput) -> StepResult:
        assert output.codes is not None
        return self._step.read(output)._replace(draft_errors=[*map(self._guard.message, output.codes.tolist())])


def _branched(parents: Tensor) -> Tensor:
    """[B] bool: the tree has siblings. parents [B, N]."""
    return (parents[:, 1:, None] == parents[:, None, 1:]).sum((1, 2)) > parents.shape[1] - 1


def _padded(tokens: tuple[int, ...], width: int) -> list[int]:
    return [*tokens, *([0] * (width - len(tokens)))]


def _finite(logits: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Whether a softmax of logits [B, W, V] is finite in a row's first `lengths` [B] columns -> bool [B]."""
    finite = largest(logits).isfinite()
    return finite.all(1) if lengths is None else (finite | past(lengths, finite.shape[1])).all(1)


def _with_logprobs(output: StepOutput, plan: StepPlan, logits: Tensor, rows: SamplingRows | None) -> StepOutput:
    """Add the log-probabilities that the plan requests for the output's tokens [B, W], from logits [B, W, V]."""
    if plan.logprobs < 0:
        return output
    output = output._replace(logprobs=chosen_logprobs(logits, output.tokens, rows))
    if plan.logprobs:
        values, ids = top_logprobs(logits, plan.logprobs, rows)
        output = output._replace(top_values=values, top_ids=ids)
    return output


def _pairs(ids: Tensor | None, values: Tensor | None) -> list[list[list[tuple[int, float]]]] | None:
    """(token, log-probability) of the most likely tokens, by row and position; None if there are none."""
    if ids is None or values is None:
        return None
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [[list(zip(*column, strict=True)) for column in zip(*row, strict=True)] for row in rows]


class InFlight(NamedTuple):
    """A launched step: its plan, and its output being copied to the host."""

    plan: StepPlan
    staged: Staged


class DeviceExecutor:
    """Holds every device buffer; makes no decisions.

    plain: the innermost step. step: the whole stack of steps. run: runs the stack. around: a context entered around
    every launch. drafter and guard are parts of the stack, exposed for readback.
    """

    def __init__(
        self,
        plain: DeviceStep,
        step: Step,
        run: StepRunner,
        staging: StagingRing,
        *,
        drafter: Drafter,
        guard: Guard | None = None,
        around: AbstractContextManager[None] | None = None,
    ) -> None:
        self.plain, self.step, self.run, self.staging = plain, step, run, staging
        self.target, self.kv, self.relay, self.ranks = plain.target, plain.kv, plain.relay, plain.ranks
        self.drafter, self.guard = drafter, guard
        self._around = nullcontext() if around is None else around
        # Shared by all steps: a decorator would create one per call. The caller's autocast would change results.
        self._inference = torch.inference_mode()
        self._exact = torch.autocast(self.relay.length.device.type, enabled=False)

    @property
    def graphs(self) -> CudaGraphs | None:
        """The CUDA graphs; None if rounds run without them."""
        return self.run.graphs

    def launch(self, plan: StepPlan) -> InFlight:
        """Launch a step without waiting for the device. Raises KernelError if the device failed."""
        with _device_errors(), self._inference, self._exact, self._around:
            self.kv.extend(plan.rows)
            self.relay.admit(plan.rows)
            if plan.budget is not None:
                self.relay.budget.fill_(plan.budget)
            if plan.prefill:
                self.plain.rules.admit(plan.rows)
                self.plain.masks.admit(plan.rows)
            staged = self.staging.put(self.run(plan))
            if plan.constrained:
                self.plain.masks.launched(plan, staged)
            return InFlight(plan, staged)

    def collect(self, handle: InFlight) -> StepResult:
        """Wait for a step and read it. Raises KernelError if the device failed, NotFiniteError if the target computed
        NaN or infinite numbers."""
        with _device_errors():
            return self.step.read(self.staging.take(handle.staged))

    def clear(self, free: Sequence[Sequence[int]]) -> None:
        """Zero these pages, by KV group, in target and drafts."""
        with _device_errors():
            for group, pages in zip(self.kv.groups, free, strict=True):
                for pool in group.pools:
                    pool.clear(pages)

    def drop(self) -> None:
        """Forget the launched steps that were not collected."""
        self.staging.drop()
        self.plain.masks.drop()


class ReleasedExecutor:
    """The executor of an engine whose memory is released, which accepts no request."""

    guard = drafter = None

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineBug(f"the engine needs {name} while its memory is released")


class StepRunner:
    """Runs plans whose uploads have been started: rounds as CUDA graphs if there are `graphs`, everything else eagerly.

    step: the whole stack of steps; plain: the innermost one."""

    def __init__(self, step: Step, plain: DeviceStep, graphs: CudaGraphs | None = None) -> None:
        self.step, self.graphs = step, graphs
        self._table, self._relay, self._masks = plain.kv.full.table, plain.relay, plain.masks

    def __call__(self, plan: StepPlan) -> StepOutput:
        if self.graphs is None or plan.prefill:
            return self._eager(plan)
        # Adjusted logits use tensors that are created per batch, so their addresses are not fixed.
        held = plan.adjusts or not self.step.repeatable
        if len(plan.rows) > self.graphs.max_batch or held:
            self.graphs.counters.hit("graph.eager")
            return self._eager(plan)
        return self._graphed(plan, self.graphs)

    def _eager(self, plan: StepPlan) -> StepOutput:
        return self.step.run(plan, StepBatch.of(plan, self._relay, self._table))

    def _graphed(self, plan: StepPlan, graphs: CudaGraphs) -> StepOutput:
        """Run a round as a CUDA graph. Padding requests use row 0, which owns no page and stays empty."""
        table, relay = self._table, self._relay
        rows, generations = graphs.set_rows([row.row for row in plan.rows], [row.generation for row in plan.rows])
        width, padded_kv_len = plan.width, pad_kv_len(plan.bound, table.positions)
        given = (rows, generations, width, padded_kv_len, relay, table)
        relay.settle()

        def whole_round() -> StepOutput:
            output = self.step.run(plan, StepBatch.round(*given, plan.greedy))
            relay.settle()
            relay.length[:1].zero_()
            return output

        shape = GraphShape(plan.greedy, plan.logprobs, len(rows), width, padded_kv_len, self._masks.path(plan))
        try:
            output = graphs.run(shape, plan, whole_round)
        except BaseException:
            # A failed capture recorded the published tensors but never computed them.
            relay.drop()
            raise
        return output.first(len(plan.rows))


@contextmanager
def _device_errors() -> Iterator[None]:
    """Convert device errors to KernelError: not attributable to the current step, and no later step can be trusted."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise KernelError(f"the device failed: {' '.join(str(error).split())}") from error


class RankDigest:
    """Observes the loop: publishes digests of the ledger's journal and each plan before launch, and of each result."""

    def __init__(self, ledger: Ledger, publish: Callable[[StepDigest], None], counters: Counters) -> None:
        self._publish, self._counters = publish, counters
        self._journal = blake2b(digest_size=8)
        ledger.subscribe(lambda entry: self._journal.update(repr(entry).encode()))

    def planned(self, plan: StepPlan, in_flight: int) -> None:
        self._counters.hit("rank.step")
        self._publish(StepDigest(PLAN, (self._journal.hexdigest(), digest(plan))))

    def resolved(self, plan: StepPlan, result: StepResult, deliveries: Sequence[Delivery]) -> None:
        tokens = [row[:count] for row, count in zip(result.tokens, result.counts, strict=True)]
        self._publish(StepDigest(RESULT, (digest(tokens), digest(result.drafts), digest(result.draft_errors))))


class AuditedStep:
    """A step whose result also contains the drafts."""

    def __init__(self, step: Step, drafts: AgreedDrafts) -> None:
        self._step, self._drafts = step, drafts

    @property
    def repeatable(self) -> bool:
        return self._step.repeatable

    def run(self, plan: StepPlan, batch: StepBatch) -> StepOutput:
        output = self._step.run(plan, batch)
        return output._replace(drafts=self._drafts.take())

    def read(self, output: StepOutput) -> StepResult:
        result = self._step.read(output)
        return result if output.drafts is None else result._replace(drafts=output.drafts.tolist())
