"""A cell's start axes as SGLang's flags, whether a running server has them, and requests as servers take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import PurePath
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import START_AXES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.constraints import CONSTRAINTS
from specmatrix.matrix.subjects.limits import declared, reasons
from specmatrix.matrix.workloads.request import RequestSpec

NO_MASKS: Final = {"device": "cpu", "grammar_backend": "xgrammar"}
UNMASKED: Final = (
    "SGLang's xgrammar masks need a GPU: on a CPU such a request ends the server (sglang#35356); allowed: "
    "--grammar-backend llguidance"
)
UNTAGGED: Final = "llguidance compiles no structural tag of xgrammar's form; allowed: --grammar-backend xgrammar"
# A bias after which no token is sampled.
BANNED: Final = -100.0
# A chunk of this size splits no prompt of the matrix.
WHOLE: Final = 2048
# Aliases. SGLang runs NEXTN as EAGLE with the draft in the target's checkpoint.
SAME: Final = {"NEXTN": ("NEXTN", "EAGLE"), "float32": ("float32", "float")}
NO_V1: Final = "the server has no v1: with `disable_overlap_schedule` it runs v2 synchronously"
# The first version of SGLang without v1.
V2_ONLY: Final = Version("0.5.13")
REASONS: Final = reasons("server")
# Constraints that rule out a start, whatever its requests.
START_RULES: Final = tuple(
    rule for rule in CONSTRAINTS if rule.kind != "rewritten" and {*START_AXES}.issuperset(rule.axes)
)


def launch_flags(cell: Cell) -> dict[str, Any]:
    """The start axes' flags under SGLang's names; None and False stand for its defaults."""
    asked, drafts = cell.config(), cell.algorithm != "none"
    sizes = {
        "speculative_num_steps": cell.steps,
        "speculative_eagle_topk": cell.topk,
        "speculative_num_draft_tokens": cell.draft_tokens,
        "max_running_requests": cell.slots,
        "mamba_track_interval": cell.state_interval,
    }
    flags: dict[str, Any] = {
        "speculative_algorithm": cell.algorithm.upper() if drafts else None,
        **{flag: int(value) for flag, value in sizes.items() if value != "auto"},
        "page_size": int(cell.page_size),
        "disable_radix_cache": cell.prefix_cache == "off",
        "tp_size": cell.ranks,
        "dtype": cell.numerics if cell.numerics == "float32" else None,
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
    yield from unreported(cell)
    if cell.adaptive == "off" and running.get("speculative_adaptive"):
        yield REASONS["adaptive!=off"]
    if cell.mixed_chunk == "off" and running.get("enable_mixed_chunk"):
        yield REASONS["mixed_chunk!=off"]
    if cell.spec_version == "v1" and not has_v1(running):
        yield NO_V1


def unreported(cell: Cell) -> Iterator[str]:
    """A sentence for each value of the cell's axes that no server reports."""
    yield from (limit.why for limit in declared("server") if limit.forbids(cell))


def running_start(running: Mapping[str, Any]) -> Cell:
    """The start that matches a running server in every value, explicit values preferred to defaults. ConfigError if
    there is none."""
    cell, near = Cell(), dict[str, list[str]]()
    for name in ("model", *START_AXES):
        amiss = {value: len([*mismatches(cell._replace(**{name: value}), running)]) for value in axis(name).names}
        least = [value for value in reversed(amiss) if amiss[value] == min(amiss.values())]
        # Values that send no flag match any server; otherwise every value mismatches.
        near[name] = least if len(least) < len(amiss) or {"auto", "on"}.intersection(least) else [axis(name).default]
        cell = cell._replace(**{name: near[name][0]})
    for values in product(*near.values()):
        cell = cell._replace(**dict(zip(near, values, strict=True)))
        if not any(mismatches(cell, running)) and not any(rule.applies(cell) for rule in START_RULES):
            return cell
    why = [*mismatches(cell, running), *(f"{cell.id}: {rule.why}" for rule in START_RULES if rule.applies(cell))][0]
    raise ConfigError(f"no cell has the server's configuration: {why}; `specmatrix axes` lists what cells have")


def unjudged_sizes(running: Mapping[str, Any]) -> str:
    """Why acceptance is not judged at a server's draft sizes, "" if it is: the oracle covers the sizes of cells
    only."""
    steps, topk, nodes = (
        running.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens")
    )
    chain = topk == 1 and nodes == (steps or 0) + 1
    sizes = {"steps": steps, "topk": topk, "draft_tokens": None if chain else nodes}
    odd = [f"{name} {size}" for name, size in sizes.items() if size and str(size) not in axis(name).names]
    return f"no cell has the server's {' and '.join(odd)}, so the oracle has no rounds of that size" if odd else ""


def has_v1(running: Mapping[str, Any]) -> bool:
    """Whether a server supports v1 besides v2: one that reports its spec version, or an old version of SGLang."""
    try:
        return "spec_version" in running or Version(str(running["version"])) < V2_ONLY
    except (InvalidVersion, KeyError):
        return False


def other_model(cell: Cell, *names: object) -> Iterator[str]:
    """Yield a sentence if none of the names (or paths) of a server's model is the cell's target."""
    served = list(dict.fromkeys(PurePath(str(name)).name for name in names if name))
    if cell.target not in served:
        runs = f"runs the model {' or '.join(served)}" if served else "does not name its model"
        yield f"the server {runs}, not {cell.target}"


def spec_version(flags: Mapping[str, Any]) -> str:
    """The spec version of a command's flags, for servers that choose it by its own option."""
    return {True: "v1", False: "v2", None: "auto"}[flags.get("disable_overlap_schedule")]


def same(flag: str, asked: object, running: object) -> bool:
    """Whether a running value is what was asked for."""
    if isinstance(asked, str):
        return running in SAME.get(asked, (asked,))
    return asked == running or (not asked and running in (None, False))


def unmasked(cell: Cell, running: Mapping[str, Any]) -> str:
    """Why a running SGLang server cannot follow the cell's grammar, "" if it can."""
    if cell.grammar != "none" and NO_MASKS.items() <= running.items():
        return UNMASKED
    return UNTAGGED if cell.grammar == "tagged" and running.get("grammar_backend") == "llguidance" else ""


def biased(request: RequestSpec) -> RequestSpec:
    """The request without what SGLang's and OpenAI's APIs lack: reasoning, and banned tokens, which a bias bans where
    they are single ones and the request has no bias."""
    request, banned = replace(request, reasoning_end_ids=()), request.bad_words_ids
    if request.logit_bias or any(len(word) > 1 for word in banned):
        return request
    return replace(request, bad_words_ids=(), logit_bias=tuple((token, BANNED) for (token,) in banned))
