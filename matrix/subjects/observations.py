"""What only this repository's engine shows of itself, for gates that no other engine meets: adaptive steps, the work of
every step, and resources of a GPU. Imports the standard library only, as `protocol`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Observation:
    """How adaptive steps evaluated one verify round.

    slot: its smallest batch size. batch_size, width: of the round. correct: accepted drafts of each request that was
    still running. ema, steps: the slot's average and depth afterwards. decision: "warm-up", "between", "stay", "up" or
    "down". activated: number of rounds whose depth was chosen before this one was observed.
    """

    slot: int
    batch_size: int
    width: int
    correct: tuple[int, ...]
    ema: float
    steps: int
    decision: str
    activated: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The rounds and decisions of an engine with adaptive steps since its start, oldest first.

    rounds: (batch size, width) of each verify round, as chosen. lost: number of older rounds that were discarded.
    """

    rounds: tuple[tuple[int, int], ...]
    observations: tuple[Observation, ...]
    lost: int = 0


class SentRequest(NamedTuple):
    """A request as it was sent: its ledger account, prompt, length limit, whether its account outlives it, and the
    index of the first prompt token with a log-probability (-1: none)."""

    id: int
    account: int
    prompt: tuple[int, ...]
    new_tokens: int
    keeps: bool
    scored_from: int


class Moment(NamedTuple):
    """One operation requested of an engine. at: number of journal entries before it. what: "send", "abort" or
    "retract" a request, "end" a session's account, "flush" the prefix cache, or "step". id: of the request or account,
    else 0."""

    at: int
    what: str
    id: int


class StepForwards(NamedTuple):
    """The forwards of one launched step. at: number of journal entries before its launch. read: KV positions that the
    target reads for each request. target, draft: (requests, tokens of each) of every forward of the networks. logits:
    number of positions for which the target computes logits. verified: of a round at lag 0 with a length per row, the
    nodes of the longest."""

    at: int
    read: int
    target: tuple[tuple[int, int], ...]
    draft: tuple[tuple[int, int], ...]
    logits: int = 0
    verified: int = 0


class Budgeted(NamedTuple):
    """A launch or a result of a round with a budget. rows: the requests. budget: of a launch, the drafts that they may
    verify together; None for a result. lengths, confidences: of a result, the nodes that each row verified, and how
    likely each of its drafts was. rooms: the tokens that each request could still emit, 0 if it had ended."""

    rows: tuple[int, ...]
    budget: int | None = None
    lengths: tuple[int, ...] = ()
    confidences: tuple[tuple[float, ...], ...] = ()
    rooms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkLog:
    """The operations requested of an engine since its start, and the forwards that it ran, oldest first. drawn: of each
    round with drafts drawn from a distribution, by (seed, KV length before it), each draft with its probability.
    budgets: of rounds with one, in the order of launches and results. stale: the requests of the first step that read a
    wrong stamp, then a 0 if it was a prefill step."""

    moments: tuple[Moment, ...]
    sent: Mapping[int, SentRequest]
    forwards: tuple[StepForwards, ...]
    drawn: Mapping[tuple[int, int], Sequence[tuple[tuple[int, float], ...]]] = field(default_factory=dict)
    budgets: tuple[Budgeted, ...] = ()
    stale: Sequence[int] = ()


class GraphRound(NamedTuple):
    """A verify round that may run as a CUDA graph. shape: the graph's key; () marks an empty graph cache, at the start
    and after a renewal. captures, replays: of graphs, during the round."""

    shape: tuple[int, ...]
    captures: int
    replays: int


@dataclass(frozen=True, slots=True)
class Resources:
    """GPU resources that an engine used since its start, as counted by torch and the driver.

    rounds: oldest first. captures, replays: of all graphs. edges: between the kernels of captured graphs; early: those
    that are programmatic dependent launches; can_launch_early: whether the GPU has these. started_bytes: allocated by
    the start; budget_bytes: the engine's own estimate for it, without graphs. pool_bytes: of the memory that holds the
    graphs; limit_gb: its limit, as the command has it. max_shapes: graphs that the engine keeps per width. bypassed:
    rounds run without a graph although the command's limits and their requests allow one; oversized: rounds that
    requested one with more requests than the command allows.
    """

    rounds: tuple[GraphRound, ...]
    captures: int
    replays: int
    edges: int
    early: int
    can_launch_early: bool
    started_bytes: int
    budget_bytes: int
    pool_bytes: int
    limit_gb: int
    max_shapes: int
    bypassed: int
    oversized: int
