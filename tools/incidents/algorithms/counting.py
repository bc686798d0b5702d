"""A drafter that counts up from the last token, and notices whether its own relay is used."""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftState, DraftStateSpec, Relay
from specmatrix.engine.plugin import BuildContext, Topology, Traits
from specmatrix.engine.spec.drafter import Drafter, DraftTree, VerifyResult, chain

TRAITS = Traits(
    name="COUNTING",
    summary="counts up from the last token",
    topology=Topology.CHAIN,
    target_verify_for_draft=True,
)


class MarkingRelay(Relay):
    """Marks every row that it stores."""

    def stash(self, rows: Tensor, state: DraftState) -> None:
        """As Relay, with the carry `marked` set."""
        super().stash(rows, {**state, "marked": torch.ones_like(state["marked"])})


def marking_relay(rows: int, drafter: Drafter, device: torch.device) -> Relay:
    """The relay of `CountingDrafter`."""
    return MarkingRelay(rows, drafter.carries, device)


class CountingDrafter:
    """Chains of the target's verify shape. Without its relay it drafts a token that does not exist."""

    capture: tuple[int, ...] = ()
    key_span = 0
    carries: tuple[DraftStateSpec, ...] = tuple(DraftStateSpec(name, (), torch.int64) for name in ("next", "marked"))

    def __init__(self, context: BuildContext) -> None:
        self.traits, self.vocab_size = context.traits, context.target.vocab_size
        self.steps, self.topk, self.nodes = context.resolved.num_steps, 1, context.verify_tokens

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState:
        """Start from the token after the prompt."""
        return {"next": sampled, "marked": torch.zeros_like(sampled)}

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        """The numbers after the last token."""
        following = batch.carried["next"][:, None] + torch.arange(1, batch.width, device=batch.root.device)
        unmarked = (batch.carried["marked"] == 0)[:, None]
        drafts = torch.where(unmarked, self.vocab_size, following % self.vocab_size)
        return chain(torch.cat((batch.root, drafts), 1))

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState:
        """Go on from the bonus token."""
        last = verdict.tokens.gather(1, (verdict.count - 1)[:, None])[:, 0]
        return {"next": last, "marked": torch.zeros_like(last)}
