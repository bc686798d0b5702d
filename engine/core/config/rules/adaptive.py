"""Configuration rules for adaptive draft depth: its requirements, and when the depth becomes static instead."""

from typing import Final

from specmatrix.engine.core.config.adaptive_file import SOURCE, dump, inline, union
from specmatrix.engine.core.config.asked import AUTO, Reason
from specmatrix.engine.core.config.context import Rule, RuleContext
from specmatrix.errors import text_of


def _listed(s: RuleContext) -> tuple[int, ...]:
    return union(s.adaptive.slots) if s.adaptive else ()


def _foreign(s: RuleContext) -> bool:
    """Whether the explicit depth is not a candidate of any slot."""
    steps = s.asked.speculative_num_steps
    return s.adaptive is not None and steps != AUTO and steps not in _listed(s)


def _wrong(s: RuleContext) -> str:
    """The error in the slots, with the name of their file."""
    text = str(s.adaptive_asked)
    return text if inline(s.asked.speculative_adaptive_config or "") else text.replace(SOURCE, _named(s), 1)


def _named(s: RuleContext) -> str:
    return f"{SOURCE} {text_of(s.asked.speculative_adaptive_config)}"


def table_reasons(s: RuleContext) -> tuple[Reason, ...]:
    """The reason for the built-in slots, if they decide."""
    if s.adaptive is None or s.asked.speculative_adaptive_config is not None:
        return ()
    return (Reason(SOURCE, None, "no file is named, so the built-in slots are used"),)


ADAPTING: Final[tuple[Rule, ...]] = (
    Rule(
        name="adaptive-config-alone",
        why="the file only configures adaptive steps",
        broken=lambda s: s.asked.speculative_adaptive_config is not None and not s.asked.speculative_adaptive,
        message=lambda s: f"{_named(s)} has no effect without speculative_adaptive; add that flag or remove the file",
    ),
    Rule(
        name="adaptive-config-unread",
        why="an unread file cannot be checked",
        broken=lambda s: s.asked.speculative_adaptive and s.adaptive_text is None,
        message=lambda s: f"the file of {_named(s)} was not read; put its text into Facts.adaptive_config",
    ),
    Rule(
        name="adaptive-config-wrong",
        why="an invalid slot would silently adapt differently",
        broken=lambda s: s.asked.speculative_adaptive and isinstance(s.adaptive_asked, str),
        message=_wrong,
    ),
    Rule(
        name="steps-no-candidate",
        why="the initial depth must be a candidate of a slot",
        broken=_foreign,
        message=lambda s: (
            f"speculative_num_steps {s.asked.speculative_num_steps} is not a candidate of any adaptive slot; use "
            f"auto or one of {', '.join(map(str, _listed(s)))}"
        ),
    ),
    Rule(
        name="adaptive-unsupported",
        field="speculative_adaptive",
        why="the depth can change only where a chain can be cut at any length",
        broken=lambda s: s.traits.drafts and s.asked.speculative_adaptive and s.static_because is not None,
        message=lambda s: f"{s.static_because}, so the depth is static",
        got=lambda s: False,
    ),
    Rule(
        name="adaptive-config-flat",
        field=SOURCE,
        why="the flat format has no batch sizes",
        broken=lambda s: s.adaptive is not None and s.adaptive.flat,
        message=lambda s: "the flat format has no batch sizes, so it defines one slot for all of them",
        got=lambda s: dump(s.adaptive.slots) if s.adaptive else None,
    ),
)
