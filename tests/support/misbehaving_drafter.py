"""Registered drafters for tests: a correct one, and subclasses with one defect each."""

from __future__ import annotations

import sys
from typing import Never

import numpy as np
import torch

from specmatrix.engine.core.draft.algorithms import Topology, Traits
from specmatrix.engine.device.relay import DraftStateSpec
from specmatrix.engine.plugin import BuildContext
from specmatrix.engine.spec.drafter import DraftTree
from specmatrix.errors import ConfigError
from specmatrix.kernels.tree_layout import tree_layout

TRAITS = Traits("PRETENDER", "three guesses near the last token", Topology.TREE)
SHAPE = {"speculative_num_steps": 2, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 4}


class Pretender:
    """The tree root -> a -> b, root -> c of tokens that lie near the root's; carries a score per request."""

    capture: tuple[int, ...] = ()
    key_span = 0
    carries = (DraftStateSpec("score", (3,), torch.float32),)
    steps, topk, nodes = 2, 2, 4

    def __init__(self, context: BuildContext) -> None:
        self.traits = context.traits
        self.vocab_size = context.target.vocab_size
        self.near = torch.arange(4, device=context.resolved.device)
        self.parents = torch.tensor([-1, 0, 1, 0], device=context.resolved.device)

    def prime(self, batch, tokens, aux, sampled, following):
        return {"score": batch.rows.new_ones((len(batch.rows), 3), dtype=torch.float32)}

    def propose(self, batch, relay):
        parents = self.parents.repeat(len(batch.rows), 1)
        depths, ancestors = tree_layout(parents)
        return DraftTree((batch.root + self.near) % self.vocab_size, parents, depths, ancestors, 2)

    def absorb(self, batch, verdict, aux):
        return {"score": batch.carried["score"] + 1}


def first(batch) -> torch.Tensor:
    """[B, 1]: the row that the first request of a run takes; what a row liar lies about."""
    return (batch.rows == 1)[:, None]


class OtherRoot(Pretender):
    def propose(self, batch, relay):
        tree = super().propose(batch, relay)
        return tree._replace(tokens=torch.where(first(batch), tree.tokens + 1, tree.tokens))


class NotFinite(Pretender):
    def absorb(self, batch, verdict, aux):
        return {"score": torch.where(first(batch), float("nan"), batch.carried["score"])}


class InfinitePrime(Pretender):
    def prime(self, batch, tokens, aux, sampled, following):
        honest = super().prime(batch, tokens, aux, sampled, following)
        return {"score": torch.where(first(batch), float("inf"), honest["score"])}


class NoTree(Pretender):
    def propose(self, batch, relay):
        return batch.root


def reader(name, read):
    """A liar that reads the batch's roots on the host in `propose`."""

    def propose(self, batch, relay):
        read(batch.root)
        return Pretender.propose(self, batch, relay)

    return type(f"Reads{name}", (Pretender,), {"propose": propose})


READERS = {
    "Tensor.tolist": reader("List", lambda t: t.tolist()),
    "Tensor.item": reader("Item", lambda t: t[0, 0].item()),
    "Tensor.numpy": reader("Numpy", lambda t: t.numpy()),
    "Tensor.cpu": reader("Cpu", lambda t: t.cpu()),
    "Tensor.to": reader("To", lambda t: t.to("cpu")),
    "Tensor.__bool__": reader("Bool", lambda t: bool((t == t).all())),
    "Tensor.__int__": reader("Int", lambda t: int(t[0, 0])),
    "Tensor.__float__": reader("Float", lambda t: float(t[0, 0])),
    "Tensor.__index__": reader("Index", lambda t: range(t[0, 0])),
    "Tensor.nonzero": reader("Nonzero", lambda t: t.nonzero()),
    "torch.nonzero": reader("TorchNonzero", torch.nonzero),
    "torch.equal": reader("Equal", lambda t: torch.equal(t, t)),
    "torch.masked_select": reader("MaskedSelect", lambda t: torch.masked_select(t, t > 3)),
    "torch.unique": reader("Unique", torch.unique),
    "torch.repeat_interleave": reader("Repeat", lambda t: torch.repeat_interleave(t, t.flatten().clamp(0, 3), 0)),
    "torch.where with one argument": reader("Where", lambda t: torch.where(t > 3)),
    "indexing by a mask": reader("Mask", lambda t: t[t > 5]),
}


def writer(name, write):
    """A liar that writes into the batch in `propose`, before it goes on."""

    def propose(self, batch, relay):
        write(batch, relay)
        return Pretender.propose(self, batch, relay)

    return type(f"Writes{name}", (Pretender,), {"propose": propose})


class WritesVerdict(Pretender):
    def absorb(self, batch, verdict, aux):
        verdict.tokens.fill_(3)
        return super().absorb(batch, verdict, aux)


class WritesCount(Pretender):
    """Alone of its kind: what a round without drafts counts is shared by all engines."""

    def absorb(self, batch, verdict, aux):
        verdict.count.fill_(3)
        verdict.path.fill_(1)
        return super().absorb(batch, verdict, aux)


class WritesPrompt(Pretender):
    def prime(self, batch, tokens, aux, sampled, following):
        for given in (tokens, sampled, following):
            given.fill_(5)
        return super().prime(batch, tokens, aux, sampled, following)


