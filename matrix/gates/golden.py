"""The golden resolutions: launch id to values, reasons and rewrites, or to the sentence of refusal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from engine.core.errors import ConfigError
from engine.core.resolve import resolve
from matrix.cell import Cell
from matrix.lockfile import STAGES, stage_cells
from matrix.resolution import REQUEST_DEFAULTS
from matrix.zoo_facts import zoo_facts

GOLDEN_FILE: Final = Path(__file__).parents[1] / "golden" / "resolved.yaml"
# Where the models lie, the instruments that the runner switches on, and what a GPU adds: no part of what a cell asks.
LEFT_OUT: Final = frozenset(
    {
        "model_path",
        "draft_path",
        "strict_memory",
        "kv_stamps",
        "enable_deterministic_inference",
        "enable_streaming_session",
        "cuda_graph_max_bs",
        "reasons",
        "rewrites",
    }
)
# What a GPU tier asks for and the CPU tier leaves to the machine.
PLACES: Final = ("device = ", "dtype = ")


def launch_id(cell: Cell) -> str:
    """The id of a cell's launch: the cell with default request values."""
    return cell._replace(**REQUEST_DEFAULTS).id


def golden_row(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared of a resolved configuration."""
    return {
        "values": {key: value for key, value in resolved.items() if key not in LEFT_OUT and value != []},
        "reasons": [
            f"{r['field']} = {r['value']}: {r['because']}" for r in resolved["reasons"] if r["field"] not in LEFT_OUT
        ],
        "rewrites": [f"{r['field']} {r['asked']} -> {r['got']}: {r['reason']}" for r in resolved["rewrites"]],
    }


def placed(golden: Mapping[str, Any], run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The golden row of a launch where `run` (a resolved configuration) runs: a GPU changes the device and no more.

    The rows are those of a CPU, where nobody asks for a device or a precision.
    """
    if run["device"] == "cpu" or "values" not in golden:
        return golden
    reasons = [reason for reason in golden["reasons"] if not reason.startswith(PLACES)]
    return {**golden, "values": {**golden["values"], "device": run["device"]}, "reasons": reasons}


def golden_rows(cells: Iterable[Cell]) -> dict[str, dict[str, Any]]:
    """The rows of today's resolution, one per launch: what the golden file must hold."""
    rows: dict[str, dict[str, Any]] = {}
    for cell in cells:
        key = launch_id(cell)
        if key not in rows:
            try:
                rows[key] = golden_row(resolve(cell.config(), zoo_facts(cell)).as_dict())
            except ConfigError as error:
                rows[key] = {"refused": str(error)}
    return rows


@cache
def locked_launches() -> frozenset[str]:
    """The launches of every cell of the lock file."""
    return frozenset(map(launch_id, stage_cells(STAGES[-1])))


@cache
def golden_table(path: Path = GOLDEN_FILE) -> dict[str, Any]:
    """The reviewed rows; empty without the file, so that every launch is NOT MEASURED."""
    # PyYAML takes time to import, and collection does not need it.
    import yaml

    if not path.is_file():
        return {}
    with path.open(encoding="utf-8") as file:
        return dict(yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
