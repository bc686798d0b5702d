"""The stage `speed`: cells that measure their speed if they are green. It is not part of smoke, pr or nightly."""

from __future__ import annotations

from typing import Final

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell

TIMED: Final = "speed"
# Engine starts of a cell. If starts differ by 1.2 % (standard deviation), this many detect a loss of 5 % in more than
# 99 of 100 runs (tests/registered/cpu/unit/reports/compare/test_speed.py).
STARTS: Final = 8
# Chains, a tree and each drafter, alone and in a batch, and one cell for each number of ranks.
TIMED_CELLS: Final = (
    "eagle3.s3.v1", "eagle3.s3.v2", "eagle3.s3.v2.burst", "eagle3.s3.k4.n8.v2", "standalone.s3", "ngram", "suffix",
    "dflash", "nextn.deepseek.s2.v2", "eagle3.tp2.pair", "eagle3.tp4.pair", "eagle3.tp8.pair",
)  # fmt: skip
# Axis values for which speed is meaningless or means something else.
UNTIMED: Final = (
    ("algorithm", ("none",), "it is what the others are compared with"),
    ("context", ("short",), "its requests end at the context limit"),
    ("memory", ("tight", "session_retract"), "its requests are retracted"),
    ("batch", ("ramp",), "its requests arrive one after the other"),
    ("session", ("streaming", "branching"), "its requests wait for each other"),
    ("sampling", ("mixed", "rules"), "its requests are of several kinds"),
    ("finish", ("stop_token", "stop_string", "stops"), "its requests end early"),
    ("abort", ("queued", "running"), "it aborts requests"),
)


def check_timed(cell: Cell) -> None:
    """ConfigError for a cell whose speed is not measured."""
    for name, values, why in UNTIMED:
        if cell.values[name] in values:
            raise ConfigError(f"stage {TIMED!r} measures no cell with {name}={cell.values[name]}: {why}")
