"""Records of `report.jsonl`, schema 5; `docs/report-schema.md` describes them for readers outside this repository.

A report is a JSON Lines file: one header line, then start and cell lines, and one end line. A start line holds what the
cells of one engine start share, and precedes the first cell that refers to it, by its index among start lines. The
header holds the axis values that a cell omits.

Numbers of a gate, where plots and comparisons read them (other gates may hold any numbers):

- `acceptance`: `length` (tokens per verify round, bonus included), `reference`, `per_position`, `per_round` (rates);
  optional `ratio` (of the two; then the gate's interval is that of the ratio, else that of the length), `emitted`
  and `rounds`, two lists with one entry per prompt, which make two reports comparable pair by pair, and `questions`,
  the numbers of the prompts' questions
- `accuracy`: `accuracy` and `baseline` (fractions), `n` (questions), `lost` and `won` (discordant pairs against the
  baseline); optional `outcomes`, a string with "1" (right) or "0" (wrong) per question
- `lossless`: `tokens`, `proving`, `divergent`, `ties`, `past_ties`, `first_divergence`
- `speed`: `starts`, `turns` of each, `clock`, `device`, `gpus`, the lists of `speed.RATIOS` and the figures of
  `speed.FIGURES`; its interval is that of `speed_up`, None for one start

Amounts examined (`AMOUNTS`) and faults found (`FAULTS`) are integers unless listed above; a reader ignores
other types. The writer rejects inconsistent cells (`check_cell`), and the digest in the end line proves to the reader
that the file is unmodified.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, field
from msgspec.json import encode

# Upper bound of numbers that are summed or divided, so that results stay finite.
MAX_NUMBER: Final = 10**9


class GateNumbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of gate_numbers.yaml, which explains its fields."""

    amounts: tuple[str, ...]
    faults: tuple[str, ...]
    shared: tuple[str, ...] = ()


_ROWS: Final = Path(__file__).with_name("gate_numbers.yaml")
NUMBERS: Final = msgspec.yaml.decode(_ROWS.read_bytes(), type=dict[str, GateNumbers])
AMOUNTS: Final = {gate: row.amounts for gate, row in NUMBERS.items()}
FAULTS: Final = {gate: row.faults for gate, row in NUMBERS.items()}
GATES: Final = tuple(NUMBERS)


SCHEMA: Final = 5
REPORT_FILE: Final = "report.jsonl"
SUMMARY_FILE: Final = "summary.json"
MARKDOWN_FILE: Final = "report.md"
PAGE_FILE: Final = "report.html"
# Files derived from a report, beside it.
PAGES: Final = (SUMMARY_FILE, MARKDOWN_FILE, PAGE_FILE)
# Maximum characters of file content quoted in an error.
MAX_SAID: Final = 240
# The header's commit if the code is neither in a git checkout nor an installed release.
UNKNOWN: Final = "unknown"

# Web address of a repository.
ADDRESS: Final = r"https://[\w.-]+(:\d+)?(/[\w.~+-]+)+"
_DAY: Final = r"\d{4}-\d\d-\d\d"

CellState = Literal["PASS", "FAIL", "NOT MEASURED", "INFRA", "UNSUPPORTED"]
GateState = Literal["PASS", "FAIL", "NOT MEASURED"]
Expect = Literal["runs", "refused", "rewritten"]
WaiverKind = Literal["known", "flaky"]
Phase = Literal["schedule", "launch", "resolve"]
# The built-in subject's name; the pseudo-gate of waivers for cells that crashed before any gate judged them.
REFERENCE: Final = "reference"
CRASH: Final = "crash"
GATE_STATES: Final[tuple[GateState, ...]] = ("PASS", "FAIL", "NOT MEASURED")
# States that fail the run unless waived.
RED_STATES: Final[frozenset[CellState]] = frozenset(("FAIL", "NOT MEASURED", "INFRA"))
# States without a verdict: they say nothing about the code.
UNJUDGED_STATES: Final[frozenset[CellState]] = frozenset(("INFRA", "UNSUPPORTED"))

Json: TypeAlias = Any
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]
Bounded: TypeAlias = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
# Dates and times as strings that sort chronologically.
Day: TypeAlias = Annotated[str, Meta(pattern=rf"^{_DAY}\Z")]
Time: TypeAlias = Annotated[str, Meta(pattern=rf"^{_DAY}[T ]\d\d:\d\d.*(Z|[+-]\d\d:\d\d)\Z")]
Address: TypeAlias = Annotated[str, Meta(pattern=rf"^({ADDRESS})?\Z")]
Reason: TypeAlias = Annotated[str, Meta(pattern=r"\S")]


