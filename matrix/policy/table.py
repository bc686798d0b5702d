"""The policy table: counts over every combination, grouped by the rule or the default row that decided.

A changed default or rule moves the lines of its own row and the counts beside it, so its diff is short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from specmatrix.engine.core.config.asked import AUTO, Reason
from specmatrix.engine.core.config.context import Rule, RuleContext, Value
from specmatrix.engine.core.config.defaults import DEFAULTS, Default
from specmatrix.engine.core.config.resolve import path_reasons, resolve
from specmatrix.engine.core.config.rules.multi_layer import layer_reasons
from specmatrix.engine.core.config.rules.ngram import ngram_options
from specmatrix.engine.core.config.rules.table import CAPACITY, RULES
from specmatrix.errors import ConfigError
from specmatrix.matrix.policy.knobs import KNOBS, Knob, describe, launch
from specmatrix.matrix.policy.space import Space, Table

MOST_VALUES: Final = 12  # of one row, spelt out
# Choices that are made beside the table of defaults.
REASONS: Final[dict[str, Callable[[RuleContext], tuple[Reason, ...]]]] = {
    "speculative_draft_model_path": path_reasons,
    "enable_multi_layer_eagle": layer_reasons,
    "speculative_ngram_max_bfs_breadth": lambda s: ngram_options(s)[1],
}


class Choice(NamedTuple):
    """How a field got its value: "asked", "rewritten" or "default", and by which rule or row."""

    value: Any
    how: str
    by: str


@dataclass(frozen=True)
class Policy:
    """Every rule and default row, tabulated.

    refusals: the refusing rules, CAPACITY last. refused: the number of the first of them that refuses, from 1; 0 for
    none. runs: no rule but CAPACITY refuses, which is judged over the chosen values: so a changed default moves its
    own row, and not the counts of every other one.
    rewritten: per rewriting rule (asked, got), or None where it does not apply. chosen: per field a Choice.
    reasons: per name the reasons of choices beside the table of defaults.
    """

    space: Space
    refusals: tuple[Rule, ...]
    refused: npt.NDArray[np.int8]
    runs: npt.NDArray[np.bool_]
    rewriting: tuple[Rule, ...]
    rewritten: tuple[Table, ...]
    chosen: dict[str, Table]
    reasons: dict[str, Table]


def policy(
    knobs: tuple[Knob, ...] = KNOBS, rules: Sequence[Rule] = RULES, defaults: Sequence[Default] = DEFAULTS
) -> Policy:
    """Tabulate the rules and defaults in the order in which `engine.core.config.resolve` asks them."""
    space = Space(knobs)
    for name in ("traits", "adaptive", "asked_steps", "asked_topk"):
        space.share(name)
    rewriting = tuple(rule for rule in rules if rule.kind == "rewritten")
    chosen = {}
    for name in dict.fromkeys(row.field for row in defaults):
        chosen[name] = space.tabulate(partial(_choose, name, rewriting, defaults))
        space.chosen[name] = chosen[name].map(lambda choice: choice.value)
        if name == "speculative_num_draft_tokens":
            space.share("widest")
    refusals = (*(rule for rule in rules if rule.kind == "refused"), CAPACITY)
    refused = np.zeros((1,) * len(knobs), np.int8)
    runs = refused == 0
    for number, rule in enumerate(refusals, 1):
        runs = refused == 0
        refused = np.where(runs & space.tabulate(rule.broken).where(bool), np.int8(number), refused)
    rewritten = tuple(space.tabulate(partial(_rewrite, rule)) for rule in rewriting)
    reasons = {name: space.tabulate(function) for name, function in REASONS.items()}
    return Policy(space, refusals, refused, runs, rewriting, rewritten, chosen, reasons)


def _choose(name: str, rewriting: Sequence[Rule], defaults: Sequence[Default], s: RuleContext) -> Choice:
    for rule in rewriting:
        if rule.field == name and rule.got is not None and rule.broken(s):
            return Choice(rule.got(s), "rewritten", rule.name)
    value = getattr(s.asked, name)
    if value != AUTO:
        return Choice(value, "asked", "")
    row = next(row for row in defaults if row.field == name and row.when(s))
    return Choice(row.value(s), "default", f"{row.condition}: {row.reason}")


def _rewrite(rule: Rule, s: RuleContext) -> tuple[Value, Value] | None:
    assert rule.got is not None
    return (getattr(s.asked, rule.field), rule.got(s)) if rule.broken(s) else None


def policy_table(of: Policy) -> dict[str, Any]:
    """The policy as JSON-able rows: sizes of the product, then refusals, rewrites and choices with their counts."""
    space = of.space
    departs = np.zeros((1,) * len(space.knobs), bool)
    for table in of.rewritten:
        departs = departs | table.where(bool)
    fits = of.refused == 0
    return {
        "settings": {knob.name: ", ".join(setting.label for setting in knob.settings) for knob in space.knobs},
        "combinations": {
            "all": space.size,
            "refused": space.count(~fits),
            "rewritten": space.count(fits, departs),
            "run as asked": space.count(fits, ~departs),
        },
        "refused": [row for number, rule in enumerate(of.refusals, 1) if (row := _refused(of, number, rule))],
        "rewritten": [row for pair in zip(of.rewriting, of.rewritten, strict=True) if (row := _rewritten(of, *pair))],
        "chosen": {name: _chosen(of, table) for name, table in of.chosen.items()},
        "chosen beside": {name: _told(of, table) for name, table in of.reasons.items()},
    }


def refusal(of: Policy, point: tuple[int, ...]) -> str:
    """The engine's own sentence for a combination, "" where it runs."""
    try:
        resolve(*launch(of.space.knobs, point))
    except ConfigError as error:
        return str(error)
    return ""


