"""The adaptive-steps configurations of cells: JSON by the values of the axis `adaptive`."""

import json
from typing import Any, Final

# Each slot decides after every round but its first, mostly from that round's own mean. The second differs in both
# hysteresis values; the ceiling of the last makes its depth alternate, whatever the acceptance.
TIERS: Final[dict[str, Any]] = {
    "ema_alpha": 0.75,
    "update_interval": 1,
    "warmup_batches": 1,
    "1": {"candidate_steps": [1, 3]},
    "2": {"candidate_steps": [1, 2, 4], "down_hysteresis": 0.0, "up_hysteresis": 0.25},
    "4": {"candidate_steps": [1, 2, 4], "ceiling_coeff": 0.5},
}
# The oldest format, without batch sizes. Every field that affects a round differs from the default table.
FLAT: Final[dict[str, Any]] = {
    "candidate_steps": [1, 2, 5],
    "ema_alpha": 0.4,
    "update_interval": 2,
    "warmup_batches": 3,
    "down_hysteresis": -0.5,
}
# None: no file is given, so the default table applies.
TEXTS: Final[dict[str, str | None]] = {"table": None, "tiers": json.dumps(TIERS), "flat": json.dumps(FLAT)}
