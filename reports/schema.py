"""Records of `report.jsonl`, schema 4; `docs/report-schema.md` describes them for readers outside this repository.

A report is a JSON Lines file: one header line, then start, names and cell lines, and one end line. A start line holds
what the cells of an engine start share, a names line the names of counters, or of gates and their numbers, of which a
cell's line has the values; both precede the first cell that refers to their number. The header holds the values of axes
that a cell does not name.

Numbers of a gate, where plots and comparisons read them (other gates may hold any numbers):

- `acceptance`: `length` (tokens per verify round, bonus included), `reference`, `per_position` (list of rates);
  optional `ratio` (of the two; then the gate's interval is that of the ratio, else that of the length), `emitted`
  and `rounds`, two lists with one entry per prompt, which make two reports comparable pair by pair, and `questions`,
  the numbers of the prompts' questions
- `accuracy`: `accuracy` and `baseline` (fractions), `n` (questions), `lost` and `won` (discordant pairs against the
  baseline); optional `outcomes`, a string with "1" (right) or "0" (wrong) per question
- `lossless`: `tokens`, `proving`, `divergent`, `ties`, `past_ties`, `first_divergence`
- `speed`: `starts`, `turns` of each, `clock`, `device`, `gpus`, the lists of `speed.RATIOS` and the figures of
  `speed.FIGURES`; its interval is that of `speed_up`, None for one start

How much a gate looked at (`gate_numbers.AMOUNTS`) and how many faults it found (`FAULTS`) are integers, or what is said
above. A reader takes what is neither as not recorded. `check_cell` holds what a cell must not say; the writer calls it,
and the digest in the end line tells the reader that nothing was changed since.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Any, Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct, field
from msgspec.json import encode

from specmatrix.reports.gate_numbers import FAULTS, LARGEST

SCHEMA: Final = 4
REPORT_FILE: Final = "report.jsonl"
SUMMARY_FILE: Final = "summary.json"
MARKDOWN_FILE: Final = "report.md"
PAGE_FILE: Final = "report.html"
# What is made of a report, next to it.
PAGES: Final = (SUMMARY_FILE, MARKDOWN_FILE, PAGE_FILE)
# Characters of an error's text that come from the file.
MAX_SAID: Final = 240
# A header's commit if the code is neither in a git checkout nor an installed release.
UNKNOWN: Final = "unknown"

# Of a repository in the web.
ADDRESS: Final = r"https://[\w.-]+(:\d+)?(/[\w.~+-]+)+"
_DAY: Final = r"\d{4}-\d\d-\d\d"

CellState = Literal["PASS", "FAIL", "NOT MEASURED", "INFRA", "UNSUPPORTED"]
GateState = Literal["PASS", "FAIL", "NOT MEASURED"]
Expect = Literal["runs", "refused", "rewritten"]
WaiverKind = Literal["known", "flaky"]
Phase = Literal["schedule", "launch", "resolve"]
# The name of the subject that the matrix brings, and of what a waiver covers if no gate judged the cell.
REFERENCE: Final = "reference"
CRASH: Final = "crash"
GATE_STATES: Final[tuple[GateState, ...]] = ("PASS", "FAIL", "NOT MEASURED")
# A cell in one of these states fails its run, unless it is waived.
RED_STATES: Final[frozenset[CellState]] = frozenset(("FAIL", "NOT MEASURED", "INFRA"))
# A cell in one of these states was not judged, so its record says nothing about the code.
UNJUDGED_STATES: Final[frozenset[CellState]] = frozenset(("INFRA", "UNSUPPORTED"))

Json: TypeAlias = Any
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LARGEST)]
Bounded: TypeAlias = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
# Texts by which days and times compare.
Day: TypeAlias = Annotated[str, Meta(pattern=rf"^{_DAY}\Z")]
Time: TypeAlias = Annotated[str, Meta(pattern=rf"^{_DAY}[T ]\d\d:\d\d.*(Z|[+-]\d\d:\d\d)\Z")]
Address: TypeAlias = Annotated[str, Meta(pattern=rf"^({ADDRESS})?\Z")]
Reason: TypeAlias = Annotated[str, Meta(pattern=r"\S")]


class ReportError(Exception):
    """A report cannot be written or read; the message is one sentence for the user."""


class ReportRecord(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A JSON object of a report. Keys without a default are required, and an unknown key is an error. Records hold no
    cycles, so the garbage collector does not look at them."""


