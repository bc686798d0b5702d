"""compare(base, head) and the records of a comparison; `states` defines what each state means."""

from specmatrix.reports.compare.acknowledge import Acknowledgement, read_acknowledgements
from specmatrix.reports.compare.comparison import compare, comparison_json
from specmatrix.reports.compare.factors import common_factors
from specmatrix.reports.compare.states import CellChange, Comparison, State

__all__ = [
    "Acknowledgement",
    "CellChange",
    "Comparison",
    "State",
    "common_factors",
    "compare",
    "comparison_json",
    "read_acknowledgements",
]
