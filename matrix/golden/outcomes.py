"""The resolution of every start, field by field, grouped by outcome: the content of the golden file, and its review.

An outcome is a text: the effective value and its reason, or "as asked". Each field is tabulated over the axes on which
it depends, so the groups cover every start of the full product, and a changed default or rule moves a few lines.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from specmatrix.engine.core.config.asked import EngineConfig, Facts
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES, axis
from specmatrix.matrix.cells.cell import Cell, model_facts, zoo_facts
from specmatrix.matrix.zoo.registry import RECIPES
from specmatrix.reports.yaml_text import parse_yaml

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EVERY: Final = "every start"
Values: TypeAlias = tuple[str, ...]
Table: TypeAlias = Mapping[Values, str | None]


class Product(NamedTuple):
    """sides: indices of each axis's values. held: which of its combinations have a known outcome, equal for all."""

    sides: tuple[NDArray[np.intp], ...]
    held: NDArray[np.bool_]


def products(axes: Sequence[str], table: Table) -> Iterator[tuple[str, str]]:
    """(outcome, where) pairs such that each combination of axis values is covered by products of its own outcome only.

    table: in the order of the axes' values. A combination with outcome None may be covered by any. Products grow from
    the first combination not yet covered, independently of the outcomes' texts, so a changed value renames a group and
    moves nothing.
    """
    import numpy as np

    numbers = {outcome: number for number, outcome in enumerate(dict.fromkeys(table.values()))}
    shape = [len(axis(name).names) for name in axes] or [1]
    known = np.fromiter((numbers[outcome] for outcome in table.values()), np.int64).reshape(shape)
    free = known == numbers.get(None, -1)
    for outcome, number in numbers.items():
        if outcome is None:
            continue
        found = list(_grown(known == number, free))
        times = np.zeros(shape, np.int64)
        for one in found:
            times[np.ix_(*one.sides)] += one.held
        for one in reversed(found.copy()):
            if (times[np.ix_(*one.sides)][one.held] > 1).all():
                times[np.ix_(*one.sides)] -= one.held
                found = [other for other in found if other is not one]
        yield from ((outcome, _where(axes, one)) for one in found)


def where_of(text: str) -> Callable[[Cell], bool]:
    """A predicate for the cells of a product in the format of `products`."""
    if text == EVERY:
        return lambda cell: True
    sides = [(name, frozenset(values.split(","))) for name, _, values in (p.partition("=") for p in text.split(" "))]
    return lambda cell: all(getattr(cell, name) in values for name, values in sides)


def _grown(mine: NDArray[np.bool_], free: NDArray[np.bool_]) -> Iterator[Product]:
    """The products that cover `mine`, and of others only `free` combinations."""
    import numpy as np

    left, fits = mine.copy(), mine | free
    while left.any():
        sides = [np.array([place]) for place in np.unravel_index(left.argmax(), mine.shape)]
        for column in reversed(range(mine.ndim)):
            every = [*sides[:column], np.arange(mine.shape[column]), *sides[column + 1 :]]
            others = tuple(other for other in range(mine.ndim) if other != column)
            sides[column] = np.flatnonzero(fits[np.ix_(*every)].all(others))
        block = np.ix_(*sides)
        left[block] &= ~mine[block]
        yield Product(tuple(sides), mine[block])


def _where(axes: Sequence[str], one: Product) -> str:
    """The product as text, without values that occur in no combination with a known outcome."""
    parts = []
    for column, name in enumerate(axes):
        names = axis(name).names
        if len(one.sides[column]) < len(names):
            met = one.held.any(tuple(other for other in range(len(axes)) if other != column))
            parts.append(f"{name}={','.join(names[place] for place in one.sides[column][met])}")
    return " ".join(parts) or EVERY


REFUSED: Final = "refused"
AS_ASKED: Final = "as asked"
RUNS: Final = "runs"


class Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of fields.yaml, which explains it."""

    depends: dict[str, tuple[tuple[str, ...], ...]]
    renamed: dict[str, str]
    within: dict[str, str]
    groups: dict[str, str]
    derived: frozenset[str]
    left_out: frozenset[str]


FIELDS: Final = msgspec.yaml.decode(Path(__file__).with_name("fields.yaml").read_bytes(), type=Fields)
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
    return resolved[FIELDS.renamed.get(name, name)]


def outcomes(asked: EngineConfig, resolved: Mapping[str, Any]) -> dict[str, str]:
    """Every field's outcome, including unlisted fields that have a reason or a rewrite."""
    reasons = {r["field"]: (r["value"], str(r["because"])) for r in resolved["reasons"]}
    reasons |= {r["field"]: (r["got"], f"instead: {r['reason']}") for r in resolved["rewrites"]}
    found = {name: _outcome(asked, resolved, name, reasons) for name in FIELDS.depends if name != REFUSED}
    others = reasons.keys() - found.keys() - FIELDS.within.keys() - FIELDS.left_out
    return found | {name: f"{reasons[name][0]}: {reasons[name][1]}" for name in sorted(others)}


