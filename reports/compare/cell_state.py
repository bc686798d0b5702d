"""The states of a compared cell, and the records of a comparison.

A cell takes the first state of this list that applies:

- LOST: only the base report has it, or head lists it as UNSUPPORTED, or runs other axis values under its id. NEW: only
  the head report has it, or base lists it as UNSUPPORTED.
- INFRA: the machine failed while head ran it (start, out of disk, timeout), so head has no result for the code.
- REGRESSED: a gate or a cell that passed, or did not exist, is red in head (FAIL or NOT MEASURED), or was NOT MEASURED
  and is FAIL; or a gate that base ran is missing in head, or passes there on nothing or on less than half of what it
  looked at in base (`gate_numbers.AMOUNTS`), or the engine's counters are gone in the same way; or a number fell: its
  loss is significant over all changed numbers together (one-sided tests, Benjamini-Hochberg at
  `FALSE_DISCOVERY_RATE`) and is at least `MIN_EFFECT`.
- NOT COMPARABLE: the only differences are in gates that depend on an input that differs (see `comparability`).
- REWRITTEN: no gate is worse, but another configuration runs: a resolved value or a rewrite differs.
- IMPROVED: a red gate passes now, or a number rose significantly (the mirror image of REGRESSED).
- UNKNOWN: numbers differ and the interval includes a loss above `TOLERANCE`, or head has fewer prompts, questions or
  draws, so more samples are needed; or base is INFRA.
- SAME: everything else. The bound is the largest loss inside the 95 % interval; without a bound the two results are
  identical. A cell that is red in both reports is SAME too, and its explanation says so.

A cell that is UNSUPPORTED in both reports is SAME. One that became UNSUPPORTED is LOST instead of NOT COMPARABLE,
because its inputs are equal and its evidence is missing, which needs an acknowledgement.

The comparison is red if a cell is REGRESSED or INFRA, LOST (unless base did not support it either), REWRITTEN or newly
rewritten without an acknowledgement, or red and NEW or NOT COMPARABLE. A cell with an unexpired waiver keeps its state,
but does not make the comparison red. Counter coverage (`schema.CounterDemand`) that head fails or no longer judges,
where base met it, makes it red too, and so does a commit that names no code, or that no cell could be compared; one
without a cell that has a verdict in both reports is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from specmatrix.reports.effective import Pair, Value
from specmatrix.reports.schema import GateState, Header
from specmatrix.reports.summary import CounterChange
from specmatrix.reports.wording import count

FALSE_DISCOVERY_RATE: Final = 0.05
# Relative for acceptance length and speed, in fractions of the questions for accuracy.
MIN_EFFECT: Final = {
    "acceptance": 0.01, "accuracy": 0.01, "speed": 0.025, "output_token": 0.025, "first_token": 0.10,
    "own_speed": 0.035, "plain_speed": 0.035,
}  # fmt: skip
TOLERANCE: Final = {name: 2 * effect for name, effect in MIN_EFFECT.items()}


class ChangeState(StrEnum):
    """A cell's change from base to head; the module docstring defines each state."""

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

    `gate` is the gate, or one of several ratios of the gate `speed` (`gate_numbers.RATIOS`). `change` and `interval`
    (95 %) are relative, and in fractions of the questions for accuracy; negative is a loss. `p_loss` and `p_gain` are
    one-sided. `significant` is "loss" or "gain" after the test over all changed numbers, else "". `pairing` is what was
    compared: "prompts" (the same prompts), "starts", "intervals" (two summaries), or what has no interval: "24 prompts
    changed alike", and without p values "one prompt", "one question", "other questions", "no spread", "few engine
    starts", "another clock", "another device", "fixed work took +54.0 %". `note`: for a speed, the smallest visible
    effect and the machine's own drift.
    """

    gate: str
    base: float
    head: float
    change: float
    interval: tuple[float, float] | None
    p_loss: float | None
    p_gain: float | None
    pairing: str
    significant: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class GateChange:
    """A gate whose state differs; None: did not run."""

    gate: str
    base: GateState | None
    head: GateState | None
    message: str

    def signature(self) -> str:
        """The change as text: `lossless PASS -> FAIL`."""
        return f"{self.gate} {self.base or 'not run'} -> {self.head or 'not run'}"


@dataclass(frozen=True, slots=True)
class PathChange:
    """A resolved value that differs although the requested configuration is equal, and head's reason for it."""

    field: str
    base: str
    head: str
    because: str

    def signature(self) -> str:
        """The text by which the change is acknowledged: `spec_version: v2 -> v1`."""
        return f"{self.field}: {self.base} -> {self.head}"


