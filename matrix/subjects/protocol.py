"""The protocol between the matrix and an engine under test: translate, start, generate, read back, count, close.

Imports the standard library only, as an engine may run in its own interpreter. `docs/subjects.md` shows a whole
subject.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.matrix.subjects.observations import Resources, Trace, WorkLog
from specmatrix.matrix.workloads.request import Continuation, RequestSpec

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell
    from specmatrix.matrix.subjects.limits import AxisLimit
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# One operation: its name, the account (0 for none), a number (of positions; of pages for "donate" and "evict"), and the
# pages that it gives or takes, by KV group. The first entry is ("groups", 0, page size, each group's kind and sizes).
JournalEntry: TypeAlias = tuple[str, int, int, tuple[tuple[int, ...], ...]]
Journal: TypeAlias = Sequence[JournalEntry]


class Capability(StrEnum):
    """An observable that a subject claims to provide. A gate that needs an unclaimed one does not apply, which the
    report's head says once; one that is claimed and not delivered is red."""

    TOKEN_IDS = "token_ids"  # the output's token ids, not only its text
    LOGPROBS = "logprobs"  # log-probabilities of the output tokens, and as many alternatives as asked for
    ROUNDS = "rounds"  # tokens of every verify round of each request (`Answer.accept_lengths`)
    TOTALS = "totals"  # the counters spec.drafted and spec.accepted, over all requests
    HISTOGRAM = "histogram"  # the metrics of each request (`Answer.meta_info`), with SGLang's keys
    COUNTERS = "counters"  # the counters of engine.core.observe.counters, which prove which paths ran
    JOURNAL = "journal"  # the ledger's journal
    ORDER = "order"  # of all verify rounds, as a journal, and what a shared drafter read (`Answer.meta_info`)
    WORK = "work"  # when each request was sent or aborted, and the forwards of each step
    RESOURCES = "resources"  # memory, graphs and early launches of a GPU, as torch and the driver count them
    MEMORY = "memory"  # KV pages in all, free and cached
    READBACK = "readback"  # the running value of every flag of its command
    ABORT = "abort"  # ends a request after a given number of tokens
    SESSIONS = "sessions"  # a request may continue another one's KV
    ARRIVAL = "arrival"  # sends each request only after those that it waits for have ended
    PREEMPTIONS = "preemptions"  # how often each request lost its KV (`Answer.retractions`)
    SAMPLED_IDENTITY = "sampled_identity"  # sampled tokens depend on seed and position only, not on speculation
    TRACE = "trace"  # the decisions of adaptive steps
    RESOLUTION = "resolution"  # resolves the matrix's own configuration as `engine.core.config.resolve` does
    RANKS = "ranks"  # a digest of every step of each rank


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request. matched: the stop token or string, or the message of an error. refusal: the engine's
    message if it refused the request, else "". further: the other completions of a request with n > 1, in order.
    prompt_logprobs, prompt_top_logprobs: of the prompt tokens asked for; None and no alternatives for the first of all.
    """

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
    further: tuple[Answer, ...] = ()
    prompt_logprobs: tuple[float | None, ...] = ()
    prompt_top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    outside_rounds: tuple[int, ...] = ()  # indices of the output tokens that no round emitted; () if unknown
    drafts_first: bool = False  # the first round emitted the first token, which is a prefill's otherwise

    @property
    def moves(self) -> int:
        """How many tokens at most no round emitted, besides the first."""
        return max(self.retractions, len(self.outside_rounds) - 1)

    @property
    def round_starts(self) -> tuple[int, ...]:
        """Index of each round's first token in the output."""
        found, at, outside = list[int](), 0, {*self.outside_rounds} | (set() if self.drafts_first else {0})
        for length in self.accept_lengths:
            while at in outside:
                at += 1
            found.append(at)
            at += length
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Served:
    """One request that an engine has served.

    account: its ledger account in the journal. tokens: prompt and output; prompt: number of prompt tokens. rounds:
    tokens of each of its verify rounds.
    """

    name: str
    id: int
    account: int
    tokens: tuple[int, ...]
    prompt: int
    retractions: int
    rounds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """KV pages; free + cached must equal pages once the engine is idle. accounts: open ledger accounts."""

    pages: int
    free: int
    cached: int
    accounts: int


