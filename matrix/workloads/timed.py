"""The requests by which a cell's speed is measured.

They ask other questions in every turn, so that no turn finds a prompt cached. Speed is that of plain requests
of the cell's batch and sampling, which all arrive at once.
"""

from __future__ import annotations

from typing import Final

from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.workloads.build import LIMITS, SAMPLING, questions
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.gsm_mini import prompt_of

LIMIT: Final = 64
# Untimed turns in front.
WARM: Final = 2


def timed_requests(cell: Cell, turn: int, seed: int, first: bool = False) -> tuple[RequestSpec, ...]:
    """The requests of a turn, from -`WARM` on. first: those that end with their first token, of other questions."""
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
