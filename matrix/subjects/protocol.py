"""The protocol between gates and an engine under test: start, generate, report the running values, count, close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.observe.rank_agreement import Agreement


class Capability(StrEnum):
    """What a subject can report. A gate lists what it needs; if that is missing, it is NOT MEASURED, never skipped."""

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
    """Why a session must refuse a request; each reason has its own error message."""

    OFFSET = "offset"  # a streaming session always continues its whole history
    REPLACE = "replace"  # a streaming session keeps all of its turns
    DROP = "drop_previous_output"  # a streaming session keeps all of its outputs
    IN_FLIGHT = "in flight"  # a streaming session runs one turn at a time
    CLOSED = "closed"  # the session was never opened, or is closed
    CAPACITY = "capacity"  # the text is longer than the session may hold
    CONTEXT = "context"  # the text is longer than the model's context
    POOL = "pool"  # the text does not fit the KV pool
    UNFINISHED = "unfinished"  # the request to continue is still running
    RANGE = "range"  # the offset is beyond the history
    REPLACED = "replaced"  # the request to continue was cleared by a replace


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a request continues a session; offset, replace and drop_previous_output as in SGLang's session parameters.

    id: the session, opened with its first request and closed after its last. follows: name of the request whose tokens
    are the history (in a streaming session, of the last turn that was not aborted), None for a first turn. resend: use
    no session, but send the history before the prompt, as a baseline does. capacity: characters that the session may
    hold. timeout: idle seconds after which it is closed, None for never.
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
class RequestSpec:
    """One request of a workload.

    `prompt` is text; `name` identifies it across runs (for pairing). `after`: names of requests that must have ended
    before this one is sent. `abort_after`: abort after that many output tokens (0: while queued or before the first
    token). `closes_after`: close its session after that many output tokens. `refused`: the reason for which it must be
    refused, None if it must not. `beside`: name of a request during which this one is sent. `clock`: seconds to wait
    before it is sent; the engine is idle meanwhile, except with `beside`. `logprobs`: return log-probabilities of the
    output tokens, as `top_logprobs` > 0 (number of alternatives) also does. Sampling fields as in SGLang.
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
    min_new_tokens: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # pairs of token id and bias
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    no_stop_trim: bool = False
    stream: bool = False  # read its text while it runs

    @property
    def ruled(self) -> bool:
        """Whether its tokens depend on logit rules, so that a continuation without them is another text."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)
        bans = self.bad_words_ids or self.allowed_token_ids is not None or self.min_new_tokens
        return bool(penalties or self.logit_bias or bans or self.min_p)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request. matched: the stop token or string, or the message of an error. refusal: the engine's
    message if it refused the request, else ""."""

    name: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    finish: str  # "stop" | "length" | "abort" | "error" | "refused"
    matched: int | str | None
    cached_tokens: int
    accept_lengths: tuple[int, ...]  # tokens of each verify round, bonus included
    logprobs: tuple[float, ...] = ()  # nats, of the output tokens; empty unless requested
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    retractions: int = 0  # how often it was retracted (lost its KV and was prefilled again)
    round_widths: tuple[int, ...] = ()  # nodes of each verify round, root included
    refusal: str = ""
    pieces: tuple[str, ...] = ()  # the text as it was read after each step, if the request is streamed


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


@dataclass(frozen=True, slots=True)
class Served:
    """One request that an engine has served.

    account: its ledger account in the journal. tokens: prompt and output; prompt: number of prompt tokens.
    """

    name: str
    id: int
    account: int
    tokens: tuple[int, ...]
    prompt: int
    retractions: int


@dataclass(frozen=True, slots=True)
class Memory:
    """KV pages; free + cached must equal pages once the engine is idle. accounts: open ledger accounts."""

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
        """Hash of the resolved values, equal for equal configurations (`Resolved.start_hash`)."""
        ...

    def generate(self, requests: Sequence[RequestSpec]) -> list[Answer]:
        """Run the requests to their end, each once those in its `after` have ended; the answers in the order given."""
        ...

    def readback(self) -> Mapping[str, Any]:
        """The running values, read from the running components rather than from the configuration."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Counts by counter name (`engine.core.observe.counters`)."""
        ...

    def journal(self) -> tuple[Sequence[tuple[str, int, tuple[int, ...]]], int, int]:
        """(entries, number of pages, page size)."""
        ...

    def trace(self) -> Trace | None:
        """The trace of adaptive steps; None if the depth is static."""
        ...

    def memory(self) -> Memory:
        """The current use of KV pages."""
        ...

    def ranks(self) -> Agreement | None:
        """The comparison of the ranks since the start; None for a single rank."""
        ...

    def close(self) -> None:
        """Release the engine; no other method may be called afterwards."""
        ...


class Diverged(Exception):
    """The ranks of an engine diverged, so it cannot continue. agreement: the comparison up to that point."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__(agreement.divergence)
        self.agreement = agreement


class Subject(Protocol):
    """An engine under test.

    `start` raises ConfigError for a configuration that it refuses. `start` and the running engine
    raise Diverged if ranks differ.
    """

    name: str
    capabilities: frozenset[Capability]

    def start(self, config: EngineConfig) -> RunningEngine: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One workload on one running engine.

    evidence: by how much each counter grew during the workload. trace: since the engine's start, None without adaptive
    steps; earlier: the trace before this workload. served: every request since the start, in submission order; empty
    without a journal. attempts: requests that must be refused, each with the engine's error message ("" if it
    answered); `requests` are all others. ranks: the comparison of several ranks since the start. session_baseline: the
    same requests and drafter with each turn's whole history prefilled at once.
    """

    requests: tuple[RequestSpec, ...]
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
    attempts: tuple[tuple[RequestSpec, str], ...] = ()
    ranks: Agreement | None = None
    session_baseline: Run | None = None