def _outcome(
    asked: EngineConfig, resolved: Mapping[str, Any], name: str, reasons: Mapping[str, tuple[object, str]]
) -> str:
    if name in FIELDS.within.values() or name in FIELDS.groups:
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
    if name in FIELDS.groups:
        texts = [f"{key} {value}" for key, value in parts.items() if value != getattr(asked, FIELDS.groups[name] + key)]
    else:
        texts = [json.dumps(slot) for slot in parts]
    texts += [reasons[field][1] for field, within in FIELDS.within.items() if within == name and field in reasons]
    return "; ".join(texts) or AS_ASKED


def start_outcomes(cell: Cell) -> dict[str, str]:
    """The outcomes of a start on a CPU: every field's, or only `refused` with the engine's error message."""
    config = cell.config()
    try:
        return outcomes(config, resolve(config, zoo_facts(cell)).as_dict())
    except ConfigError as error:
        return {REFUSED: str(error)}


def _once(cell: Cell, seen: dict[Values, dict[str, str]]) -> dict[str, str]:
    """The outcomes of a start, computed once for all ways of drafting with the same draft."""
    key = cell._replace(drafting=cell.draft or "")
    if key not in seen:
        seen[key] = start_outcomes(cell)
    return seen[key]


def resolution() -> Groups:
    """The groups of every field, over the full product of the axes on which it depends."""
    known: dict[tuple[str, ...], dict[Values, dict[str, str]]] = {}
    seen: dict[Values, dict[str, str]] = {}
    for axes in dict.fromkeys(axes for every in FIELDS.depends.values() for axes in every):
        values = product(*(axis(name).names for name in axes))
        known[axes] = {one: _once(Cell(**dict(zip(axes, one, strict=True))), seen) for one in values}
    groups: Groups = {}
    for name, every in FIELDS.depends.items():
        groups[name] = {}
        for axes in every:
            # A start that is not refused counts as RUNS; the other fields of a refused start are free.
            table = {one: found.get(name, RUNS if name == REFUSED else None) for one, found in known[axes].items()}
            for outcome, where in products(axes, table):
                if outcome != RUNS and where not in groups[name].setdefault(outcome, []):
                    groups[name][outcome].append(where)
    return groups


GOLDEN_FILE: Final = Path(__file__).with_name("resolved.yaml")
REQUEST_DEFAULTS: Final = {axis.name: axis.default for axis in AXES if axis.scope == "request"}
# Fields that GPU tiers set and the CPU tier leaves at auto.
PLACED: Final = ("device", "dtype")
# Field -> outcomes, each with a predicate for its starts.
Golden: TypeAlias = Mapping[str, tuple[tuple[str, tuple[Callable[[Cell], bool], ...]], ...]]


def start_id(cell: Cell) -> str:
    """The id of a cell's start: the cell with default request values."""
    return cell._replace(**REQUEST_DEFAULTS).id


def compiled(groups: Groups) -> Golden:
    """The golden file's groups with compiled predicates."""
    return {
        name: tuple((outcome, tuple(map(where_of, wheres))) for outcome, wheres in found.items())
        for name, found in groups.items()
    }


def expected(golden: Golden, cell: Cell, gpu: bool = False) -> dict[str, str]:
    """The reviewed outcomes of a cell's start: every field's, or `refused` alone; unreviewed fields are missing. GPU
    tiers set device and precision, which are therefore "as asked" there."""
    found = {name: outcome for name, rows in golden.items() for outcome, wheres in rows if any(w(cell) for w in wheres)}
    if REFUSED in found:
        return {REFUSED: next(outcome for outcome, wheres in golden[REFUSED] if any(w(cell) for w in wheres))}
    return found | (dict.fromkeys(PLACED, AS_ASKED) if gpu and found else {})


@cache
def golden_table() -> Golden:
    """The reviewed groups; empty if the file is missing, so that every start is NOT MEASURED."""
    return compiled(parse_yaml(GOLDEN_FILE.read_text(encoding="utf-8"), own=True)) if GOLDEN_FILE.is_file() else {}