class ReasonRecord(ReportRecord, frozen=True):
    """Why the engine chose `value` for `field`, where the user left the choice open."""

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
    """A known failure of one cell, accepted until `expiry` (ISO date, inclusive). issue: where it is reported, "" for
    nowhere."""

    reason: Reason
    expiry: Day
    issue: str = ""


class WaiverRule(ReportRecord, frozen=True, omit_defaults=True):
    """A waiver as declared: the cells it selects, the reason, the expiry (ISO date, inclusive), and the gate that fails
    there (`CRASH`: no gate, but the run).

    kind: "known" (a cell that passes the gate again is red) or "flaky" (it may pass or fail). subject: the one that it
    is of; versions: a range of its versions, "" for all; issue: where the defect is reported.
    """

    cells: str
    reason: Reason
    expiry: Day
    gate: str = CRASH
    kind: WaiverKind = "known"
    subject: str = REFERENCE
    versions: str = ""
    issue: str = ""


class SubjectRecord(ReportRecord, frozen=True, omit_defaults=True):
    """The engine under test: its name and version, what it claims to show, and for each gate that does not apply to it
    one sentence on why."""

    name: str
    version: str = ""
    capabilities: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)


class CounterDemand(ReportRecord, frozen=True):
    """What the counters of a whole stage must show: `hit` above zero in some of its `cells` cells, and `zero` above
    zero in none (name to reason)."""

    hit: tuple[str, ...]
    zero: Mapping[str, str]
    cells: Count


class ShardRecord(ReportRecord, frozen=True):
    """Which part of a selection a run is: shard `number`, from 1, of `count`. The whole selection has `cells` cells,
    and `digest` is 12 hexadecimal digits over their ids."""

    number: Annotated[int, Meta(ge=1)]
    count: Annotated[int, Meta(ge=1)]
    cells: Count
    digest: str


class CheaperStage(ReportRecord, frozen=True):
    """The next cheaper stage of a run: its cells and their estimated seconds on one core, and how many of the `faults`
    that cells of the run's stage are known to find have a cell in it."""

    stage: str
    cells: Count
    seconds: Seconds
    faults: Count
    found: Count


class GateResult(ReportRecord, frozen=True, omit_defaults=True):
    """One gate on one cell.

    `numbers` are the measured values, `interval` the 95 % interval of the gate's main number (see the module
    docstring), `message` one sentence if the gate does not pass, `accept` the command that accepts what the gate found,
    if that is wanted.
    """

    name: str
    state: GateState
    numbers: Mapping[str, Json] = field(default_factory=dict)
    interval: tuple[Bounded, Bounded] | None = None
    message: str = ""
    accept: str = ""


class StartRecord(ReportRecord, frozen=True, tag_field="kind", tag="start"):
    """An engine start: what all cells that ran on it share.

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
        """12 hexadecimal digits over the content, in which 1, 1.0 and true differ."""
        return blake2b(encode(self, order="deterministic"), digest_size=6).hexdigest()


class NamesRecord(ReportRecord, frozen=True, tag_field="kind", tag="names"):
    """Names that cell lines give values to, in this order: a gate and the names of its numbers, for each gate; or
    `evidence` and the names of counters."""

    groups: tuple[tuple[str, tuple[str, ...]], ...]


class CounterValues(ReportRecord, frozen=True, array_like=True):
    """The counters of a cell: the number of the line that names them, and their values."""

    names: Count
    values: tuple[Count, ...]


class GateValues(ReportRecord, frozen=True, array_like=True):
    """The gates of a cell: the number of the line that names them and their numbers, the values of all numbers, and
    without numbers those gates that are more than a PASS."""

    names: Count
    values: tuple[Json, ...]
    others: tuple[GateResult, ...] = ()


StartT = TypeVar("StartT")
GatesT = TypeVar("GatesT")
EvidenceT = TypeVar("EvidenceT")


class Token(ReportRecord, frozen=True):
    """A token and the text that it alone decodes to."""

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
    """The KV pages of one account: `cached` of them, the first ones, belong to the prefix cache. `committed` positions
    are accepted tokens', and each launched step that is not resolved may write a width of `in_flight`."""

    page_size: Count
    pages: tuple[int, ...]
    cached: Count
    committed: Count
    in_flight: tuple[int, ...]


