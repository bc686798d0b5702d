"""compare(base, head) and the records of a comparison; `cell_state` defines each state."""

from specmatrix.reports.compare.acknowledge import Acknowledgement, read_acknowledgements
from specmatrix.reports.compare.cell_state import CellChange, ChangeState, Comparison
from specmatrix.reports.compare.compare import compare, comparison_json

__all__ = [
    "Acknowledgement",
    "CellChange",
    "ChangeState",
    "Comparison",
    "compare",
    "comparison_json",
    "read_acknowledgements",
]
