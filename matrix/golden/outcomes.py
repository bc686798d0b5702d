"""The resolution of every start, field by field, grouped by outcome: the content of the golden file.

An outcome is a text: the effective value and its reason, or "as asked". Each field is tabulated over the axes on which
it depends, so the groups cover every start of the full product, and a changed default or rule moves a few lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.model_facts import zoo_facts

EVERY: Final = "every start"
Values: TypeAlias = tuple[str, ...]
Table: TypeAlias = Mapping[Values, str | None]


class Product(NamedTuple):
    """sides: values of each axis. held: its combinations with a known outcome, equal for all."""

    sides: tuple[Values, ...]
    held: frozenset[Values]


def products(axes: Sequence[str], table: Table) -> Iterator[tuple[str, str]]:
    """(outcome, where) pairs such that each combination of axis values is covered by products of its own outcome only.

    A combination with outcome None may be covered by any. Products grow from the first combination not yet covered,
    independently of the outcomes' texts, so a changed value renames a group and moves nothing.
    """
    for outcome in dict.fromkeys(table.values()):
        if outcome is None:
            continue
        found = list(_grown(axes, table, outcome))
        for one in reversed(found):
            if one.held <= frozenset().union(*(other.held for other in found if other is not one)):
                found.remove(one)
        yield from ((outcome, _where(axes, one)) for one in found)


def where_of(text: str) -> Callable[[Cell], bool]:
    """A predicate for the cells of a product in the format of `products`."""
    if text == EVERY:
        return lambda cell: True
    sides = [(name, frozenset(values.split(","))) for name, _, values in (p.partition("=") for p in text.split(" "))]
    return lambda cell: all(getattr(cell, name) in values for name, values in sides)


def _grown(axes: Sequence[str], table: Table, outcome: str) -> Iterator[Product]:
    mine = [one for one, found in table.items() if found == outcome]
    left = mine
    while left:
        sides: list[Values] = [(value,) for value in left[0]]
        for column, name in reversed(list(enumerate(axes))):
            before, behind = sides[:column], sides[column + 1 :]
            sides[column] = tuple(
                value for value in axis(name).names if _fits(table, (*before, (value,), *behind), outcome)
            )
        held = frozenset(one for one in mine if all(v in side for v, side in zip(one, sides, strict=True)))
        left = [one for one in left if one not in held]
        yield Product(tuple(sides), held)


def _fits(table: Table, sides: Iterable[Values], outcome: str) -> bool:
    return all(table[one] in (outcome, None) for one in product(*sides))


def _where(axes: Sequence[str], one: Product) -> str:
    """The product as text, without values that occur in no combination with a known outcome."""
    parts = []
    for column, name in enumerate(axes):
        met = {values[column] for values in one.held}
        if len(one.sides[column]) < len(axis(name).names):
            parts.append(f"{name}={','.join(value for value in one.sides[column] if value in met)}")
    return " ".join(parts) or EVERY


REFUSED: Final = "refused"
AS_ASKED: Final = "as asked"
RUNS: Final = "runs"
SHAPE: Final = ("algorithm", "model", "steps", "topk", "draft_tokens", "adaptive", "acceptance", "verify", "drafting")
TIMING: Final = (
    "algorithm", "model", "steps", "topk", "adaptive", "acceptance", "verify", "drafting", "spec_version", "overlap",
)  # fmt: skip
# The axes on which each field depends. A start refused by the first axes of `refused` has no other outcome.
DEPENDS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    REFUSED: (
        SHAPE,
        ("spec_version", "overlap"),
        ("algorithm", "model", "mixed_chunk"),
        ("model", "tp"),
        ("model", "page_size", "state_interval"),
    ),
    "speculative_algorithm": (("algorithm",),),
    "speculative_draft_model_path": (("algorithm", "model", "drafting"),),
    "speculative_num_steps": (SHAPE,),
    "speculative_eagle_topk": (SHAPE,),
    "speculative_num_draft_tokens": (SHAPE,),
    "enable_multi_layer_eagle": (SHAPE,),
    "parallel_drafting": (("algorithm", "model", "drafting"),),
    "speculative_adaptive": (SHAPE,),
    "adaptive_slots": (SHAPE,),
    "ngram": (SHAPE,),
    "suffix": (SHAPE,),
    "spec_version": (TIMING,),
    "page_size": (("page_size",),),
    "max_total_tokens": (("model", "page_size", "memory"),),
    "max_running_requests": (("algorithm", "model", "slots"),),
    "chunked_prefill_size": (("prefill_chunk",),),
    "disable_radix_cache": (("model", "prefix_cache"),),
    "state_interval": (("model", "prefix_cache", "state_interval"),),
    "window": (("model",),),
    "context_length": (("model", "context"),),
    "swa_full_tokens_ratio": ((),),
    "random_seed": ((),),
    "tp_size": (("tp",),),
    "dtype": (("numerics",),),
    "device": ((),),
    "speculative_acceptance": (("acceptance",),),
    "speculative_ragged_verify": (SHAPE,),
    "speculative_confidence_threshold": (("verify",),),
    "enable_mixed_chunk": (("prefill_chunk", "mixed_chunk"),),
}
# Fields of EngineConfig that have another name in a resolved configuration.
RENAMED: Final[dict[str, str]] = {
    "speculative_algorithm": "algorithm",
    "speculative_draft_model_path": "draft_path",
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "topk",
    "speculative_num_draft_tokens": "num_draft_tokens",
}
# Fields whose reasons are shown with another field.
WITHIN: Final = {"speculative_adaptive_config": "adaptive_slots", "speculative_ngram_max_bfs_breadth": "ngram"}
# Fields that are groups of flags, with their prefixes.
GROUPS: Final = {"ngram": "speculative_ngram_", "suffix": "speculative_suffix_"}
# Resolved fields that follow from others: `matrix.gates.config` recomputes them.
DERIVED: Final = frozenset({"lag", "num_pages", "window_pages"})
# Model paths, the runner's instruments and GPU-only fields, none of which a cell requests.
LEFT_OUT: Final = frozenset(
    {
        "model_path",
        "strict_memory",
        "kv_stamps",
        "enable_deterministic_inference",
        "enable_streaming_session",
        "disable_grammar_tables",
        "speculative_constrained_drafts",
        "cuda_graph_max_bs",
        "cuda_graph_max_gb",
    }
)
# Field -> outcome -> starts as texts: `algorithm=eagle,eagle3 steps=auto`.
Groups: TypeAlias = dict[str, dict[str, list[str]]]


def ran(resolved: Mapping[str, Any], name: str) -> object:
    """The effective value of a field, in EngineConfig's form."""
    if name == "speculative_adaptive":
        return bool(resolved["adaptive_slots"])
    if name == "disable_radix_cache":
        return not resolved["radix_cache"]
    if name == "chunked_prefill_size" and resolved[name] is None:
        return -1
    return resolved[RENAMED.get(name, name)]