def _refused(of: Policy, number: int, rule: Rule) -> dict[str, Any]:
    """One refusing rule; empty if no combination meets it first."""
    mine = of.refused == number
    if not mine.any():
        return {}
    point = of.space.first(mine)
    return {
        "rule": rule.name,
        "combinations": of.space.count(mine),
        "example": describe(of.space.knobs, point),
        "sentence": refusal(of, point),
    }


def _rewritten(of: Policy, rule: Rule, table: Table) -> dict[str, Any]:
    """One rewriting rule; empty if it applies to no combination that runs."""
    counts = of.space.counts(table, of.runs)
    counts.pop(None, None)
    if not counts:
        return {}
    point = of.space.first((of.refused == 0) & table.where(bool))
    config, facts = launch(of.space.knobs, point)
    found = (rewrite for rewrite in resolve(config, facts).rewrites if rewrite.field == rule.field)
    return {
        "rule": rule.name,
        "field": rule.field,
        "combinations": sum(counts.values()),
        "values": dict(sorted((f"{asked} -> {got}", n) for (asked, got), n in counts.items())),
        "example": describe(of.space.knobs, point),
        "reason": next(found).reason,
    }


def _chosen(of: Policy, table: Table) -> list[dict[str, Any]]:
    """How a field gets its value where no rule refuses, one row per way."""
    rows: dict[tuple[str, str], dict[Any, int]] = {}
    for choice, n in of.space.counts(table, of.runs).items():
        rows.setdefault((choice.how, choice.by), {})[choice.value] = n
    return [_way(how, by, values) for (how, by), values in sorted(rows.items())]


def _told(of: Policy, table: Table) -> dict[str, int]:
    """The reasons that a choice beside the table gives, with their counts."""
    counts = of.space.counts(table, of.runs)
    return dict(sorted((f"{r.value}: {r.because}", n) for reasons, n in counts.items() for r in reasons))


def _way(how: str, by: str, values: dict[Any, int]) -> dict[str, Any]:
    row: dict[str, Any] = {how: by} if by else {"asked": "as given"}
    row["combinations"] = sum(values.values())
    if how == "default":
        spelt = len(values) <= MOST_VALUES
        row["values"] = dict(sorted(values.items())) if spelt else f"{len(values)} from {min(values)} to {max(values)}"
    return row
