"""The tiers: the hardware that cells and tests need, and the limits of this machine; and the stage `speed`, whose cells
measure their speed if they are green. It is not part of smoke, pr or nightly."""

import os
from dataclasses import dataclass
from typing import Final

from specmatrix.errors import ConfigError, shown
from specmatrix.reports.schema import REFERENCE


@dataclass(frozen=True, slots=True)
class Tier:
    """A hardware class: the number of GPUs that a cell or a test may use."""

    name: str
    gpus: int


# The environment variable that limits which GPUs a process sees.
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
# Largest useful number of processes or threads per core.
PER_CORE: Final = 8
TIERS: Final = (Tier("cpu", 0), Tier("gpu1", 1), Tier("gpu2", 2), Tier("gpu4", 4), Tier("gpu8", 8))


def visible_gpus(name: str) -> int:
    """Number of GPUs visible to a tier, 0 for the CPU tier. ConfigError if the tier needs more."""
    needed = tier(name).gpus
    if not needed:
        return 0
    # torch takes a second to import, and the CPU tier does not need it here.
    import torch

    there = torch.cuda.device_count()
    if there < needed:
        what = "1 GPU" if needed == 1 else f"{needed} GPUs"
        raise ConfigError(f"tier {shown(name)} needs {what} but this machine has {there or 'none'}; use 'cpu'")
    return there


def check_parallel(name: str, count: int) -> None:
    """ConfigError on a number of workers or threads that this machine should not start."""
    most = PER_CORE * (os.cpu_count() or 1)
    if not 1 <= count <= most:
        raise ConfigError(f"{name} must be between 1 and {most} ({PER_CORE} per CPU core), got {count}")


def check_seed(seed: int) -> None:
    """ConfigError on a seed outside 31 bits; the requests' seeds are derived from it and must fit into 63 bits."""
    if not 0 <= seed < 2**31:
        raise ConfigError(f"seed must be between 0 and {2**31 - 1}, got {seed}")


def repro(cell_id: str, tier: str, seed: int, subject: str = REFERENCE, fault: str = "", options: str = "") -> str:
    """The shell command that reruns a cell. It writes to a new folder, never over the report that quotes it.

    fault: the id of a planted fault, "" for none. options: further ones of `specmatrix run`.
    """
    where = "" if tier == TIERS[0].name else f"--tier {tier} "
    where += "" if subject == REFERENCE else f"--subject {subject} "
    where += f"--fault {fault} " if fault else ""
    options = f" {options}" if options else ""
    return f"specmatrix run {where}--cells '{cell_id}'{options} --seed {seed} --out \"$(mktemp -d)\""


def tier(name: str) -> Tier:
    """The tier with this name. ConfigError lists the tiers."""
    for row in TIERS:
        if row.name == name:
            return row
    raise ConfigError(f"tier {shown(name)} is unknown; it must be one of {', '.join(row.name for row in TIERS)}")


TIMED: Final = "speed"
# Engine starts of a cell. If starts differ by 1.2 % (standard deviation), this many detect a loss of 5 % in more than
# 99 of 100 runs (tests/registered/cpu/unit/reports/compare/test_speed.py).
STARTS: Final = 8
