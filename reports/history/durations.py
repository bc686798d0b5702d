"""How long cells take, from the newest runs of a history."""

from __future__ import annotations

from typing import Final

from specmatrix.reports.history.store import LETTERS, History
from specmatrix.reports.schema import GATE_STATES, ReportError

# Number of newest runs used: older ones are of other code and machines.
NEWEST: Final = 10


def median_seconds(history: History, tier: str) -> dict[str, float]:
    """The median of each cell over the newest runs of a tier in which it was judged, by id. ReportError without such a
    run."""
    import numpy as np

    rows = np.flatnonzero(history.runs["tier"] == tier)[-NEWEST:]
    if not len(rows):
        raise ReportError(f"{history.folder} has no run of tier {tier}")
    judged = np.isin(history.states[rows], [ord(LETTERS[state]) for state in GATE_STATES])
    seconds = np.where(judged, history.measures["seconds"][rows], np.nan)
    known = np.flatnonzero(judged.any(axis=0) & ~np.isnan(seconds).all(axis=0))
    return {history.cells[cell]: float(np.nanmedian(seconds[:, cell])) for cell in known}
