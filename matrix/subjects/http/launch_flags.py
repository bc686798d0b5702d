"""A cell's start axes as SGLang's flags, and whether a running server has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

from specmatrix.matrix.cells.cell import Cell

# A chunk of this size splits no prompt of the matrix.
WHOLE: Final = 2048
# SGLang runs NEXTN as EAGLE whose draft is in the target's checkpoint.
SAME: Final = {"NEXTN": ("NEXTN", "EAGLE")}
PRECISION: Final = "a server has kernels of its own for each precision, which `numerics` does not name"
OTHERS: Final = "the server does not report the table of its adaptive steps"


def launch_flags(cell: Cell) -> dict[str, Any]:
    """The flags that the start axes ask for, under SGLang's names; None and False are its defaults."""
    asked, drafts = cell.config(), cell.algorithm != "none"
    sizes = {
        "speculative_num_steps": cell.steps,
        "speculative_eagle_topk": cell.topk,
        "speculative_num_draft_tokens": cell.draft_tokens,
        "max_running_requests": cell.slots,
    }
    flags: dict[str, Any] = {
        "speculative_algorithm": cell.algorithm.upper() if drafts else None,
        **{flag: int(value) for flag, value in sizes.items() if value != "auto"},
        "page_size": int(cell.page_size),
        "disable_radix_cache": cell.prefix_cache == "off",
        "tp_size": cell.ranks,
    }
    if cell.prefill_chunk != "off":
        flags["chunked_prefill_size"] = int(cell.prefill_chunk)
    if cell.context != "model":
        flags["context_length"] = asked.context_length
    if cell.memory != "ample":
        flags["max_total_tokens"] = asked.max_total_tokens
    if cell.session == "streaming":  # a request axis, but servers must be told at their start
        flags["enable_streaming_session"] = True
    if cell.spec_version == "v1" or cell.overlap == "off":
        flags["disable_overlap_schedule"] = True
    elif cell.spec_version == "v2":
        flags["disable_overlap_schedule"] = False
    return flags


def mismatches(cell: Cell, running: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each value of the cell's start axes that the server does not have. running: as /server_info
    reports it."""
    yield from other_model(cell, running.get("model_path", ""))
    for flag, value in launch_flags(cell).items():
        if flag not in running:
            if value not in (None, False):
                yield f"the server does not report {flag}"
        elif not same(flag, value, running[flag]):
            yield f"the server runs {flag} {running[flag]}, not {value}"
    chunk = running.get("chunked_prefill_size")
    if cell.prefill_chunk == "off" and chunk not in (None, -1) and int(chunk) < WHOLE:
        yield f"the server runs chunked_prefill_size {chunk}, which splits prompts"
    if cell.adaptive != "off" or running.get("speculative_adaptive"):
        yield OTHERS


def other_model(cell: Cell, *names: object) -> Iterator[str]:
    """A sentence if none of a server's names of its model, perhaps paths, is that of the cell's target."""
    served = list(dict.fromkeys(PurePath(str(name)).name for name in names if name))
    if cell.target not in served:
        runs = f"runs the model {' or '.join(served)}" if served else "does not name its model"
        yield f"the server {runs}, not {cell.target}"


def spec_version(flags: Mapping[str, Any]) -> str:
    """The spec version of a command's flags, for servers that choose it by its own option."""
    return {True: "v1", False: "v2", None: "auto"}[flags.get("disable_overlap_schedule")]


def same(flag: str, asked: object, running: object) -> bool:
    """Whether a running value is what was asked for."""
    if flag == "speculative_algorithm" and isinstance(asked, str):
        return running in SAME.get(asked, (asked,))
    return asked == running or (not asked and running in (None, False))