class KeepsNumpy(Pretender):
    """Shares the memory of what it was handed, where no watch sees it, and writes to it a step later."""

    shared = None

    def propose(self, batch, relay):
        if self.shared is not None:
            self.shared[:] = 3
        self.shared = np.from_dlpack(batch.rows)
        self.shared[:] = 2
        return super().propose(batch, relay)


# What each writes into, and in which hook.
WRITERS = {
    writer("Root", lambda batch, relay: batch.root.fill_(3)): ("propose", "batch.root"),
    writer("Start", lambda batch, relay: batch.start.sub_(1)): ("propose", "batch.start"),
    writer("Rows", lambda batch, relay: batch.rows.fill_(1)): ("propose", "batch.rows"),
    writer("Slots", lambda batch, relay: batch.slots.zero_()): ("propose", "batch.slots"),
    writer("Places", lambda batch, relay: batch.positions.zero_()): ("propose", "batch.positions"),
    writer("Write", lambda batch, relay: batch.write.zero_()): ("propose", "batch.write"),
    writer("Shape", lambda batch, relay: relay.last.t_()): ("propose", "relay.last"),
    writer("Lengths", lambda batch, relay: relay.length.zero_()): ("propose", "relay.length"),
    writer("Last", lambda batch, relay: batch.relay.last.zero_()): ("propose", "relay.last"),
    writer("Seeds", lambda batch, relay: relay.sampling.seed.fill_(7)): ("propose", "relay.sampling.seed"),
    WritesVerdict: ("absorb", "verdict.tokens"),
    WritesCount: ("absorb", "verdict.path", "verdict.count"),
    WritesPrompt: ("prime", "tokens", "sampled", "following"),
    KeepsNumpy: ("propose", "batch.rows"),
}


class WritesEverything(Pretender):
    """Answers honestly, and then leaves zeros in all that it was handed."""

    def _spoil(self, batch, *more: torch.Tensor) -> None:
        relay = batch.relay
        tensors = (batch.rows, batch.start, batch.root, batch.slots, batch.positions, batch.write, *more)
        for tensor in (*tensors, relay.length, relay.last, *relay.sampling):
            tensor.zero_()

    def prime(self, batch, tokens, aux, sampled, following):
        state = super().prime(batch, tokens, aux, sampled, following)
        self._spoil(batch, tokens, sampled, following, batch.lengths)
        return state

    def propose(self, batch, relay):
        tree = super().propose(batch, relay)
        self._spoil(batch)
        return tree

    def absorb(self, batch, verdict, aux):
        state = super().absorb(batch, verdict, aux)
        self._spoil(batch, *verdict[:3])
        return state


class Wordless(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


class ExitsInText(RuntimeError):
    def __str__(self) -> str:
        raise SystemExit


class NumberForText(RuntimeError):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Own(BaseException):
    """No Exception."""


def too_deep(number: int) -> int:
    return too_deep(number + 1) + 1


class Recurses(Pretender):
    def propose(self, batch, relay):
        too_deep(0)


class Exits(Pretender):
    def absorb(self, batch, verdict, aux):
        sys.exit(0)


class SetsDtype(Pretender):
    def propose(self, batch, relay):
        torch.set_default_dtype(torch.float64)
        return super().propose(batch, relay)


class Subclass(torch.Tensor):
    """A tensor with code of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Never:
        raise SystemExit


class OwnTensors(Pretender):
    def propose(self, batch, relay):
        tree = super().propose(batch, relay)
        return tree._replace(tokens=tree.tokens.as_subclass(Subclass))


class SparseTokens(Pretender):
    def propose(self, batch, relay):
        tree = super().propose(batch, relay)
        return tree._replace(tokens=tree.tokens.to_sparse())


def raiser(hook, error):
    def raises(self, *given: object) -> None:
        # An exception that is raised again holds the engines of all earlier times by its traceback.
        raise type(error)(*error.args)

    return type(f"Raises{type(error).__name__}In{hook.title()}", (Pretender,), {hook: raises})


# What each row liar is reported to have done.
ROW_LIES = {
    OtherRoot: "proposed a root other than the last known token",
    NotFinite: "carried a value that is not finite",
    InfinitePrime: "carried a value that is not finite",
}
BATCH_LIES = {
    NoTree: "proposed a Tensor, not a DraftTree",
    raiser("prime", KeyError("score")): "raised KeyError in prime ('score')",
    raiser("propose", ZeroDivisionError("division\nby zero")): "raised ZeroDivisionError in propose (division by zero)",
    raiser("absorb", ConfigError("no such table")): "raised ConfigError in absorb (no such table)",
    raiser("absorb", Wordless()): "raised Wordless in absorb (its text is unavailable)",
    raiser("propose", RuntimeError("x" * 10**7)): f"raised RuntimeError in propose ({'x' * 400}...)",
    raiser("propose", GeneratorExit("end")): "raised GeneratorExit in propose (end)",
    raiser("absorb", Own("mine")): "raised Own in absorb (mine)",
    Exits: "raised SystemExit in absorb (0)",
    Recurses: "raised RecursionError in propose (maximum recursion depth exceeded)",
    SetsDtype: "changed the default dtype from torch.float32 to torch.float64 in propose",
    OwnTensors: "proposed tokens of type Subclass, expected a dense tensor",
    SparseTokens: "proposed tokens of type Tensor, expected a dense tensor",
}
