"""`specmatrix bench`: all figures with a goal, measured in one run."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from specmatrix.benchmarks.metric import Metric
from specmatrix.errors import ConfigError, shown
from specmatrix.reports.render.console import print_markdown, waiting
from specmatrix.reports.render.markup import markdown
from specmatrix.reports.store import check_place, write_text

# Rounds on a GPU, and a search of tiles.
GROUPS: Final = ("gpu", "tune")
FILES: Final = ("bench.json", "bench.md")


def bench(group: str = GROUPS[0], out: Path | None = None, json_: bool = False) -> int:
    """Measure, print (JSON with `json_`, else a table) and, with `out`, write bench.json and bench.md there.

    Returns 0 if every goal is met, else 1; noisy, red and unmeasured figures do not meet their goal. ConfigError for an
    unknown name, ReportError if `out` cannot be written.
    """
    if group not in GROUPS:
        raise ConfigError(f"benchmark {shown(group)} is unknown; it must be one of {', '.join(GROUPS)}")
    if out is not None:
        check_place(out, *FILES)
    with waiting(f"measuring {group}"):
        found = [*_measure(group)()]
    record = recorded(found)
    table = markdown("bench.md.j2", record=record)
    if out is not None:
        for name, text in zip(FILES, (json.dumps(record, indent=1) + "\n", table), strict=True):
            write_text(out / name, text)
    if json_:
        print(json.dumps(record), flush=True)
    else:
        print_markdown(table)
    return 0 if all(metric.state in ("met", "reported") or metric.goal is None for metric in found) else 1


def _measure(group: str) -> Callable[[], Iterator[Metric]]:
    """The measure function of a group; imports torch and sets one compute thread."""
    import torch

    from specmatrix.benchmarks import gpu, tune

    torch.set_num_threads(1)
    return {"gpu": gpu.measure, "tune": tune.measure}[group]


def recorded(found: Sequence[Metric]) -> dict[str, Any]:
    """The metrics as JSON-serialisable data, with the hardware and versions of the measurement."""
    machine = {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    return {"metrics": [metric.as_dict() for metric in found], "machine": machine}
