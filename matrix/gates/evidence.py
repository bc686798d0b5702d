"""Counters that must be non-zero, or zero, in a cell: the rows of evidence.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.gates import conditions
from specmatrix.matrix.subjects.protocol import Run

_selector = cache(parse_selector)


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of evidence.yaml, which explains it: the sum of `counter`, or of several joined by `|`, must be above zero,
    or zero."""

    counter: str
    why: str
    cells: str = ""
    when: str = ""
    zero: bool = False

    def applies(self, cell: Cell, run: Run) -> bool:
        """Whether the cell is selected and all conditions on the run hold."""
        if self.cells and not _selector(self.cells)(cell):
            return False
        words = filter(None, self.when.split(" and "))
        return all(
            getattr(conditions, word.removeprefix("not "))(cell, run) != word.startswith("not ") for word in words
        )

    def hits(self, run: Run) -> int:
        """The sum of the counters; unreported ones count as zero."""
        return sum(run.evidence.get(counter, 0) for counter in self.counter.split("|"))

    def holds(self, run: Run) -> bool:
        """Whether the counters are as they must be."""
        return (self.hits(run) == 0) == self.zero


_ROWS: Final = msgspec.yaml.decode(
    Path(__file__).with_name("evidence.yaml").read_bytes(), type=dict[str, tuple[Evidence, ...]]
)
EVIDENCE: Final = _ROWS["every"]
# Counters that only a GPU run increments.
GPU_EVIDENCE: Final = _ROWS["gpu"]
