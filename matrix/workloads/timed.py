"""The requests used to measure a cell's speed.

Every turn uses new questions, so no prompt is cached. Speed is measured with plain requests of the cell's batch and
sampling, all sent at once.
"""

from __future__ import annotations

from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.workloads.build import LIMITS, SAMPLING
from specmatrix.matrix.workloads.questions import questions
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.gsm_mini import prompt_of

LIMIT: Final = 64
# Warm-up turns, not timed.
WARM: Final = 2


def timed_requests(cell: Cell, turn: int, seed: int, first: bool = False) -> tuple[RequestSpec, ...]:
    """The requests of a turn, numbered from -`WARM`. first: those that end with their first token, on other
    questions."""
    how, batch = SAMPLING[cell.sampling], len(LIMITS[cell.batch])
    begin = (2 * (turn + WARM) + first) * batch + 1000 * seed // 7
    return tuple(
        RequestSpec(
            name=f"t{turn}.{place}",
            prompt=prompt_of(questions()[(begin + place) % len(questions())][0]),
            max_new_tokens=1 if first else LIMIT,
            **how,
            seed=place,
            ignore_eos=cell.finish == "length",
        )
        for place in range(batch)
    )