@dataclass(frozen=True, slots=True)
class SubjectRequest:
    """One request in a subject's own format.

    id: the name of its RequestSpec, which the answer has as its name. input_ids: the prompt's tokens, BOS included, so
    that tokenizers cannot differ. fields: lengths, sampling and stopping rules under the subject's own names, as JSON
    values. after: ids of the asks that must have ended before it is sent. abort_after, session: as in RequestSpec.
    """

    id: str
    input_ids: tuple[int, ...]
    fields: Mapping[str, Any]
    after: tuple[str, ...] = ()
    abort_after: int | None = None
    session: Continuation | None = None


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """A prepared cell in a subject's own format; plain data, recorded for every cell in a golden file.

    flags: the engine's arguments under its own names, as JSON values; cells with equal flags, checkpoints, variant,
    and environment share an engine start. checkpoints: role ("target", "draft") to the zoo's name of a model or
    a path (`zoo.registry.resolve_path` finds its folder). variant: of these checkpoints, "" for the files as they are.
    asks: of the cell; the reference engine takes its RequestSpecs as they are. environment: variables that its process
    gets besides this process's own.
    """

    flags: Mapping[str, Any]
    checkpoints: Mapping[str, str]
    asks: tuple[SubjectRequest, ...] | tuple[RequestSpec, ...] = ()
    variant: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A cell that a subject cannot run. reason: one sentence, the same for all cells with that reason."""

    reason: str


class RunningEngine(Protocol):
    """An engine that has been started. Counters and journal cover the time since its start.

    Only `generate` is required; a subclass leaves out what its subject does not claim. Values must be picklable if the
    engine runs in its own process.
    """

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The resolved configuration, perhaps with `reasons` and `rewrites` (as `Resolved.as_dict`)."""
        return {}

    @property
    def start_hash(self) -> str:
        """Hash of the resolved values, equal for equal configurations; "" if it has none."""
        return ""

    def generate(self, asks: Sequence[Any]) -> list[Answer]:
        """Run the asks of a command to their end, concurrently if the engine can; returns the answers in the same
        order.

        An answer's `name` is its ask's id. A refused ask gets an answer with `finish` "refused" and the message as
        `refusal`; an exception fails the cell and ends the engine.
        """
        ...

    def unfinished(self) -> tuple[Served, ...]:
        """The requests sent to a `generate` that an exception ended, in order; empty if the subject does not report
        them."""
        return ()

    def readback(self) -> Mapping[str, Any]:
        """The running values, read from the running components rather than from the configuration; a subject with an
        EngineCommand reports them under the names of its flags; `version` is the engine's, if only this one says it."""
        return {}

    def counters(self) -> Mapping[str, int]:
        """Counts by counter name (`engine.core.observe.step_counter`)."""
        return {}

    def journal(self) -> Journal | None:
        """Every operation of the KV ledger since the start, or where rounds begin and end among them."""
        return None

    def work(self) -> WorkLog | None:
        """The requested operations and the forwards that ran, since the start."""
        return None

    def resources(self) -> Resources | None:
        """GPU resources used since the start; None on a CPU."""
        return None

    def trace(self) -> Trace | None:
        """The trace of adaptive steps; None if the depth is static."""
        return None

    def memory(self) -> Memory | None:
        """The current use of KV pages."""
        return None

    def ranks(self) -> Agreement | None:
        """The comparison of the ranks since the start; None for a single rank."""
        return None

    def close(self) -> None:
        """Release the engine; no other method but `close` may be called afterwards."""


