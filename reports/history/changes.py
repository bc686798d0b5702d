"""Change points in the measurements of runs, detected by ruptures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from specmatrix.reports.history.store import History, library

if TYPE_CHECKING:
    import numpy as np

# The smallest visible change of each measure, as a share of its median. Seconds of a shared machine vary.
SMALLEST: Final = {"acceptance": 0.01, "accuracy": 0.01, "speed": 0.05, "seconds": 0.15}
# Minimum number of runs of a level: fewer are outliers.
MIN_RUNS: Final = 3
# The newest runs of a series that are searched: the search takes quadratic time.
NEWEST: Final = 250
# Measured on Gaussian noise over 250 runs, a series then has a false change point in about 1 of 10,000.
PENALTY: Final = 6.0
# Standard deviations from the running median at which an outlier is cut, and the runs of that median.
CUT: Final = 2.5
WINDOW: Final = 5
ALL_CELLS: Final = ""


class ChangePoint(NamedTuple):
    """A level that changed from run `before` to run `after`, two indices of the history's runs, by the factor `ratio`.

    cell: its id, or `ALL_CELLS` for the mean over cells, each relative to its own median. lasted: runs before and
    since, within the neighbouring change points.
    """

    cell: str
    measure: str
    before: int
    after: int
    old: float
    new: float
    lasted: tuple[int, int]

    @property
    def ratio(self) -> float:
        """New level over old level."""
        return self.new / self.old


def changes(
    history: History, measures: Sequence[str] = tuple(SMALLEST), cells: Sequence[int] = ()
) -> list[ChangePoint]:
    """All change points, the newest first. cells: restrict to these indices; by default also over all cells together.

    Runs are compared within a subject, tier and seed, and in speed and seconds also within a machine.
    """
    found: list[ChangePoint] = []
    for measure in measures:
        values = history.measures[measure]
        for rows in series(history, measure):
            if not cells:
                found += _of_series(ALL_CELLS, measure, rows, over_cells(values[rows]))
            for cell in cells or range(len(history.cells)):
                found += _of_series(history.cells[cell], measure, rows, values[rows, cell])
    return sorted(found, key=lambda change: (-change.after, change.cell != ALL_CELLS, change.measure, change.cell))


def series(history: History, measure: str) -> Iterator[np.ndarray]:
    """Yield groups of runs, as indices, whose values of a measure are comparable."""
    names = ["subject", "tier", "seed"] + ["machine"] * (measure in ("speed", "seconds"))
    yield from history.runs.groupby(names, sort=False).indices.values()


def over_cells(values: np.ndarray) -> np.ndarray:
    """For each run the mean over cells of its values relative to each cell's median; NaN without any."""
    import numpy as np

    measured = values[:, ~np.isnan(values).all(axis=0)]
    found = np.full(len(values), np.nan)
    if measured.size:
        middle = np.nanmedian(measured, axis=0)
        some = ~np.isnan(measured).all(axis=1)
        found[some] = np.nanmean(measured[some] / middle, axis=1)
    return found


def _of_series(cell: str, measure: str, rows: np.ndarray, values: np.ndarray) -> list[ChangePoint]:
    import numpy as np

    known = np.flatnonzero(values > 0)[-NEWEST:]
    rows, values = rows[known], values[known]
    ends = _ends(values, SMALLEST[measure])
    if not ends:
        return []
    bounds = [0, *ends, len(values)]
    levels = [float(np.median(values[low:high])) for low, high in pairwise(bounds)]
    return [
        ChangePoint(
            cell, measure, int(rows[at - 1]), int(rows[at]), old, new, (at - bounds[place], bounds[place + 2] - at)
        )
        for place, (at, old, new) in enumerate(zip(ends, levels, levels[1:], strict=False))
        if abs(new / old - 1) >= SMALLEST[measure]
    ]


def _ends(values: np.ndarray, smallest: float) -> list[int]:
    """Indices at which a new level begins."""
    import numpy as np

    if len(values) < 2 * MIN_RUNS or values.max() - values.min() < smallest * np.median(values):
        return []
    scaled = values / np.median(values)
    # The noise from one run to the next, which a change of level hardly moves, and at least what a quarter of the
    # smallest visible change is.
    noise = max(float(np.median(np.abs(np.diff(scaled)))) / (0.6745 * 2**0.5), smallest / 4)
    # Both ends are padded with the median of the outermost runs, so the last two runs alone count as outliers.
    sides = [np.repeat(np.median(side), WINDOW // 2) for side in (scaled[:WINDOW], scaled[-WINDOW:])]
    padded = np.concatenate([sides[0], scaled, sides[1]])
    running = np.median(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1)
    clipped = np.clip(scaled, running - CUT * noise, running + CUT * noise) / noise
    search = library("ruptures").KernelCPD(kernel="linear", min_size=MIN_RUNS)
    ends = search.fit(clipped.reshape(-1, 1)).predict(pen=PENALTY * float(np.log(len(values))))
    return [int(end) for end in ends[:-1]]
