"""compare(base, head) and the records of a comparison; `states` defines what each state means."""

from reports.compare.acknowledge import Acknowledgement, read_acknowledgements
from reports.compare.comparison import compare, comparison_json
from reports.compare.factors import common_factors
from reports.compare.states import CellChange, Comparison, State

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
