"""What an adaptive policy is: it chooses a depth among its slot's candidates, and hears what each round accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from specmatrix.engine.core.config.adaptive_file import AdaptiveSlot


class Decision(NamedTuple):
    """steps: a depth. what: "up" or "down" if the policy changed it now, "held" if only its hysteresis kept it, else
    "stay", or "warm-up" or "between" if no decision was due. average: what the policy expects to be accepted, in
    drafts."""

    steps: int
    what: str = "stay"
    average: float = 0.0


class AdaptivePolicy(Protocol):
    """Pure: its decisions follow from these calls alone, in their order. slot: the index of a round's slot."""

    def choose(self, slot: int, batch_size: int) -> Decision:
        """The depth of the next round, of `batch_size` requests; a candidate of its slot."""

    def observe(self, slot: int, width: int, correct: Sequence[int]) -> Decision:
        """Count a round of `width` nodes, root included. correct: accepted drafts of each live request, at least one.
        Returns the depth of its slot from now on."""


# Makes a policy from its slots, the settings beside them in the file, and the initial depth.
PolicyFactory: TypeAlias = Callable[[Sequence[AdaptiveSlot], Mapping[str, Any], int], AdaptivePolicy]
