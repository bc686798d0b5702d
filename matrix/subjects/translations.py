"""A subject's translation of cells."""

from __future__ import annotations

from typing import Final

from specmatrix.extras import lacking
from specmatrix.matrix.subjects.protocol import Capability, EngineCommand, Subject, Unsupported
from specmatrix.matrix.workloads.prepared_cell import PreparedCell

NOT_REFUSED: Final = "a combination that the reference engine must refuse, by its own rules"


def translated(subject: Subject, prepared: PreparedCell) -> EngineCommand | Unsupported:
    """Translate a cell. Unsupported for subjects with other rules is one that the reference engine must refuse; for
    all, one with a grammar where tokens are judged without the grammar's library."""
    if prepared.expectation == "refused" and subject.profile.foreign:
        return Unsupported(NOT_REFUSED)
    tokens = Capability.TOKEN_IDS in subject.profile.capabilities
    if prepared.cell.grammar != "none" and tokens and (missing := lacking("xgrammar")):
        return Unsupported(missing)
    return subject.translate(prepared)
