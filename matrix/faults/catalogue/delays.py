"""Delays, which no gate of a single run sees: a comparison of two runs of the stage `speed` does.

They are not part of the catalogue. On a CPU they count CPU time, as the stage does there.
"""

from typing import Final

from specmatrix.matrix.faults.fault import Fault
from specmatrix.reports.gate_numbers import SPEED

TIERS: Final = ("gpu1", "gpu2", "gpu4", "gpu8")
SHARE: Final = 0.05
# The end of every step of the engine.
OLD: Final = """        if self.strict_memory:
            self.scheduler.check()
"""


def _delay(when: str) -> str:
    """The end of a step that takes `SHARE` longer, counted from the end of the step before, if it is a round."""
    return f"""{OLD}
        import time, torch
        clock = time.perf_counter if torch.cuda.is_available() else time.process_time
        now, before = clock(), getattr(self, "ended", None)
        if before is not None and {when}:
            while clock() < now + {SHARE} * (now - before):
                pass
        self.ended = clock() if plan is not None else None
"""


ROUND: Final = "plan is not None and not plan.prefill"

DELAYS: Final[tuple[Fault, ...]] = (
    Fault(
        id="slow-round",
        klass="speed",
        origin="vllm#28135",
        within="Loop._turn",
        old=OLD,
        new=_delay(f"{ROUND} and plan.rows[0].width > 1"),
        expected=(SPEED,),
        cells=("eagle3.s3.v1",),
        why="every round with a drafter takes 5 % longer",
        also_on=TIERS,
    ),
    Fault(
        id="slow-step",
        klass="speed",
        origin="vllm#28135",
        within="Loop._turn",
        old=OLD,
        new=_delay(ROUND),
        expected=(SPEED,),
        cells=("eagle3.s3.v1",),
        why="every step takes 5 % longer, with a drafter and without, which their ratio does not show",
        also_on=TIERS,
    ),
)
