"""The states of a compared cell, and the records of a comparison.

A cell takes the first state of this list that applies:

- LOST: only the base report has it, or head lists it as UNSUPPORTED: either way base judged it and head does not. NEW:
  only the head report has it, or base lists it as UNSUPPORTED.
- INFRA: the machine failed while head ran it (start, out of disk, timeout), so head says nothing about the code.
- REGRESSED: a gate that was green, or did not exist, is red in head (FAIL or NOT MEASURED); or a gate that base ran is
  missing in head; or a number fell: its loss is significant over all changed numbers together (one-sided tests,
  Benjamini-Hochberg at `FALSE_DISCOVERY_RATE`) and is at least `LEAST_EFFECT`.
- NOT COMPARABLE: the only differences are in gates that depend on an input that differs (see `comparability`), or the
  two reports mean different things by this id.
- REWRITTEN: the cell is as green as before, but runs another configuration: a resolved value or a rewrite differs.
- IMPROVED: a red gate is green now, or a number rose by the rule of REGRESSED turned round.
- UNKNOWN: numbers differ and the evidence allows a loss of more than `TOLERANCE`; or base is INFRA. More samples
  decide.
- SAME: everything else. The bound is the largest loss that the evidence still allows, at 95 %; without a bound the two
  results are identical. A cell that was red and is still red is SAME too, and says so.

A cell that is UNSUPPORTED in both reports is SAME. One that became UNSUPPORTED is LOST and not NOT COMPARABLE: its
inputs do not differ, its evidence is gone, and only an acknowledgement accepts that.

The comparison is red if a cell is REGRESSED or INFRA, LOST (unless base did not support it either), REWRITTEN or newly
rewritten without an acknowledgement, or red and NEW or NOT COMPARABLE. A waiver that has not expired takes the red off
a cell, and its state stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from specmatrix.reports.counters import ProbeChange
from specmatrix.reports.effective import Pair
from specmatrix.reports.schema import GateState, Header

FALSE_DISCOVERY_RATE: Final = 0.05
# Relative for acceptance length, in fractions of the questions for accuracy.
LEAST_EFFECT: Final = {"acceptance": 0.01, "accuracy": 0.01}
TOLERANCE: Final = {"acceptance": 0.02, "accuracy": 0.02}


class State(StrEnum):
    """What became of a cell between base and head; the module docstring defines each state."""

    REGRESSED = "REGRESSED"
    IMPROVED = "IMPROVED"
    SAME = "SAME"
    UNKNOWN = "UNKNOWN"
    NOT_COMPARABLE = "NOT COMPARABLE"
    NEW = "NEW"
    LOST = "LOST"
    REWRITTEN = "REWRITTEN"
    INFRA = "INFRA"


@dataclass(frozen=True, slots=True)
class Effect:
    """The change of one number of one cell from base to head.

    `change` and `interval` (95 %) are relative for acceptance length and in fractions of the questions for accuracy;
    negative is a loss. `p_loss` and `p_gain` are one-sided. `significant` is "loss" or "gain" once all changed
    numbers were judged together, else "". `pairing` says what was compared: "prompts" (the same prompts), "intervals"
    (two summaries) or "one prompt", which has no interval and proves neither a loss nor a gain.
    """

    gate: str
    base: float
    head: float
    change: float
    interval: tuple[float, float] | None
    p_loss: float
    p_gain: float
    pairing: str
    significant: str = ""


@dataclass(frozen=True, slots=True)
class GateChange:
    """A gate whose state differs; None is "did not run"."""

    gate: str
    base: GateState | None
    head: GateState | None
    message: str


@dataclass(frozen=True, slots=True)
class PathChange:
    """A resolved value that differs although the same was asked, and the engine's reason in head."""

    field: str
    base: str
    head: str
    because: str

    def signature(self) -> str:
        """How the change is acknowledged: `spec_version: v2 -> v1`."""
        return f"{self.field}: {self.base} -> {self.head}"


@dataclass(frozen=True, slots=True)
class CellChange:
    """One cell that is not simply the same: its state, why, what differs, and the command that runs it again.

    `bound` is the largest loss that the evidence still allows (for SAME and UNKNOWN), as text. `excused` is the
    reason of the acknowledgement or waiver that covers it. `red` counts for the verdict. `first_divergence` is what
    the lossless gate recorded in head, as text.
    """

    id: str
    state: State
    why: str
    red: bool
    repro: str
    effects: tuple[Effect, ...] = ()
    gates: tuple[GateChange, ...] = ()
    path: tuple[PathChange, ...] = ()
    bound: str = ""
    excused: str = ""
    first_divergence: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An input that differs between the reports. `gates` can no longer be compared because of it; `why` says it."""

    name: str
    base: str
    head: str
    gates: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class LostPairs:
    """Pairs of effective values that green cells of one report carry and none of the other does, for one cause.

    `cause` is a sentence such as "3 cells now resolve to spec_version=v1: <reason>". `cells` carried the pairs.
    `only_carrier` are the pairs that a single cell carried.
    """

    cause: str
    cells: tuple[str, ...]
    pairs: tuple[Pair, ...]
    only_carrier: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class CoverageChange:
    """Effective pairs that one report exercises in green and the other does not, by cause."""

    lost: tuple[LostPairs, ...]
    gained: tuple[LostPairs, ...]


@dataclass(frozen=True, slots=True)
class RewriteChange:
    """What the engine runs instead of what was asked, or instead of what it used to choose, and how that changed.

    `status`: "new", "gone" or "changed" (the reason reads differently) for a rewrite that the engine reports; "moved"
    for a resolved value that differs although the same was asked. `silent`: no cell declares it by expecting to be
    rewritten. `excused` is the acknowledgement's reason.
    """

    signature: str
    status: str
    reason: str
    cells: tuple[str, ...]
    silent: bool
    red: bool
    excused: str = ""


@dataclass(frozen=True, slots=True)
class ChoiceChange:
    """An automatic choice that took another value, or the same value for another reason."""

    field: str
    base: str
    base_because: str
    head: str
    head_because: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """What failing cells have in common: `text` reads "red at topk > 1 x spec_version=v2: 6 of 6 failing cells, 0 of
    31 passing"; `p` is its adjusted chance under no association."""

    text: str
    conditions: tuple[str, ...]
    failing: int
    failing_total: int
    passing: int
    passing_total: int
    p: float


@dataclass(frozen=True, slots=True)
class Drift:
    """A small change in one direction over many cells, those with one axis value or (axis "") all; a hint, no
    verdict."""

    gate: str
    axis: str
    value: str
    down: int
    up: int
    median: float
    p: float


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A threshold or waiver that differs; base or head is "" where it does not exist."""

    name: str
    base: str
    head: str


@dataclass(frozen=True, slots=True)
class Side:
    """One report of a comparison."""

    path: str
    header: Header
    cells: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that differs between two reports. `counts` covers every cell of either; `changes` leaves out the
    cells that are SAME, green and identical. `verdict` is "green" or "red"; `reasons` says why, one sentence each."""

    base: Side
    head: Side
    verdict: str
    reasons: tuple[str, ...]
    counts: dict[State, int]
    changes: tuple[CellChange, ...]
    still_red: tuple[str, ...]
    mismatches: tuple[Mismatch, ...]
    coverage: CoverageChange
    probes: ProbeChange
    rewrites: tuple[RewriteChange, ...]
    choices: tuple[ChoiceChange, ...]
    factors: tuple[Factor, ...]
    drifts: tuple[Drift, ...]
    thresholds: tuple[RuleChange, ...]
    waivers: tuple[RuleChange, ...]
    unused: tuple[str, ...]
