"""Gate numbers with a fixed meaning: amounts examined, and faults, which are zero in a passing gate."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

# Upper bound of numbers that are summed or divided, so that results stay finite.
MAX_NUMBER: Final = 10**9


class GateNumbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of gate_numbers.yaml, which explains its fields."""

    amounts: tuple[str, ...]
    faults: tuple[str, ...]
    compared: str = ""
    unit: str = ""
    shared: tuple[str, ...] = ()


NUMBERS: Final = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[str, GateNumbers])
AMOUNTS: Final = {gate: row.amounts for gate, row in NUMBERS.items()}
FAULTS: Final = {gate: row.faults for gate, row in NUMBERS.items()}
GATES: Final = tuple(NUMBERS)
