"""The protocol between gates and an engine: start, generate, read back, count, close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.observe.rank_agreement import Agreement


class Capability(StrEnum):
    """What a subject can show. A gate names what it needs; without it the cell says so, nothing is skipped."""

    TOKEN_IDS = "token_ids"
    LOGPROBS = "logprobs"
    COUNTERS = "counters"
    JOURNAL = "journal"
    READBACK = "readback"
    ABORT = "abort"
    SESSIONS = "sessions"
    TRACE = "trace"
    RANKS = "ranks"


class Refusal(StrEnum):
    """Why a session must refuse a request; one class of sentence each."""

    OFFSET = "offset"  # a streaming session keeps its whole history
    REPLACE = "replace"  # and all of its turns
    DROP = "drop_previous_output"  # and their answers
    IN_FLIGHT = "in flight"  # and runs one turn at a time
    CLOSED = "closed"  # there is no such session, or no more
    CAPACITY = "capacity"  # the text is longer than the session may hold
    CONTEXT = "context"  # longer than the model's context
    POOL = "pool"  # longer than the KV memory
    UNFINISHED = "unfinished"  # what it continues still runs
    RANGE = "range"  # the history is not that long
    REPLACED = "replaced"  # what it continues was cleared by another request


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a request continues a session; offset, replace and drop_previous_output as in SGLang's session parameters.

    id: of the session, opened with its first request and closed behind its last. follows: the name of the request whose
    tokens are the history (of the last good turn, in a streaming session), None for a beginning. resend: no session at
    all, the history is sent again in front of the prompt, as a baseline does. capacity: characters of text that the
    session may hold. timeout: seconds after which it is closed if it is idle, None for never.
    """

    id: str
    streaming: bool
    follows: str | None = None
    offset: int = 0
    replace: bool = False
    drop_previous_output: bool = False
    resend: bool = False
    capacity: int = 100_000
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a workload.

    `prompt` is text; `name` identifies it across runs (for pairing). `after`: names of requests that must have ended
    before this one is sent. `abort_after`: abort once that many tokens were produced (0: while it is queued or before
    its first token). `closes_after`: its session is closed once that many tokens were produced. `refused`: it must be
    refused, and why. `beside`: sent while that request has not ended. `clock`: so many seconds pass before it is sent,
    while nothing runs unless it is sent beside something. `logprobs`: those of the output tokens are asked for, as they
    are by `top_logprobs` > 0, the number of alternatives. Sampling fields as in SGLang.
    """

    name: str
    prompt: str
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    abort_after: int | None = None
    answer: str | None = None  # the reference answer, for the accuracy gate
    after: tuple[str, ...] = ()
    session: Continuation | None = None
    closes_after: int | None = None
    refused: Refusal | None = None
    beside: str | None = None
    clock: float = 0.0
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one Ask. matched: the stop token or string, of an error its message. refusal: the engine's
    sentence where it refused the request, else ""."""

    name: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    finish: str  # "stop" | "length" | "abort" | "error" | "refused"
    matched: int | str | None
    cached_tokens: int
    accept_lengths: tuple[int, ...]  # tokens of each verify round, bonus included
    logprobs: tuple[float, ...] = ()  # of the output tokens, empty unless asked for
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    retractions: int = 0  # how often it lost its pages and was read again
    round_widths: tuple[int, ...] = ()  # nodes of each verify round, root included
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What adaptive steps made of one verify round.

    slot: its smallest batch size. batch_size, width: of the round. correct: accepted drafts of each request that still
    ran. ema, steps: the slot's average and depth after it. decision: "warm-up", "between", "stay", "up" or "down".
    activated: rounds whose depth was chosen before this one was observed.
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

    rounds: batch size and width of each verify round, as chosen. lost: rounds that were too old to be kept.
    """

    rounds: tuple[tuple[int, int], ...]
    observations: tuple[Observation, ...]
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """One request that an engine has served: what an index of all its texts may know.

    account: whose entries of the journal are its own. tokens: prompt and output, the first `prompt` of them asked.
    """

    name: str
    id: int
    account: int
    tokens: tuple[int, ...]
    prompt: int
    retractions: int


@dataclass(frozen=True, slots=True)
class Memory:
    """KV pages at rest: free + cached must be all of them once nothing runs."""

    pages: int
    free: int
    cached: int
    accounts: int


class RunningEngine(Protocol):
    """An engine that has been started. Counters and journal cover the time since its start."""

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The resolved configuration with its reasons and rewrites (`Resolved.as_dict`)."""
        ...

    @property
    def start_hash(self) -> str:
        """Hash of the values that run, equal for engines that resolved alike (`Resolved.start_hash`)."""
        ...

    def generate(self, asks: Sequence[Ask]) -> list[Answer]:
        """Run the asks to their end, each as soon as what it comes after has ended; the answers in the order given."""
        ...

    def readback(self) -> Mapping[str, Any]:
        """What runs, read from the running parts."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Hits by the name of a probe (`engine.core.observe.counters`)."""
        ...

    def journal(self) -> tuple[Sequence[tuple[str, int, tuple[int, ...]]], int, int]:
        """(entries, number of pages, page size)."""
        ...

    def trace(self) -> Trace | None:
        """None where the depth is static."""
        ...

    def memory(self) -> Memory:
        """Who holds how many pages now."""
        ...

    def ranks(self) -> Agreement | None:
        """The comparison of the ranks since the start; None for a single rank."""
        ...

    def close(self) -> None:
        """Release the engine; nothing else is called afterwards."""
        ...


class Diverged(Exception):
    """The ranks of an engine do not agree, so it cannot go on. agreement: how far they came."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__(agreement.divergence)
        self.agreement = agreement


class Subject(Protocol):
    """An engine under test.

    `start` raises ConfigError for a configuration that it refuses. `start` and the running engine
    raise Diverged where ranks differ.
    """

    name: str
    capabilities: frozenset[Capability]

    def start(self, config: EngineConfig) -> RunningEngine: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One workload on one running engine.

    evidence: by how much each counter grew during the workload. trace: since the engine's start, None where nothing
    adapts; earlier: the same before this workload. served: every request since the start, in the order of the asks;
    empty without a journal. attempts: the asks that had to be refused, each with the engine's sentence ("" where it
    answered); `asks` are all others. ranks: the comparison of several ranks since the start. twin: the same asks on the
    same drafter, where every turn reads its whole history in one piece.
    """

    asks: tuple[Ask, ...]
    answers: tuple[Answer, ...]
    resolved: Mapping[str, Any]
    readback: Mapping[str, Any]
    evidence: Mapping[str, int]
    memory: Memory
    journal: tuple[Sequence[tuple[str, int, tuple[int, ...]]], int, int] | None
    seconds: float
    trace: Trace | None = None
    earlier: Trace | None = None
    served: tuple[Served, ...] = ()
    attempts: tuple[tuple[Ask, str], ...] = ()
    ranks: Agreement | None = None
    twin: Run | None = None
