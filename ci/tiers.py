"""The tiers: what a test costs is the folder that it lies in."""

from dataclasses import dataclass
from typing import Final

from engine.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tier:
    """One price class: GPUs that a test may use, its folder, and the seconds that its pull-request stage may take."""

    name: str
    gpus: int
    folder: str
    budget_seconds: int


TIERS: Final = (
    Tier("cpu", 0, "tests/registered/cpu", 180),
    Tier("gpu1", 1, "tests/registered/gpu1", 1800),
    Tier("gpu2", 2, "tests/registered/gpu2", 1800),
    Tier("gpu4", 4, "tests/registered/gpu4", 2700),
    Tier("gpu8", 8, "tests/registered/gpu8", 3600),
)


def repro(cell_id: str, tier: str, seed: int) -> str:
    """The command that runs a cell again."""
    where = "" if tier == TIERS[0].name else f"--tier {tier} "
    return f"specmatrix run {where}--cells '{cell_id}' --seed {seed}"


def tier(name: str) -> Tier:
    """ConfigError lists the tiers that exist."""
    for row in TIERS:
        if row.name == name:
            return row
    raise ConfigError(f"tier {name!r} is unknown; it must be one of {', '.join(row.name for row in TIERS)}")
