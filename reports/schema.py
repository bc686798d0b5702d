"""Records of `report.jsonl`, schema 1. `codec` holds their JSON form.

A report is a JSON Lines file: one header line, one line per cell, one end line with the number of cells, the sum of
their witnesses (`probes`) and where their lines lie (`index`, see `reports.index`); older reports lack these two. Keys
of a cell are written in the order of `CELL_KEYS`, so that a reader can take the id, the state, the axes and the
resolved configuration from the front of a line without parsing the rest, and can ignore the running time at its end.
Readers do not depend on that order, and ignore keys that they do not know.

Numbers of a gate, where plots and comparisons read them (other gates may hold any numbers):

- `acceptance`: `length` (tokens per verify round, bonus included), `reference`, `per_position` (list of rates);
  optional `ratio` (of the two; then the gate's interval is that of the ratio, else that of the length), `emitted`
  and `rounds`, two lists with one entry per prompt, which make two reports comparable pair by pair
- `accuracy`: `accuracy` and `baseline` (fractions), `n` (questions), `lost` and `won` (discordant pairs against the
  baseline); optional `outcomes`, a string with "1" (right) or "0" (wrong) per question
- `lossless`: `tokens`, `divergent`, `ties`, `first_divergence`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

SCHEMA: Final = 1
REPORT_FILE: Final = "report.jsonl"
SUMMARY_FILE: Final = "summary.json"
MARKDOWN_FILE: Final = "report.md"
PAGE_FILE: Final = "report.html"

CellState = Literal["PASS", "FAIL", "NOT MEASURED", "INFRA"]
GateState = Literal["PASS", "FAIL", "NOT MEASURED"]
Expect = Literal["runs", "refused", "rewritten"]
CELL_STATES: Final[tuple[CellState, ...]] = ("PASS", "FAIL", "NOT MEASURED", "INFRA")
GATE_STATES: Final[tuple[GateState, ...]] = ("PASS", "FAIL", "NOT MEASURED")
EXPECTATIONS: Final[tuple[Expect, ...]] = ("runs", "refused", "rewritten")
GATES: Final = (
    "ledger",
    "ranks",
    "session",
    "adaptive",
    "lossless",
    "distribution",
    "finish",
    "acceptance",
    "accuracy",
    "config",
    "effective",
)

Json: TypeAlias = Any
Number: TypeAlias = float | int | str | Sequence[Any]

CELL_KEYS: Final = (
    "id", "state", "axes", "resolved", "expect", "tier", "stage", "launch_hash", "requested", "reasons", "rewrites",
    "waived", "witness", "gates", "error", "repro", "seconds",
)  # fmt: skip


class ReportError(Exception):
    """A report cannot be written or read; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the engine chose `value` for `field`, where the user left the choice open."""

    field: str
    value: Json
    because: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A departure from what was asked."""

    field: str
    asked: Json
    got: Json
    reason: str


@dataclass(frozen=True, slots=True)
class Waiver:
    """A known failure of one cell, accepted until `expiry` (ISO date, inclusive)."""

    reason: str
    expiry: str


@dataclass(frozen=True, slots=True)
class WaiverRule:
    """A waiver as declared: the cells it selects, the reason, the expiry (ISO date, inclusive)."""

    cells: str
    reason: str
    expiry: str


@dataclass(frozen=True, slots=True)
class ProbeDemand:
    """What the probes of a whole stage must show: `hit` in some of its `cells` cells, and `zero` in none (name to
    reason)."""

    hit: tuple[str, ...]
    zero: Mapping[str, str]
    cells: int


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate on one cell.

    `numbers` are the measured values, `interval` the 95 % interval of the gate's main number (see the module
    docstring), `message` one sentence if the gate is not green.
    """

    name: str
    state: GateState
    numbers: Mapping[str, Number] = field(default_factory=dict)
    interval: tuple[float, float] | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell: what was asked, what ran, what proved it, and how each gate judged it. `seconds` is wall time."""

    id: str
    state: CellState
    axes: Mapping[str, Json]
    resolved: Mapping[str, Json] | None
    expect: Expect
    tier: str
    stage: str
    launch_hash: str | None
    requested: Mapping[str, Json]
    repro: str
    reasons: tuple[Reason, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    waived: Waiver | None = None
    witness: Mapping[str, int] = field(default_factory=dict)
    gates: tuple[GateResult, ...] = ()
    error: str | None = None
    seconds: float = 0.0

    def gate(self, name: str) -> GateResult | None:
        """The result of the gate `name`, or None if the cell did not run it."""
        return next((gate for gate in self.gates if gate.name == name), None)


@dataclass(frozen=True, slots=True)
class Header:
    """What the run was: code, data, machine and rules.

    `created` is an ISO 8601 time with zone. `probes`: None where the stage demands none, as in reports older than the
    rule.
    """

    tier: str
    stage: str
    seed: int
    created: str
    commit: str
    dirty: bool
    versions: Mapping[str, str]
    host: Mapping[str, Json]
    lock_hash: str
    data_hash: str
    zoo_hash: str
    thresholds: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    waivers: tuple[WaiverRule, ...] = ()
    probes: ProbeDemand | None = None


def is_waived(cell: CellResult, today: str) -> bool:
    """True if the cell carries a waiver that has not expired on `today` (ISO date)."""
    return cell.waived is not None and today[:10] <= cell.waived.expiry[:10]
