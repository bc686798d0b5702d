"""All incidents, in the order of their dates, from `matrix/incidents/catalogue/*.yaml`.

A file has the fields of `Incident` but its name, which is the file's. `states` are the edits of each `CodeState` by its
name, which steps refer to; `expected.cells` has the cells by their state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from specmatrix.errors import ConfigError, nearest, shown
from specmatrix.matrix.incidents.incident import AskedStep, ComparedStep, ContractStep, Incident, Step
from specmatrix.reports.yaml_text import parse_yaml

FOLDER: Final = Path(__file__).parent / "catalogue"
NAMES: Final = (
    "session-inheritance",
    "overlap-by-default",
    "extension-points",
    "trees-on-overlap",
    "adaptive-slots",
)


def _incident(name: str) -> Incident:
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


INCIDENTS: Final = tuple(map(_incident, NAMES))


def incidents(name: str) -> tuple[Incident, ...]:
    """The incident of this name, or all of them for "all". ConfigError for an unknown name."""
    if name == "all":
        return INCIDENTS
    known = {incident.name: incident for incident in INCIDENTS}
    if name not in known:
        close = nearest(name, known)
        hint = f"the closest is {close}" if close else f"it must be all or one of {', '.join(known)}"
        raise ConfigError(f"incident {shown(name)} is unknown; {hint}")
    return (known[name],)