@dataclass(frozen=True, slots=True)
class CellChange:
    """One cell with a difference: its state, explanation, differences, and the command that runs it again.

    `bound`: the largest loss inside the interval (for SAME and UNKNOWN), as text. `excused`: the reason of the
    acknowledgement or waiver that covers it. `red`: makes the comparison red.
    """

    id: str
    state: ChangeState
    why: str
    red: bool
    repro: str
    effects: tuple[Effect, ...] = ()
    gates: tuple[GateChange, ...] = ()
    path: tuple[PathChange, ...] = ()
    bound: str = ""
    excused: str = ""

    @property
    def accepted(self) -> str:
        """`excused` with the kind of excuse in front; a waiver's text already names it."""
        acknowledged = self.state in (ChangeState.LOST, ChangeState.REWRITTEN)
        return f"acknowledged: {self.excused}" if self.excused and acknowledged else self.excused

    @property
    def cause(self) -> str:
        """What it may have in common with other cells: which values, gates or numbers changed, but not by how much."""
        moved = [change.signature() for change in self.path] if self.state is ChangeState.REWRITTEN else []
        gates = [change.signature() for change in self.gates]
        numbers = [f"{effect.significant} of {effect.gate}" for effect in self.effects if effect.significant]
        loose = [f"{effect.gate} differs" for effect in self.effects]
        return "; ".join(moved or gates or numbers or loose) or self.why


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An input that differs between the reports; `gates` cannot be compared because of it, for the reason `why`."""

    name: str
    base: str
    head: str
    gates: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class LostPairs:
    """Pairs of effective values that passing cells of only one report cover, with a common cause.

    `cause`: a sentence such as "3 cells resolve now to spec_version=v1: <reason>". `cells`: those that covered the
    pairs. `only_carrier`: the pairs that a single cell covered. `explained`: the cells are red in head, which says why.
    """

    cause: str
    cells: tuple[str, ...]
    pairs: tuple[Pair, ...]
    only_carrier: tuple[Pair, ...]
    explained: bool = False


@dataclass(frozen=True, slots=True)
class CoverageChange:
    """Effective pairs that passing cells of only one report cover, by cause."""

    lost: tuple[LostPairs, ...]
    gained: tuple[LostPairs, ...]


@dataclass(frozen=True, slots=True)
class RewriteChange:
    """A change in rewrites, or in a resolved value for the same requested configuration.

    `status`: "new", "gone" or "changed" (another reason) for a rewrite that the engine reports; "moved" for a resolved
    value that differs although the requested configuration is equal. `reason`: the most frequent one of the cells, and
    how many others there are. `silent`: some cell does not declare it by
    `expect` = "rewritten". `excused`: the acknowledgement's reason.
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
    """An automatic choice with another value, or the same value for another reason."""

    field: str
    base: str
    base_because: str
    head: str
    head_because: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftDefault:
    """An automatic value that changed, with the effective values that no passing cell runs by default any longer.

    values: effective values of the `cells` that ran it by default in base. asked: head's cells that still run it
    because they request it. gone: no cell at all runs it by default.
    """

    axis: str
    value: str
    values: tuple[Value, ...]
    cells: tuple[str, ...]
    asked: tuple[str, ...]
    gone: bool

    @property
    def sentence(self) -> str:
        """`no cell runs spec_version=v1 by default any more (3 did); 2 cells request it, such as eagle3.v1`."""
        where = "" if self.gone else f" with {', '.join(f'{axis}={value}' for axis, value in self.values)}"
        ask = "none requests it"
        if self.asked:
            verb = "requests" if len(self.asked) == 1 else "request"
            ask = f"{count(len(self.asked), 'cell')} {verb} it, such as {self.asked[0]}"
        return f"no cell runs {self.axis}={self.value} by default{where} any more ({len(self.cells)} did); {ask}"


@dataclass(frozen=True, slots=True)
class Factor:
    """What failing cells have in common and no passing cell has: the conjunctions of conditions, any of which may be
    the cause, and a `text` such as "6 red cells, all at topk > 1 x spec_version=v2, where none of 31 passing cells is".
    """

    text: str
    conditions: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A threshold or waiver that differs; "" where it does not exist."""

    name: str
    base: str
    head: str


@dataclass(frozen=True, slots=True)
class ComparedReport:
    """One report of a comparison."""

    path: str
    header: Header
    cells: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences between two reports. `counts` includes every cell of either; `changes` leaves out cells without
    any difference. `verdict`: "green" or "red"; `reasons`: one sentence each on why it is red."""

    base: ComparedReport
    head: ComparedReport
    verdict: str
    reasons: tuple[str, ...]
    counts: dict[ChangeState, int]
    changes: tuple[CellChange, ...]
    still_red: tuple[str, ...]
    mismatches: tuple[Mismatch, ...]
    coverage: CoverageChange
    counters: CounterChange
    rewrites: tuple[RewriteChange, ...]
    choices: tuple[ChoiceChange, ...]
    left: tuple[LeftDefault, ...]
    factors: tuple[Factor, ...]
    thresholds: tuple[RuleChange, ...]
    waivers: tuple[RuleChange, ...]

    @property
    def outcome(self) -> tuple[str, ...]:
        """The grounds of the verdict, in sentences: `reasons` if it is red."""
        unknown = self.counts[ChangeState.UNKNOWN]
        if self.reasons or not unknown:
            return self.reasons or ("nothing got worse",)
        return (f"no cell is known to be worse, but {count(unknown, 'cell')} UNKNOWN: more samples are needed",)

    unused: tuple[str, ...]