class FailingRequest(ReportRecord, frozen=True, omit_defaults=True):
    """The first request that a red gate blames, or that an engine was at when it raised (gate CRASH).

    `prompt`, `got`, `expected` are texts. `token` is the index of the first wrong output token, None if tokens are not
    at fault; `got_tokens` and `expected_tokens` are those around it, from index `first` on. `round` is the verify round
    that yielded it, from 1 on, 0 for the prefill. `journal` lists the ledger's entries of the request around that step,
    `pages` is its page table after it. `tree` is the draft of that round, of a second, traced run. `note` says in one
    sentence what is wrong there, or could not be shown.
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

    `width` positions are written; `pages` are those of its account in order, runs of neighbours as `5-8`; `committed`
    and `in_flight` as in AskPages. `tokens` are delivered from output index `start` on, with what came of them as
    `outcome`. `tree` is the draft of a launched round. `note` says in one sentence what contradicts an earlier event.
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
    """One moment of a step: scheduled, launched or resolved.

    `in_flight` steps are launched and unread, `free` and `cached` pages are left, `waiting` requests are queued.
    `journal` lists the ledger's entries since the event before.
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
    """The steps of a cell's second run, on a fresh engine that is traced; `note`: why there are none or not all."""

    events: tuple[StepEvent, ...] = ()
    note: str = ""


class CellRecord(
    ReportRecord, Generic[StartT, GatesT, EvidenceT], frozen=True, tag_field="kind", tag="cell", omit_defaults=True
):
    """One cell: what was asked, what proved that it ran, and how each gate judged it.

    `start` is the engine start that it ran on. `evidence` holds
    the engine's counters, as differences over the cell; a counter that it lacks is zero. `error` says in one sentence
    what stopped a cell without a verdict, or why the subject does not support it; `verb` is the engine's operation that
    raised it, `traceback` where. `first_red` is the first request that a red gate blames, None if none blames any.
    `timeline` is of a traced run, None without one. `seconds` is wall time; `engine_starts` are those for this cell,
    its baseline's included; `losses` has a sentence on each earlier attempt that lost its worker or node of a cluster.
    These vary from run to run and come last. In a report's line, `start` is the number of a start line, and `gates` and
    `evidence` refer to names lines.
    """

    id: str
    state: CellState
    start: StartT
    axes: Mapping[str, str]
    repro: str
    gates: GatesT
    evidence: EvidenceT
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
        for gate in self.gates:
            if gate.name == name:
                return gate
        return None


CellResult: TypeAlias = CellRecord[StartRecord, tuple[GateResult, ...], Mapping[str, Count]]
CellLine: TypeAlias = CellRecord[Count, GateValues, CounterValues]


class Header(ReportRecord, frozen=True, tag_field="kind", tag="header", kw_only=True):
    """What the run was: code, data, machine and rules.

    `repository` is the address of the repository that holds `commit`, "" if it is not known. `subject` is the engine
    under test; `label` is what the user calls its build; `files` are the user's own (plug-ins, an algorithm, a
    subject), each a name and 12 digits of its digest; `fault` is the id of the defect that was planted in it, "" for
    none. `created` is an ISO 8601 time with zone. `thresholds` and `waivers` are the rules that held. `counters` is
    None where the stage demands none, `shard` for a run of all selected cells, `cheaper` where no stage is or only a
    part of one ran.
    `axes`: the values that a cell has on the axes that its line does not name.
    """

    schema: Literal[4] = SCHEMA
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


class End(ReportRecord, frozen=True, tag_field="kind", tag="end", omit_defaults=True):
    """The last line: the number of cells, the sum of their evidence, the SHA-256 digest of all lines before this one,
    the ids of selected cells that did not run, because `--fail-fast` ended the run, and the seconds for which the run
    held its GPUs, times their number (None on the CPU tier, or unknown)."""

    cells: Count
    evidence: Mapping[str, Count]
    digest: str
    not_run: tuple[str, ...] = ()
    gpu_seconds: Seconds | None = None


def is_waived(cell: CellResult, today: str) -> bool:
    """True if the cell carries a waiver that has not expired on `today` (ISO date)."""
    return cell.waived is not None and today[:10] <= cell.waived.expiry[:10]


def is_red(cell: CellResult, today: str) -> bool:
    """True if the cell is in a red state and no waiver covers it on `today` (ISO date)."""
    return cell.state in RED_STATES and not is_waived(cell, today)


def check_cell(cell: CellResult) -> None:
    """ReportError if a cell's state is not what its gates and its error say, or if a gate passes that found a fault."""
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