def blessed_table(cells: Iterable[Cell]) -> Golden:
    """What the golden file would say of these cells if it were regenerated from this engine."""
    rows: dict[str, list[tuple[str, tuple[Callable[[Cell], bool], ...]]]] = {}
    for start in {cell._replace(**REQUEST_DEFAULTS) for cell in cells}:
        for name, outcome in start_outcomes(start).items():
            rows.setdefault(name, []).append((outcome, (partial(_starts, start),)))
    return {name: tuple(found) for name, found in rows.items()}


def _starts(start: Cell, cell: Cell) -> bool:
    return cell._replace(**REQUEST_DEFAULTS) == start


FLAGS_FILE: Final = Path(__file__).with_name("flags.yaml")
# Axes by which a cell is matched with the starts whose flags are judged with it.
JUDGED_BY: Final = ("algorithm", "adaptive")
# Start -> flags -> outcome.
FlagOutcomes: TypeAlias = Mapping[str, Mapping[str, str]]


def flags_of(config: EngineConfig) -> dict[str, str]:
    """The flags of a configuration, as typed on a command line."""
    given = {name: value for name, value in asdict(config).items() if value is not None}
    typed = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    return {f"--{name.replace('_', '-')}": text for name, text in typed.items()}


def with_flags(start: Cell, words: str) -> tuple[dict[str, str], Facts]:
    """A start's flags overridden by `words`, and its facts. A flag without a value is `true`; a word such as
    `draft.hidden_size=96` or `target.gpus=1` is a fact (also of a bundled draft), its value JSON or text."""
    flags, name = flags_of(start.config()), ""
    changes: dict[str, dict[str, Any]] = {"draft": {}, "target": {}}
    for word in shlex.split(words):
        if fact := re.fullmatch(r"(draft|target)\.(\w+)=(.+)", word):
            changes[fact[1]][fact[2]] = _value(fact[3])
        elif word.startswith("--"):
            flags[name := word] = "true"
        else:
            flags[name] = word
    draft = flags.get("--speculative-draft-model-path")
    facts = model_facts(flags["--model-path"], draft if draft in RECIPES else None)
    name = "bundled" if facts.draft is None else "draft"
    if changes["draft"]:
        facts = replace(facts, **{name: replace(getattr(facts, name), **changes["draft"])})
    return flags, replace(facts, **changes["target"])


def outcome_of(start: Cell, words: str) -> str:
    """The outcome of a start with these flags (see `with_flags`), as text."""
    flags, facts = with_flags(start, words)
    try:
        resolved = resolve(EngineConfig.from_flags(flags), facts)
    except ConfigError as error:
        return f"refused: {error}"
    depths = ", ".join(str(slot.candidate_steps) for slot in resolved.adaptive_slots)
    steps = f"{resolved.num_steps} of {depths}" if depths else resolved.num_steps
    tokens, version = resolved.num_draft_tokens, resolved.spec_version
    runs = f"runs {resolved.algorithm} {version}: steps {steps}, topk {resolved.topk}, draft tokens {tokens}"
    sizes = f"{resolved.max_total_tokens} tokens in pages of {resolved.page_size}"
    graphs = f", graphs up to {resolved.cuda_graph_max_bs}" if resolved.cuda_graph_max_bs else ""
    layers = ", a layer per step" if resolved.enable_multi_layer_eagle else ""
    layers += ", all steps in one forward" if resolved.parallel_drafting else ""
    told = [f"{one.field} {one.asked} is {one.got}: {one.reason}" for one in resolved.rewrites]
    return "; ".join([f"{runs}{layers}; {sizes}{graphs}", *told])


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


@cache
def golden_flags() -> FlagOutcomes:
    """The reviewed outcomes."""
    found: dict[str, dict[str, str]] = parse_yaml(FLAGS_FILE.read_text(encoding="utf-8"), own=True)
    return found


@cache
def _outcomes(start: str, asks: tuple[str, ...]) -> dict[str, str]:
    return {words: outcome_of(Cell.from_id(start), words) for words in asks}


def changed_flag(golden: FlagOutcomes, cell: Cell) -> str:
    """A sentence on the first flags whose outcome differs from the golden file, or ""."""
    for start, rows in golden.items():
        if all(getattr(Cell.from_id(start), name) == getattr(cell, name) for name in JUDGED_BY):
            for words, found in _outcomes(start, tuple(rows)).items():
                if found != rows[words]:
                    return f"{start} with {words} {found!r}; the golden file expects {rows[words]!r}"
    return ""
