"""The format of an incident: states of the code, and the comparisons that a reviewer of each change would have seen.

An incident is a sequence of steps. Most compare two states of the code, which are patches of this checkout in the form
of the fault catalogue. Each state is judged by a golden table that is regenerated for it, as in a change whose author
updated the table. A file of `catalogue/` has the fields of `Incident` but its name; `states` are the edits of each
`CodeState` by its name, which steps refer to; `expected.cells` has the cells by their state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from specmatrix.matrix.faults.fault import Edit
from specmatrix.reports.compare import Acknowledgement
from specmatrix.reports.yaml_text import parse_yaml

FOLDER: Final = Path(__file__).parent / "catalogue"
# In the order of their dates.
NAMES: Final = (
    "session-inheritance",
    "overlap-by-default",
    "extension-points",
    "trees-on-overlap",
    "adaptive-slots",
)


class CodeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state of the code: this checkout with some replacements. Equal states of an incident run once."""

    name: str
    edits: tuple[Edit, ...] = ()


class Shortfall(NamedTuple):
    """A missing part of a report: the result of a gate in a cell, or with gate "" the cell. what: "missing" (the gate
    did not run) or "NOT MEASURED"."""

    cell: str
    gate: str = ""
    what: Literal["missing", "NOT MEASURED"] = "missing"

    @property
    def text(self) -> str:
        return f"if {self.gate and self.gate + ' of '}{self.cell} were {self.what}"


class PromotedDefault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A default that a change promotes, judged by the report of head.

    field, condition: of the row of `DEFAULTS`, whose evidence is required. refused: the reasons against it, empty if it
    is accepted. shortfall: removed from the report before it is judged, to show that the default is then refused.
    """

    field: str
    condition: str
    refused: tuple[str, ...] = ()
    shortfall: Shortfall | None = None


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the comparison must say.

    cells: id -> state with the gates that turned red, `REGRESSED: lossless, ledger`, for every cell that is not SAME.
    factor: the first conditions that failing cells share. rewrites: `new spec_version: v2 -> v1`, or a pattern of it,
    -> "red", "acknowledged", "declared" or "noted" (of no consequence). lost_pairs, gained_pairs: some of the effective
    pairs, `spec_version=v1 x topk=1`. by_default: some of the pairs that no cell reaches by default any longer. says:
    parts of what cells say.
    """

    verdict: str
    cells: Mapping[str, str] = {}
    factor: str = ""
    rewrites: Mapping[str, str] = {}
    lost_pairs: tuple[str, ...] = ()
    gained_pairs: tuple[str, ...] = ()
    by_default: tuple[str, ...] = ()
    says: tuple[str, ...] = ()


class ComparedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change as its reviewer sees it: head's report compared with base's.

    cells: ids that both run. dropped: cells that base runs and head has deleted; added: the reverse. acknowledged:
    changes declared as intended.
    """

    name: str
    story: str
    base: CodeState
    head: CodeState
    cells: tuple[str, ...]
    expected: Expected
    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    acknowledged: tuple[Acknowledgement, ...] = ()
    promotions: tuple[PromotedDefault, ...] = ()


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """EAGLE3 with adaptive steps: the other fields that are set, and how the refusal begins, "" if it runs."""

    fields: Mapping[str, Any]
    refusal: str = ""


class AskedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configurations that the current engine accepts or refuses, before anything runs."""

    name: str
    story: str
    asked: tuple[Asked, ...]


class ContractStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user's own algorithm under the conformance suite, as `specmatrix contract` shows it.

    file: in `algorithms/`. state: of the engine. refused: part of the error that refuses it.
    violated: part of a violation. Both are empty if it satisfies the contract.
    """

    name: str
    story: str
    file: str
    state: CodeState
    refused: str = ""
    violated: str = ""


Step: TypeAlias = ComparedStep | AskedStep | ContractStep


class Incident(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """origins: the changes. question: what the replay answers."""

    name: str
    origins: tuple[str, ...]
    question: str
    steps: tuple[Step, ...]


def incident(name: str) -> Incident:
    """The incident of a file of the catalogue."""
    found = parse_yaml((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), own=True)
    states = {state: {"name": state, "edits": edits} for state, edits in found["states"].items()}
    steps = tuple(_step(row, states) for row in found["steps"])
    return Incident(name, tuple(found["origins"]), found["question"], steps)


def _step(row: dict[str, Any], states: dict[str, Any]) -> Step:
    kind: type[Step] = AskedStep if "asked" in row else ContractStep if "file" in row else ComparedStep
    row |= {part: states[row[part]] for part in ("base", "head", "state") if part in row}
    if expected := row.get("expected"):
        by_state = expected.get("cells", {})
        expected["cells"] = {cell: state for state, cells in by_state.items() for cell in cells}
    return msgspec.convert(row, kind)
