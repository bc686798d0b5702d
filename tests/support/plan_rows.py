"""Rows of plans with one number for the request, its account and its generation."""

from typing import Any

from specmatrix.engine.core.schedule.step import NewPages, PlanRow


def plan_row(rid: int, row: int, width: int, bound: int, *pages: NewPages, **more: Any) -> PlanRow:  # noqa: ANN401
    """pages: those added to the row's tables, by group."""
    return PlanRow(rid, rid, row, width, bound, rid, pages, **more)
