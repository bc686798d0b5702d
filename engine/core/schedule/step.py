"""The interface between host and device: plans in, results out. No tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from specmatrix.engine.core.schedule.request import SamplingParams

# Batches up to SMALL are padded to a power of two, larger ones to a multiple of SMALL.
SMALL: Final = 8
# The index of the first in the row's page table of a KV group, and the pages.
NewPages: TypeAlias = tuple[int, tuple[int, ...]]


def padded(batch: int) -> int:
    """The batch size, padding included, of the CUDA graph for `batch` requests."""
    return 1 << (batch - 1).bit_length() if batch <= SMALL else -(-batch // SMALL) * SMALL


class PlanRow(NamedTuple):
    """One request in one step; a tuple, because every step creates one per request.

    `account` is the ledger account; its current `generation` is the writer in this step's stamps.
    At most `width` positions are written after everything in flight. `bound` is the host's upper bound on the KV length
    after the step; the true length is in the relay. For a prefill chunk `start` is exact, `tokens` are its tokens and
    `following` is the prompt token after it (None: the chunk is the last, and the sampled token follows). A running
    request in a prefill step is a chunk of its last token, which only the relay has: `start` and the token are -1. For
    a verify round `tokens` are all the row's tokens if the drafter reads them on the host, else empty; the first
    `prompt` ones are its prompt.
    """

    rid: int
    account: int
    row: int
    width: int
    bound: int
    generation: int
    pages: tuple[NewPages, ...] = ()  # pages added to the row's tables since its last step, by group; () if none
    start: int = 0
    tokens: tuple[int, ...] = ()
    prompt: int = 0
    following: int | None = None
    # On the first step of a residence: parameters, seed, and the most tokens that prompt and output may have.
    admit: tuple[SamplingParams, int, int] | None = None
    writers: tuple[tuple[int, int], ...] = ()  # on that step: (position, generation that writes the KV from there on)
    # On the first step of a residence, if logits are adjusted or masked: the prompt's length, and prompt and output.
    arrived: tuple[int, tuple[int, ...]] | None = None

    @property
    def last_chunk(self) -> bool:
        """Whether a prefill chunk is its prompt's last."""
        return self.following is None and self.start >= 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One launch: a prefill step, which may also advance running requests by one token, or a verify round.

    nodes: of each tree of a round, 0 for a prefill step. A row's width may be less: its last nodes are not verified.
    budget: the most drafts that the round's rows verify together, None for all.
    """

    prefill: bool
    rows: tuple[PlanRow, ...]
    greedy: bool  # all rows are greedy
    logprobs: int = -1  # -1: none, 0: chosen tokens only, k: top k too
    adjusts: bool = False  # a row's logits are adjusted
    prompt_logprobs: int = -1  # as `logprobs`, for the tokens after each position of a prefill step
    constrained: bool = False  # a row has a grammar
    nodes: int = 0
    budget: int | None = None

    @property
    def width(self) -> int:
        """Positions of every row, padding included."""
        return self.nodes or max([row.width for row in self.rows])

    @property
    def bound(self) -> int:
        """Upper bound of the positions that the step reads, padding included."""
        if not self.nodes:
            return max([row.bound for row in self.rows])
        return max([row.bound - row.width for row in self.rows]) + self.nodes


class StepResult(NamedTuple):
    """What the host learns from one step, by row in plan order.

    `tokens[i][:counts[i]]` are the accepted tokens, bonus included; a chunk that is not the last has count 0. lengths:
    verified nodes of each row, root included; None if every row's tree was verified whole.
    """

    tokens: list[list[int]]
    counts: list[int]
    moved: list[bool]  # the accepted path was not a dense prefix
    branched: list[bool]  # the proposed tree had siblings
    lengths: list[int] | None = None
    confidences: list[list[float]] | None = None  # of each draft, in rounds with a budget
    logprobs: list[list[float]] | None = None
    top_logprobs: list[list[list[tuple[int, float]]]] | None = None
    prompt_logprobs: list[list[float]] | None = None  # of the prompt token after each position of a chunk
    prompt_top_logprobs: list[list[list[tuple[int, float]]]] | None = None
    stamps_checked: int = 0
    stamps_wrong: int = 0
    draft_errors: list[str | None] | None = None  # the error that ends a request with invalid drafts; None: not checked
    drafts: Sequence[Sequence[int]] = ()  # tokens of the proposed trees, in audited rounds
    legality: list[list[int]] | None = None  # of the tokens in a constrained step, as in `core.schedule.grammar`
    # Of each row of a round with token tables: forbidden drafts, whether reasoning ended, and at a draft, and masked
    # drafts.
    grammar: list[list[int]] | None = None


Handle = TypeVar("Handle")


class Executor(Protocol, Generic[Handle]):
    """Runs plans. `launch` must not wait for the device; `collect` may. Both may raise: EngineBug for a device or
    engine fault, any other exception for a fault of the step's requests. `drop` forgets every uncollected step; `clear`
    empties pages without an owner, by KV group."""

    def launch(self, plan: StepPlan) -> Handle: ...

    def collect(self, handle: Handle) -> StepResult: ...

    def drop(self) -> None: ...

    def clear(self, free: Sequence[Sequence[int]]) -> None: ...
