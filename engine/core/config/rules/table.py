"""The configuration rules: what cannot run is refused, what runs differently is rewritten; nothing else departs.

A row of `rules.json` has a rule's name, reason and message, and `BROKEN` of this module and those beside it says when
it applies. `resolve` applies the table in order and the first refusal wins; the matrix lifts the same rows as
constraints, so a cell that the matrix predicts to be refused is refused by the engine with the same message. Every
condition is total.
"""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, Final

from specmatrix.engine.core.config.asked import AUTO, UNASKED
from specmatrix.engine.core.config.context import Conditions, Named, Rule, RuleContext, Value, outside
from specmatrix.engine.core.config.rules import adaptive, devices, draft, dspark, ngram, suffix


def _page(s: RuleContext) -> int:
    return s.asked.page_size if isinstance(s.asked.page_size, int) else 1


def _whole_pages(s: RuleContext) -> int:
    tokens, page = s.asked.max_total_tokens, _page(s)
    return tokens // page * page if isinstance(tokens, int) and page > 0 else 0


def _uneven_pages(s: RuleContext) -> bool:
    tokens = s.asked.max_total_tokens
    return isinstance(tokens, int) and _page(s) > 0 and tokens != _whole_pages(s)


def _within_pages(s: RuleContext) -> bool:
    """Whether the checkpoints of a recurrent state are not where pages end."""
    interval = s.asked.state_interval
    return interval != AUTO and (interval < 0 or interval % max(1, _page(s)) > 0)


def _thresholds(s: RuleContext) -> list[tuple[str, float]]:
    named = (
        ("speculative_accept_threshold_single", s.asked.speculative_accept_threshold_single),
        ("speculative_accept_threshold_acc", s.asked.speculative_accept_threshold_acc),
    )
    return [(name, value) for name, value in named if value != 1.0]


def smallest_pool(s: RuleContext) -> int:
    """KV tokens that one request with a one-token prompt reserves, in whole pages.

    That is the committed token, the widths of the steps in flight and the width of the next step.
    """
    page = s.integer("page_size")
    lag = 1 if s.chosen["spec_version"] == "v2" else 0
    tokens = 1 + (lag + 1) * s.widest
    return -(-tokens // page) * page


PARTS: Final = (draft, adaptive, ngram, suffix, dspark, devices)
BROKEN: Final[Conditions] = {
    "threshold-inexact": lambda s: bool(_thresholds(s)),
    "v2-needs-overlap": lambda s: s.asked.disable_overlap_schedule and s.asked.spec_version == "v2",
    "chunked-prefill-size-range": lambda s: (
        s.asked.chunked_prefill_size != -1 and outside(s.asked.chunked_prefill_size, 1, inf)
    ),
    "mixed-unsupported": lambda s: s.asked.enable_mixed_chunk and s.traits.reads_host,
    "max-running-requests-range": lambda s: outside(s.asked.max_running_requests, 1, inf),
    "context-length-range": lambda s: outside(s.asked.context_length, 2, s.facts.context_length),
    "window-ratio-range": lambda s: not 0.0 < s.asked.swa_full_tokens_ratio <= 1.0,
    "gpu-missing": lambda s: s.asked.device == "cuda" and s.facts.gpus == 0,
    "mixed-of-whole-prompts": lambda s: s.asked.enable_mixed_chunk and s.asked.chunked_prefill_size == -1,
    "interval-of-no-state": lambda s: s.asked.state_interval not in (AUTO, 0) and not s.facts.recurrent,
    "interval-of-whole-pages": _within_pages,
    "window-uncached": lambda s: s.facts.window is not None and not s.asked.disable_radix_cache,
    "state-uncached": lambda s: s.facts.recurrent and s.asked.state_interval == 0 and not s.asked.disable_radix_cache,
    "whole-pages": _uneven_pages,
    "interval-within-a-round": lambda s: 0 < s.integer("state_interval") < s.widest,
    "pool-too-small": lambda s: s.integer("max_total_tokens") < smallest_pool(s),
} | {name: broken for part in PARTS for name, broken in part.BROKEN.items()}
NAMED: Final[Named] = {
    "page": _page,
    "whole_pages": _whole_pages,
    "thresholds": _thresholds,
    "smallest_pool": smallest_pool,
    "mixable": lambda s: draft.named(lambda traits: not traits.reads_host),
} | {name: value for part in PARTS for name, value in part.NAMED.items()}


class _Words(dict[str, Any]):
    """What the names in a message stand for: one of NAMED, a field of the requested configuration, or an attribute of
    the context."""

    def __init__(self, s: RuleContext) -> None:
        super().__init__()
        self._context = s

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - of any rule
        if name in NAMED:
            return NAMED[name](self._context)
        return getattr(self._context.asked if name in UNASKED else self._context, name)


def _rule(row: dict[str, Any]) -> Rule:
    """A row of the table. of: the trait of the algorithms that it is about. value, or made by the function of a name:
    what runs instead. low, high, unit: the range of a field; without a unit the message ends with the reason."""
    name, field, of = row["name"], row.get("field", ""), row.get("of")
    if "unread" in row:
        return _unread(row)
    if "low" in row:
        low, high, end = row["low"], row["high"], f" {row['unit']}" if "unit" in row else ""
        text = f"{field} must be between {low} and {high}{end}, got {{{field}}}" + ("" if end else f": {row['why']}")
        return Rule(name, row["why"], lambda s: outside(getattr(s.asked, field), low, high), _said(text))
    broken = BROKEN[name]
    applies = broken if of is None else lambda s: getattr(s.traits, of) and broken(s)
    return Rule(name, row["why"], applies, _said(row["message"]), field, _instead(row))


def _instead(row: dict[str, Any]) -> Callable[[RuleContext], Value] | None:
    if "value" in row:
        return lambda s: row["value"]
    return (lambda s: _Words(s)[row["made"]]) if "made" in row else None


def _said(text: str) -> Callable[[RuleContext], str]:
    return lambda s: text.format_map(_Words(s))


def _unread(row: dict[str, Any]) -> Rule:
    """Refuses fields, or those whose names begin alike, with an algorithm that does not read them. instead: what to do
    but remove one."""
    names, of = row["unread"], row["of"]
    names = names if isinstance(names, list) else [each for each in UNASKED if each.startswith(names)]

    def given(s: RuleContext) -> str | None:
        return None if getattr(s.traits, of) else next((n for n in names if getattr(s.asked, n) != UNASKED[n]), None)

    def message(s: RuleContext) -> str:
        field = given(s) or ""
        value, name = getattr(s.asked, field), s.traits.name
        return f"{field} {value} has no effect with speculative_algorithm {name}; remove it or {row['instead']}"

    return Rule(row["name"], row["why"], lambda s: given(s) is not None, message)


ROWS: Final = json.loads((Path(__file__).parents[1] / "rules.json").read_text(encoding="utf-8"))
RULES: Final = tuple(_rule(row) for row in ROWS if "late" not in row)
# Checked last, over the chosen values.
LATE: Final = tuple(_rule(row) for row in ROWS if "late" in row)
