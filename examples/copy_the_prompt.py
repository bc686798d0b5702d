"""A custom drafter in one file: it copies what followed the latest earlier occurrence of the last two tokens.

    python examples/copy_the_prompt.py

registers the algorithm COPY, answers a few questions with it and without a drafter, and prints the acceptance length
and whether the tokens are the same. The command line loads the same file:

    specmatrix contract examples/copy_the_prompt.py
    specmatrix generate --speculative-algorithm-file examples/copy_the_prompt.py "Ann has 3 pens. How many has she?"

Four things make an algorithm:

1. Traits, one frozen row: what the engine knows about it. COPY proposes chains, has no weights and no KV of its own.
2. A drafter with the hooks prime (after a prefill step), propose (before a verify round) and absorb (after it). It
   sees tensors of a batch, never a request. It must not read them on the host: the engine launches a step before the
   last one was read (spec v2), and a read would wait for the device. Nor may it write to what it sees.
3. Carries: what it takes from one round to the next. The engine keeps a buffer per request for each and hands it back
   as `batch.carried`; a request's first step finds zeros. COPY carries the text itself.
4. register_algorithm, which refuses a missing hook by name. `check` may refuse what a user asks for, `relay` may
   replace the buffers. Called at the top level, so that importing the file is enough; from then on
   `--speculative-algorithm COPY` works like any other.

Verification is exact whatever is proposed, and the tensors that a hook sees are copies: a drafter that uses only its
inputs can be slow but never wrong. One that breaks the protocol is detected: its request fails (a token outside the
vocabulary, ...) or the drafter is disabled (a wrong shape, an exception, ...), with an explanatory error.
`specmatrix contract` also detects host reads, writes into inputs, and changes of the process. Host reads of shared
memory (DLPack, a pointer) are not detected and only cost speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specmatrix.engine import LLM, ConfigError, EngineConfig, SamplingParams
from specmatrix.engine.core.config.asked import Facts
from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import DraftState, DraftStateSpec, Relay
from specmatrix.engine.plugin import BuildContext, Topology, Traits, register_algorithm
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult, chain

COPY = Traits(
    name="COPY",
    summary="copies what followed the latest earlier occurrence of the last two tokens",
    topology=Topology.CHAIN,
    max_lag=1,
)
QUESTIONS = (
    "Question: Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?\nAnswer:",
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:",
)


class CopyDrafter:
    """Chains of batch.width - 1 tokens."""

    capture: tuple[int, ...] = ()  # target states that it reads: none
    key_span = 0  # it has no KV, so no page depends on tokens after its end

    def __init__(self, context: BuildContext) -> None:
        resolved = context.resolved
        self.traits = context.traits
        self.steps, self.topk, self.nodes = resolved.num_steps, resolved.topk, resolved.num_draft_tokens
        # Room for the whole text and for rounds that run past its end.
        self.room = resolved.context_length + 4 * self.nodes
        self.carries = (DraftStateSpec("text", (self.room,), torch.int64),)

    def prime(
        self, batch: StepBatch, tokens: Tensor, aux: Tensor | None, sampled: Tensor, following: Tensor
    ) -> DraftState:
        """tokens [B, W]: the next chunk of the prompt, padded; sampled [B]: the target's token after it."""
        assert batch.lengths is not None
        last = (batch.lengths - 1)[:, None]
        behind = torch.where(following < 0, sampled, following)[:, None]
        # Position p of the text is written at p; the token after the chunk at its end.
        text = self._write(batch.carried["text"], batch.start, tokens)
        return {"text": text.scatter(1, batch.start[:, None] + last + 1, behind)}

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        """batch.start [B]: tokens in KV; batch.root [B, 1]: the token after them, known and not in KV."""
        text = batch.carried["text"]
        order = torch.arange(self.room, device=text.device)
        before = text.gather(1, (batch.start - 1).clamp(min=0)[:, None])
        again = (text[:, :-1] == before) & (text[:, 1:] == batch.root) & (order[1:] < batch.start[:, None])
        # The latest place where the same two tokens stood; position 0 if there is none, whose drafts are arbitrary.
        place = torch.where(again, order[1:], 0).max(1, keepdim=True).values
        ahead = place + 1 + torch.arange(batch.width - 1, device=text.device)
        drafts = text.gather(1, torch.minimum(ahead, batch.start[:, None]))
        return chain(torch.cat((batch.root, drafts), 1))

    def absorb(self, batch: StepBatch, verdict: VerifyResult, aux: Tensor | None) -> DraftState:
        """verdict.tokens [B, W]: the target's token after each node; the rest past verdict.count is overwritten."""
        return {"text": self._write(batch.carried["text"], batch.start + 1, verdict.tokens)}

    def _write(self, text: Tensor, start: Tensor, tokens: Tensor) -> Tensor:
        at = start[:, None] + torch.arange(tokens.shape[1], device=text.device)
        return text.scatter(1, at.clamp(max=self.room - 1), tokens)


def check(asked: EngineConfig, facts: Facts) -> None:
    """The algorithm's own refusal, before anything is resolved."""
    if isinstance(asked.speculative_num_steps, int) and asked.speculative_num_steps > 32:
        raise ConfigError(f"COPY copies at most 32 tokens a round, got {asked.speculative_num_steps}; ask for fewer")


register_algorithm(COPY, CopyDrafter, check=check)


def main() -> None:
    from specmatrix.matrix.zoo.registry import resolve_path

    params = SamplingParams(max_new_tokens=64)
    plain = LLM(EngineConfig("llama-mini"), resolve_path).generate(QUESTIONS, params)
    engine = LLM(EngineConfig("llama-mini", "COPY", speculative_num_steps=4), resolve_path)
    copied = engine.generate(QUESTIONS, params)
    rounds = [length for output in copied for length in output.accept_lengths]
    print(f"COPY accepts {sum(rounds) / len(rounds):.2f} tokens per round, no drafter 1.00")
    same = [output.output_ids for output in copied] == [output.output_ids for output in plain]
    print(f"tokens are the same: {'yes' if same else 'NO'}")
    print(copied[0].text.strip())


if __name__ == "__main__":
    main()
