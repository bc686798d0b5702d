"""Gate numbers with a fixed meaning: amounts examined, and faults, which are zero in a passing gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Upper bound of numbers that are summed or divided, so that results stay finite.
MAX_NUMBER: Final = 10**9

# For each gate: amounts examined, and faults found.
_COUNTED: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "claimed_capabilities": (("answers", "claims"), ("broken",)),
    "oracle": (("oracle_tokens",), ("wrong",)),
    "identities": (("rounds",), ("faults",)),
    "text": (("characters",), ("wrong",)),
    "ledger": (("pages", "stamps", "verbs"), ("leaked", "wrong_stamps", "overwritten")),
    "schedule": (("steps", "forwards"), ("needless",)),
    "leaks": (("counts", "sent"), ("left",)),
    "resources": (("rounds",), ("unsteady", "bypassed")),
    "ranks": (("ranks", "planned", "read"), ("divergent",)),
    "session": (("sessions", "attempts"), ("wrong", "apart")),
    "adaptive": (("rounds", "observations", "replayed"), ()),
    "lossless": (("tokens", "scored", "oracle_tokens"), ("divergent", "first_divergence")),
    "grammar": (("tokens", "complete"), ("illegal", "unreadable")),
    "precision": (("tokens", "scored"), ("beyond",)),
    "distribution": (("draws",), ("outside",)),
    "finish": (("requests",), ("faults",)),
    "rejection": (("rounds",), ("left",)),
    "acceptance": (("length", "rounds", "emitted"), ("left",)),
    "accuracy": (("n", "outcomes"), ()),
    "config": (("fields",), ()),
    "effective": (("keys", "required"), ("differences", "unseen")),
    "speed": (("starts", "turns"), ()),
}
AMOUNTS: Final = {gate: amounts for gate, (amounts, _) in _COUNTED.items()}
FAULTS: Final = {gate: faults for gate, (_, faults) in _COUNTED.items()}
GATES: Final = tuple(_COUNTED)
