"""Waivers: which cells they cover, and that each one declared is well formed."""

from datetime import date

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.run.waivers import WAIVERS, waiver_for
from specmatrix.reports.schema import Waiver, WaiverRule

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

RULES = (
    WaiverRule("algorithm=eagle3 and topk=4", "trees leak", "2030-01-31"),
    WaiverRule("algorithm=eagle3", "all of it", "2030-02-28"),
)


def test_first_rule_that_holds_counts():
    assert waiver_for(Cell.from_id("eagle3.s3.k4.n8"), RULES) == Waiver("trees leak", "2030-01-31")
    assert waiver_for(Cell.from_id("eagle3"), RULES) == Waiver("all of it", "2030-02-28")
    assert waiver_for(Cell.from_id("none"), RULES) is None


def test_bad_selector_is_refused():
    with pytest.raises(ConfigError, match="axis 'topq' is unknown"):
        waiver_for(Cell(), (WaiverRule("topq=4", "typo", "2030-01-31"),))


def test_declared_waivers_are_well_formed():
    for rule in WAIVERS:
        parse_selector(rule.cells)
        assert rule.reason.strip() and date.fromisoformat(rule.expiry)
