"""Behavioural counters: what the engine did, as opposed to what was requested.

The `effective` gate reads them. A feature whose counters stay at zero did not run, whatever the engine reported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from specmatrix.errors import LedgerError

# What each counts.
COUNTERS: Final[dict[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

# Only a GPU run can hit these.
GPU: Final = ("graph.replayed", "graph.eager", "graph.waited")
# Only an engine with several ranks hits these.
RANKS: Final = ("rank.step",)
# Hits of these are defects; every other counter must be hit at least once in a complete nightly run.
ZERO: Final[dict[str, str]] = {
    "graph.waited": "the replay of a CUDA graph must not wait for the device",
    "grammar.stuck": "a grammar of the matrix always leaves a token",
    "stamp.wrong": "a slot with another position's KV was read",
}


class Counters:
    """Counts by counter name. Raises LedgerError on an unknown name, which is a bug."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)

    def hit(self, name: str, by: int = 1) -> None:
        if name not in self.counts:
            raise LedgerError(f"unknown counter {name!r}")
        self.counts[name] += by
