"""All incidents, in the order of their dates."""

from __future__ import annotations

from typing import Final

from specmatrix.engine.core.config.suggest import nearest
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.incidents import (
    adaptive_slots,
    extension_points,
    overlap_by_default,
    session_inheritance,
    trees_on_overlap,
)
from specmatrix.matrix.incidents.incident import Incident

INCIDENTS: Final[tuple[Incident, ...]] = (
    session_inheritance.INCIDENT,
    overlap_by_default.INCIDENT,
    extension_points.INCIDENT,
    trees_on_overlap.INCIDENT,
    adaptive_slots.INCIDENT,
)


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
