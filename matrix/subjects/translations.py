"""A subject's translation of cells."""

from __future__ import annotations

from typing import Final

from specmatrix.matrix.subjects.protocol import Capability, EngineCommand, Subject, Unsupported
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

NOT_REFUSED: Final = "a combination that the reference engine must refuse, by its own rules"


def translated(subject: Subject, prepared: PreparedCell) -> EngineCommand | Unsupported:
    """Translate a cell; one that the reference engine must refuse is Unsupported for subjects with other rules."""
    if prepared.expectation == "refused" and Capability.RESOLUTION not in subject.profile.capabilities:
        return Unsupported(NOT_REFUSED)
    return subject.translate(prepared)