def outcomes(asked: EngineConfig, resolved: Mapping[str, Any]) -> dict[str, str]:
    """Every field's outcome, including unlisted fields that have a reason or a rewrite."""
    reasons = {r["field"]: (r["value"], str(r["because"])) for r in resolved["reasons"]}
    reasons |= {r["field"]: (r["got"], f"instead: {r['reason']}") for r in resolved["rewrites"]}
    found = {name: _outcome(asked, resolved, name, reasons) for name in DEPENDS if name != REFUSED}
    others = reasons.keys() - found.keys() - WITHIN.keys() - LEFT_OUT
    return found | {name: f"{reasons[name][0]}: {reasons[name][1]}" for name in sorted(others)}


def _outcome(
    asked: EngineConfig, resolved: Mapping[str, Any], name: str, reasons: Mapping[str, tuple[object, str]]
) -> str:
    if name in WITHIN.values() or name in GROUPS:
        return _parts(asked, resolved[name], name, reasons) if resolved[name] else "none"
    value = ran(resolved, name)
    if name in reasons:
        said, why = reasons[name]
        return f"{value}: {why}" if said == value else f"{value}, reported as {said}: {why}"
    if hasattr(asked, name) and value == getattr(asked, name):
        return AS_ASKED
    return str(value)


def _parts(
    asked: EngineConfig,
    parts: Any,  # noqa: ANN401 - JSON
    name: str,
    reasons: Mapping[str, tuple[object, str]],
) -> str:
    """The adaptive slots, or the options that differ from the requested ones; then their reasons."""
    if name in GROUPS:
        texts = [f"{key} {value}" for key, value in parts.items() if value != getattr(asked, GROUPS[name] + key)]
    else:
        texts = [json.dumps(slot) for slot in parts]
    texts += [reasons[field][1] for field, within in WITHIN.items() if within == name and field in reasons]
    return "; ".join(texts) or AS_ASKED


def start_outcomes(cell: Cell) -> dict[str, str]:
    """The outcomes of a start on a CPU: every field's, or only `refused` with the engine's error message."""
    config = cell.config()
    try:
        return outcomes(config, resolve(config, zoo_facts(cell)).as_dict())
    except ConfigError as error:
        return {REFUSED: str(error)}


def resolution() -> Groups:
    """The groups of every field, over the full product of the axes on which it depends."""
    known: dict[tuple[str, ...], dict[Values, dict[str, str]]] = {}
    for axes in dict.fromkeys(axes for every in DEPENDS.values() for axes in every):
        values = product(*(axis(name).names for name in axes))
        known[axes] = {one: start_outcomes(Cell(**dict(zip(axes, one, strict=True)))) for one in values}
    groups: Groups = {}
    for name, every in DEPENDS.items():
        groups[name] = {}
        for axes in every:
            # A start that is not refused counts as RUNS; the other fields of a refused start are free.
            table = {one: found.get(name, RUNS if name == REFUSED else None) for one, found in known[axes].items()}
            for outcome, where in products(axes, table):
                if outcome != RUNS and where not in groups[name].setdefault(outcome, []):
                    groups[name][outcome].append(where)
    return groups
