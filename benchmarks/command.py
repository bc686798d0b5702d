"""`specmatrix bench`: all figures with a goal, measured in one run."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from specmatrix.benchmarks.metric import Metric
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.zoo.registry import NAMES, verify_models
from specmatrix.options import Json
from specmatrix.reports.atomic import check_place, write_text
from specmatrix.reports.render.console import print_markdown
from specmatrix.reports.render.progress import waiting

GROUPS: Final = ("decoding",)
# Groups measured only if named: rounds on a GPU, and a search of tiles.
GPU: Final = "gpu"
TUNE: Final = "tune"
NAMED: Final = (*GROUPS, TUNE)
FILES: Final = ("bench.json", "bench.md")
SIGNS: Final = {"higher": ">=", "lower": "<="}


def bench(
    groups: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="benchmarks to run; default: all")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="run the GPU benchmarks instead")] = False,
    out: Annotated[Path | None, typer.Option(help="also write bench.json and bench.md here")] = None,
    json_: Json = False,
) -> int:
    """Measure, print (JSON with `json_`, else a table) and, with `out`, write bench.json and bench.md there.

    Returns 0 if every goal is met, else 1; noisy, red and unmeasured figures do not meet their goal. ConfigError if a
    zoo file is damaged, ReportError if `out` cannot be written.
    """
    if gpu and groups:
        raise ConfigError(
            f"benchmark {shown(groups[0])} cannot be combined with --gpu; give the name or --gpu, not both"
        )
    if unknown := next((group for group in groups or () if group not in NAMED), None):
        raise ConfigError(f"benchmark {shown(unknown)} is unknown; it must be one of {', '.join(NAMED)}")
    verify_models(NAMES)
    if out is not None:
        check_place(out, *FILES)
    found: list[Metric] = []
    for group in (GPU,) if gpu else groups or GROUPS:
        with waiting(f"measuring {group}"):
            found += _measure(group)()
    record = {"metrics": [metric.as_dict() for metric in found], "machine": _machine()}
    if out is not None:
        for name, text in zip(FILES, (json.dumps(record, indent=1) + "\n", markdown(record)), strict=True):
            write_text(out / name, text)
    if json_:
        print(json.dumps(record), flush=True)
    else:
        print_markdown(markdown(record))
    return 0 if all(metric.state in ("met", "reported") or metric.goal is None for metric in found) else 1


def _measure(group: str) -> Callable[[], Iterator[Metric]]:
    """The measure function of a group; imports torch and sets one compute thread."""
    import torch

    from specmatrix.benchmarks import decoding, gpu, tune

    torch.set_num_threads(1)
    return {
        "decoding": decoding.beside_transformers,
        GPU: gpu.measure,
        TUNE: tune.measure,
    }[group]


def _machine() -> dict[str, Any]:
    """Hardware and versions of the measurement."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def markdown(record: dict[str, Any]) -> str:
    """The record as a table, one row per metric, and a list of the notes."""
    host = record["machine"]
    lines = [
        f"{host['cores']}-core {host['processor']}, Python {host['python']}, torch {host['torch']}, "
        f"transformers {host['transformers']}; one compute thread per process. Figures are medians over pairs.",
        "",
        "| metric | figure | min to max | goal | pairs | spread of the peer | state |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in record["metrics"]:
        goal = "" if row["goal"] is None else f"{SIGNS[row['better']]} {_figure(row['goal'])}"
        figure = "" if row["ratio"] is None else _figure(row["ratio"])
        span = "" if row["min"] is None else f"{_figure(row['min'])} to {_figure(row['max'])}"
        cells = (row["name"], figure, span, goal, row["pairs"], f"{row['spread']:.0%}", row["state"])
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    notes = [f"- {row['name']}: {row['note']}." for row in record["metrics"] if row["note"]]
    return "\n".join([*lines, "", *notes]) + "\n"


def _figure(value: float) -> str:
    """Four significant digits, or all integer digits of a larger number."""
    return f"{value:.4g}" if value < 10_000 else f"{value:,.0f}"