class ReportError(Exception):
    """A report cannot be written or read. The message is for the user."""


class ReportRecord(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A JSON object of a report. Unknown keys are errors. Records hold no reference cycles, so the garbage collector
    does not track them.
    """


class ReasonRecord(ReportRecord, frozen=True):
    """Why the engine chose `value` for a `field` left at `auto`."""

    field: str
    value: Json
    because: str


class RewriteRecord(ReportRecord, frozen=True):
    """A departure from what was asked."""

    field: str
    asked: Json
    got: Json
    reason: str


class Waiver(ReportRecord, frozen=True, omit_defaults=True):
    """A known failure of one cell, accepted until `expiry` (ISO date, inclusive). issue: its report, "" if none."""

    reason: Reason
    expiry: Day
    issue: str = ""


class WaiverRule(ReportRecord, frozen=True, omit_defaults=True):
    """A waiver rule: the cells it selects, the reason, the expiry (ISO date, inclusive), and the failing gate (`CRASH`
    if the run itself failed).

    kind: "known" (a cell that passes again is red) or "flaky" (it may pass or fail). subject: the engine it applies to;
    versions: a version range, "" for all; issue: where the defect is reported; message: a regular expression, found in
    the message of the gate or crash.
    """

    cells: str
    reason: Reason
    expiry: Day
    gate: str = CRASH
    kind: WaiverKind = "known"
    subject: str = REFERENCE
    versions: str = ""
    issue: str = ""
    message: str = ""


class SubjectRecord(ReportRecord, frozen=True, omit_defaults=True):
    """The engine under test: name, version, claimed capabilities, and the reason for each gate that does not apply."""

    name: str
    version: str = ""
    capabilities: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)


class CounterDemand(ReportRecord, frozen=True):
    """Counter coverage of a whole stage of `cells` cells: counters in `hit` must be non-zero in at least one cell,
    those in `zero` in none (name to reason).
    """

    hit: tuple[str, ...]
    zero: Mapping[str, str]
    cells: Count


class ShardRecord(ReportRecord, frozen=True):
    """Shard `number` (from 1) of `count` of a selection of `cells` cells, identified by 12 hexadecimal digits over
    their ids.
    """

    number: Annotated[int, Meta(ge=1)]
    count: Annotated[int, Meta(ge=1)]
    cells: Count
    digest: str


class CheaperStage(ReportRecord, frozen=True):
    """The next cheaper stage: its cells, their estimated seconds on one core, and how many of the `faults` that this
    run's stage is known to find it finds too."""

    stage: str
    cells: Count
    seconds: Seconds
    faults: Count
    found: Count


class GateResult(ReportRecord, frozen=True, omit_defaults=True):
    """One gate on one cell.

    `numbers` are the measured values, `interval` the 95 % interval of the main number (see the module docstring),
    `message` one sentence if the gate does not pass, `accept` the command that accepts the new result as intended.
    """

    name: str
    state: GateState
    numbers: Mapping[str, Json] = field(default_factory=dict)
    interval: tuple[Bounded, Bounded] | None = None
    message: str = ""
    accept: str = ""


class StartRecord(ReportRecord, frozen=True, tag_field="kind", tag="start"):
    """An engine start, shared by all cells that ran on it.

    `requested` is the configuration that was asked for, `resolved` the one that the engine chose (None if it refused
    or never started) and `resolved_hash` its hash; `reasons` explain automatic choices, `rewrites` departures.
    """

    requested: Mapping[str, Json]
    resolved: Mapping[str, Json] | None = None
    resolved_hash: str | None = None
    reasons: tuple[ReasonRecord, ...] = ()
    rewrites: tuple[RewriteRecord, ...] = ()

    @property
    def digest(self) -> str:
        """12 hexadecimal digits over the content; 1, 1.0 and true differ."""
        return blake2b(encode(self, order="deterministic"), digest_size=6).hexdigest()


StartT = TypeVar("StartT")


class Token(ReportRecord, frozen=True):
    """A token and its text when decoded alone."""

    id: int
    text: str


class TreeNode(ReportRecord, frozen=True):
    """One node of a verify round's draft; the first is the root.

    `parent` is the index of an earlier node, -1 for the root. `draw` is the target's own token after the node, `margin`
    the difference in nats between the target's two best tokens there. `accepted`: on the accepted path.
    """

    parent: int
    token: Token
    draw: Token
    margin: float
    accepted: bool


class AskPages(ReportRecord, frozen=True):
    """KV pages of one account; the first `cached` belong to the prefix cache. `committed` positions hold accepted
    tokens; each launched, unresolved step may write one width of `in_flight`.
    """

    page_size: Count
    pages: tuple[int, ...]
    cached: Count
    committed: Count
    in_flight: tuple[int, ...]


class FailingRequest(ReportRecord, frozen=True, omit_defaults=True):
    """The first request blamed by a failing gate, or the one running when the engine raised (gate CRASH).

    `prompt`, `got`, `expected` are texts. `token` is the index of the first wrong output token, None if tokens are not
    at fault; `got_tokens` and `expected_tokens` are those around it, starting at index `first`. `round` is the verify
    round that emitted it, counted from 1; 0 is the prefill. `journal` lists the request's ledger entries around that
    step, `pages` its page table afterwards. `tree` is that round's draft, from a second, traced run. `note` is one
    sentence on what is wrong, or why it could not be shown.
    """

    gate: str
    request: str
    prompt: str = ""
    got: str = ""
    expected: str = ""
    token: Count | None = None
    first: Count = 0
    got_tokens: tuple[Token, ...] = ()
    expected_tokens: tuple[Token, ...] = ()
    round: Count | None = None
    lag: Count | None = None
    journal: tuple[str, ...] = ()
    pages: AskPages | None = None
    tree: tuple[TreeNode, ...] = ()
    note: str = ""


class StepRow(ReportRecord, frozen=True, omit_defaults=True):
    """One request in an event of a trace.

    `width`: positions written. `pages`: its account's pages in order, consecutive ones as `5-8`. `committed` and
    `in_flight` as in AskPages. `tokens`: delivered from output index `start`, with their `outcome`. `tree`: the draft
    of a launched round. `note`: one sentence on a contradiction with an earlier event.
    """

    request: str
    width: Count
    pages: str = ""
    committed: Count = 0
    in_flight: tuple[int, ...] = ()
    tokens: tuple[Token, ...] = ()
    start: Count | None = None
    outcome: str = ""
    tree: tuple[TreeNode, ...] = ()
    note: str = ""


class StepEvent(ReportRecord, frozen=True, omit_defaults=True):
    """A step being scheduled, launched or resolved.

    `in_flight`: launched, unresolved steps. `free`, `cached`: pages. `waiting`: queued requests. `journal`: ledger
    entries since the previous event.
    """

    event: Phase
    step: Count
    prefill: bool
    rows: tuple[StepRow, ...]
    in_flight: Count = 0
    free: Count = 0
    cached: Count = 0
    waiting: tuple[str, ...] = ()
    journal: tuple[str, ...] = ()


class Timeline(ReportRecord, frozen=True, omit_defaults=True):
    """The steps of a cell's second run, traced on a fresh engine; `note`: why steps are missing."""

    events: tuple[StepEvent, ...] = ()
    note: str = ""


class CellRecord(ReportRecord, Generic[StartT], frozen=True, tag_field="kind", tag="cell", omit_defaults=True):
    """One cell: what was asked, what proved that it ran, and how each gate judged it.

    `start`: the engine start that it ran on. `evidence`: the engine's counters, as differences over the cell; missing
    ones are zero. `error`: one sentence on what ended the cell without a verdict, or why it is unsupported; `verb` is
    the engine operation that raised it, `traceback` where. `first_red`: the first request blamed by a failing gate.
    `timeline`: of a traced run. `seconds`: wall time. `engine_starts`: made for this cell and its baseline. `losses`:
    one sentence for each earlier attempt whose worker or cluster node was lost. The last three vary from run to run. In
    a report's line, `start` is the index of a start line.
    """

    id: str
    state: CellState
    start: StartT
    axes: Mapping[str, str]
    repro: str
    gates: tuple[GateResult, ...]
    evidence: Mapping[str, Count]
    expect: Expect = "runs"
    waived: Waiver | None = None
    error: str | None = None
    verb: str = ""
    traceback: str = ""
    first_red: FailingRequest | None = None
    timeline: Timeline | None = None
    seconds: Seconds = 0.0
    engine_starts: Count = 0
    losses: tuple[str, ...] = ()

    def gate(self: CellResult, name: str) -> GateResult | None:
        """The result of the gate `name`, or None if the cell did not run it."""
        return next((gate for gate in self.gates if gate.name == name), None)


CellResult: TypeAlias = CellRecord[StartRecord]
CellLine: TypeAlias = CellRecord[Count]


class Header(ReportRecord, frozen=True, tag_field="kind", tag="header", kw_only=True):
    """Code, data, machine and rules of a run.

    `repository`: address of the repository that holds `commit`, "" if unknown. `subject`: the engine under test;
    `label`: the user's name for its build; `files`: the user's plug-ins, algorithm and subject, each a name and 12
    digits of its digest; `fault`: id of the planted fault, "" for none. `created`: ISO 8601 with time zone.
    `thresholds`, `waivers`: the rules in force. `counters`: None if the stage requires none; `shard`: None for an
    unsharded run; `cheaper`: None without a cheaper stage, or if only part of a stage ran. `axes`: axis values of cells
    whose lines omit them.
    """

    schema: Literal[5] = SCHEMA
    tier: str
    stage: str
    seed: int
    created: Time
    commit: str
    dirty: bool
    versions: Mapping[str, str]
    host: Mapping[str, Json]
    lock_hash: str
    data_hash: str
    zoo_hash: str
    thresholds: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    waivers: tuple[WaiverRule, ...] = ()
    counters: CounterDemand | None = None
    subject: SubjectRecord = SubjectRecord(REFERENCE)
    fault: str = ""
    shard: ShardRecord | None = None
    cheaper: CheaperStage | None = None
    repository: Address = ""
    label: str = ""
    files: tuple[str, ...] = ()
    axes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        datetime.fromisoformat(self.created)
        if not isinstance(self.host.get("gpus") or [], list):
            raise ValueError(f"gpus of host must be a list, got {self.host['gpus']!r:.60}")


class Cause(ReportRecord, frozen=True):
    """What a group of red cells has in common after cells beside it ran: the candidates that are left, each a
    conjunction of axis values, how many of those cells ran, and how many of them passed."""

    factors: tuple[tuple[str, ...], ...]
    ran: Count = 0
    passing: Count = 0


class End(ReportRecord, frozen=True, tag_field="kind", tag="end", omit_defaults=True):
    """The last line: number of cells, summed evidence, SHA-256 digest of all earlier lines, ids of selected cells that
    `--fail-fast` left out, GPU-seconds held (None on the CPU tier or if unknown), and the causes of red groups by the
    id of their first cell.
    """

    cells: Count
    evidence: Mapping[str, Count]
    digest: str
    not_run: tuple[str, ...] = ()
    gpu_seconds: Seconds | None = None
    causes: Mapping[str, Cause] = field(default_factory=dict)


def is_waived(cell: CellResult, today: str) -> bool:
    """True if the cell carries a waiver that has not expired on `today` (ISO date)."""
    return cell.waived is not None and today[:10] <= cell.waived.expiry[:10]


def is_red(cell: CellResult, today: str) -> bool:
    """True if the cell is in a red state and no waiver covers it on `today` (ISO date)."""
    return cell.state in RED_STATES and not is_waived(cell, today)


def check_cell(cell: CellResult) -> None:
    """ReportError if a cell's state contradicts its gates and error, or if a passing gate counts a fault."""
    for gate in cell.gates:
        found = [name for name in FAULTS.get(gate.name, ()) if gate.numbers.get(name)]
        if gate.state == "PASS" and found:
            raise ReportError(f"cell {cell.id!r:.60} has a gate {gate.name} that is PASS with {', '.join(found)}")
    red = {gate.state for gate in cell.gates} - {"PASS"}
    if cell.state == "PASS":
        agree = bool(cell.gates) and not red and cell.error is None
    else:
        agree = bool(cell.error or cell.state in red) and ("FAIL" not in red or cell.state == "FAIL")
    if not agree:
        said = ", ".join(f"{gate.name} {gate.state}" for gate in cell.gates) or "none"
        raise ReportError(
            f"cell {cell.id!r:.60} is {cell.state}, but its gates are {said:.240}, error {cell.error!r:.60}"
        )