class Diverged(Exception):
    """The ranks of an engine diverged, so it cannot continue. agreement: the comparison up to that point."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__(agreement.divergence)
        self.agreement = agreement

    def __reduce__(self) -> tuple[type[Diverged], tuple[Agreement]]:
        return type(self), (self.agreement,)


class Stalled(Exception):
    """An engine took more steps than its workload can take, so it cannot end.

    steps: run so far; limit: of the workload; idle: steps since any request got a token. request: the one that has made
    no progress for longest, "" if none runs; tokens: its output tokens; since: the step at which it had them first.
    """

    def __init__(self, steps: int, limit: int, idle: int, request: str, tokens: int, since: int) -> None:
        super().__init__(steps, limit, idle, request, tokens, since)
        self.steps, self.limit, self.idle = steps, limit, idle
        self.request, self.tokens, self.since = request, tokens, since

    def __str__(self) -> str:
        text = f"the requests have not ended after {self.steps} steps; the last {self.idle} yielded no token"
        if self.steps > self.limit:
            text = f"the requests have not ended after {self.steps} steps; they need at most {self.limit}"
        request = f"{self.request} has had {self.tokens} output tokens since step {self.since}"
        return f"{text}; {request if self.request else 'none of them runs, but the engine is busy'}"


class AcceptanceRule(NamedTuple):
    """What accepts the drafts of a subject's sampled requests.

    rule: "match" (the target's own draw; rejection sampling of drafts that were not drawn has the same chances),
    "reject" or "block" (rejection sampling by q, which drew the drafts), or "lossy". chosen_by: the flags or fields of
    requests that choose it, in one sentence. loss: the largest total variation that the subject states between the law
    of its outputs and the target's, of three tokens after `workloads.build.DRAW_PROMPT`; 0 for none. filtered: q has
    the request's top_k and top_p, besides its temperature.
    """

    rule: str = "match"
    chosen_by: str = ""
    loss: float = 0.0
    filtered: bool = True


@dataclass(frozen=True, slots=True)
class Profile:
    """A subject's claimed capabilities, which decide its gates: those that need no others, less `excluded`.

    cannot: unclaimed capability to the reason, one sentence, where that is not obvious. excluded: gate to the reason,
    one sentence, for which it does not apply although the subject claims what it needs. tie_nats: the margin in nats of
    the oracle's two best tokens below which another library's rounding may choose the other one. start_seconds,
    answer_seconds: limits of a start and of the answers to one cell's asks, after which the engine hangs; on a busy
    Linux host, limits of its own CPU time. in_process: runs in the runner's own process, without limits. has_baseline:
    the same engine can run without speculation; otherwise the gate `oracle` judges the cell's own run, and gates that
    pair runs must be excluded. restarts: `start` starts an engine, instead of reaching one that runs already.
    acceptance: by algorithm, what accepts drafts of sampled requests, "" of all others, where a cell names no rule.
    """

    capabilities: frozenset[Capability]
    cannot: Mapping[Capability, str] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    tie_nats: float = 1e-3
    start_seconds: float = 120.0
    answer_seconds: float = 120.0
    in_process: bool = False
    has_baseline: bool = True
    restarts: bool = True
    acceptance: Mapping[str, AcceptanceRule] = field(default_factory=dict)

    @property
    def foreign(self) -> bool:
        """Whether it is of another engine than the reference engine, which defines the cells' axes and rules."""
        return Capability.RESOLUTION not in self.capabilities

    def rule_of(self, cell: Cell) -> AcceptanceRule:
        """What accepts the drafts of a cell's sampled requests: the cell's rule if it names one."""
        rule = self.acceptance.get(cell.algorithm, self.acceptance.get("", AcceptanceRule()))
        return rule if cell.acceptance == "match" else rule._replace(rule=cell.acceptance)

    def draws_of(self, cell: Cell) -> int:
        """How many samples judge a cell's distribution: more where it may be off by a stated loss."""
        from specmatrix.matrix.workloads.build import DRAWS, LOSSY_DRAWS

        return LOSSY_DRAWS if self.rule_of(cell).loss else DRAWS


class Subject(Protocol):
    """An engine under test. Built without arguments, and cheap to build and import: the engine's package is imported by
    `start` at the earliest.

    `start` raises ConfigError for a command that the engine refuses. `start` and the running engine raise Diverged if
    ranks differ.
    """

    name: str
    profile: Profile

    def version(self) -> str | None:
        """The version of the engine's package; None if it is not installed."""
        ...

    def python(self) -> str:
        """The path of the interpreter in which its engines run, "" for this one. Of this process's packages, another
        interpreter can import this one alone, and of it only what needs no other."""
        return ""

    def limits(self) -> tuple[AxisLimit, ...]:
        """Axis values that the subject cannot run on a CPU. Cells of this package's subjects are chosen within these
        limits."""
        return ()

    def running(self) -> Sequence[Cell]:
        """The start that runs already, with the defaults of the request axes, so that a stage's cells are requests on
        it; several where the engine does not say which, none where `start` starts any. ConfigError if no cell has it.
        """
        return ()

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The requests of a cell for a seed: those of the matrix, or its own with parameters that only it has."""
        from specmatrix.matrix.workloads.build import workload

        return workload(cell, seed, self.profile.draws_of(cell))

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Translate a cell's start and requests into the engine's own format; pure, and needs no installed package.

        The baseline of a cell arrives here too, as a cell with algorithm "none", defaults on the other start axes but
        model and context, and the same requests without aborts.
        """
        ...

    def start(self, command: EngineCommand) -> RunningEngine:
        """Start the engine; called in its own process unless `profile.in_process`."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """One workload on one running engine.

    evidence: by how much each counter grew during the workload. work, resources, trace: since the engine's start,
    `resources` None on a CPU, `trace` None without adaptive steps; earlier: the trace before this workload. memory:
    None if the subject does not show it. served: every request since the start, in submission order; empty if it ran
    before. attempts: requests that must be refused, each with the engine's error message ("" if it answered);
    `requests` are all others. ranks: the comparison of several ranks since the start. session_baseline: the same
    requests and drafter with each turn's whole history prefilled at once. capabilities: what the subject claims. flags:
    of its command. resumed: by request, (number of the oracle's tokens that were given with the prompt, the output
    after them) where the output departed from the oracle by a tie.
    """

    requests: tuple[RequestSpec, ...]
    answers: tuple[Answer, ...]
    resolved: Mapping[str, Any]
    readback: Mapping[str, Any]
    evidence: Mapping[str, int]
    memory: Memory | None
    journal: Journal | None
    seconds: float
    work: WorkLog | None = None
    resources: Resources | None = None
    trace: Trace | None = None
    earlier: Trace | None = None
    served: tuple[Served, ...] = ()
    attempts: tuple[tuple[RequestSpec, str], ...] = ()
    ranks: Agreement | None = None
    session_baseline: Run | None = None
    capabilities: frozenset[Capability] = frozenset(Capability)
    flags: Mapping[str, Any] = field(default_factory=dict)
    resumed: Mapping[str, Sequence[tuple[int, tuple[int, ...]]]] = field(default_factory=dict)
