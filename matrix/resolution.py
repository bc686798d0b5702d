"""How a set of cells resolves, grouped by outcome: the form of the golden files, so that a diff shows what moved."""

from collections.abc import Iterable
from typing import Any

from engine.core.config import Resolved
from engine.core.errors import ConfigError
from engine.core.resolve import resolve
from matrix.axes import AXES
from matrix.cell import Cell, order
from matrix.zoo_facts import zoo_facts

REQUEST_DEFAULTS = {axis.name: axis.default for axis in AXES if axis.scope == "request"}


def resolution_rows(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """One row per outcome: its kind, what runs (or the sentence of refusal), why, and the launches that share it.

    Launches are named by the id of their cell with default request values; the rows are sorted, JSON-able.
    """
    launches = order(cell._replace(**REQUEST_DEFAULTS) for cell in cells)
    rows: dict[tuple[str, ...], list[str]] = {}
    for launch in launches:
        rows.setdefault(_outcome(launch), []).append(launch.id)
    return [
        {"outcome": kind, "what": what, "why": list(why), "launches": ids}
        for (kind, what, *why), ids in sorted(rows.items())
    ]


def _outcome(launch: Cell) -> tuple[str, ...]:
    try:
        resolved = resolve(launch.config(), zoo_facts(launch))
    except ConfigError as error:
        return ("refused", str(error))
    why = [f"{r.field} {r.asked} -> {r.got}: {r.reason}" for r in resolved.rewrites]
    why += [f"spec_version {r.value}: {r.because}" for r in resolved.reasons if r.field == "spec_version"]
    return ("rewritten" if resolved.rewrites else "runs", _what(resolved), *why)


def _what(resolved: Resolved) -> str:
    """The values that run, in a fixed order."""
    shape = f"{resolved.num_steps}/{resolved.topk}/{resolved.num_draft_tokens}"
    chunk = "whole" if resolved.chunked_prefill_size is None else str(resolved.chunked_prefill_size)
    return (
        f"{resolved.algorithm} {shape} {resolved.spec_version} lag {resolved.lag}, "
        f"pages {resolved.num_pages} x {resolved.page_size}, cache {'on' if resolved.radix_cache else 'off'}, "
        f"prefill {chunk}, running {resolved.max_running_requests}, {resolved.dtype} on {resolved.device}"
    )
