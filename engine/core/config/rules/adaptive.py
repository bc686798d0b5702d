"""When the configuration rules for adaptive draft depth apply, and the values that their messages name."""

from typing import Final

from specmatrix.engine.core.config.adaptive_file import SOURCE, dump, inline, union
from specmatrix.engine.core.config.asked import AUTO, Reason
from specmatrix.engine.core.config.context import Conditions, Named, RuleContext
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


BROKEN: Final[Conditions] = {
    "adaptive-config-alone": lambda s: bool(s.asked.speculative_adaptive_config) and not s.asked.speculative_adaptive,
    "adaptive-config-unread": lambda s: s.asked.speculative_adaptive and s.adaptive_text is None,
    "adaptive-config-wrong": lambda s: s.asked.speculative_adaptive and isinstance(s.adaptive_asked, str),
    "steps-no-candidate": _foreign,
    "adaptive-unsupported": lambda s: s.asked.speculative_adaptive and s.static_because is not None,
    "adaptive-config-flat": lambda s: s.adaptive is not None and s.adaptive.flat,
}
NAMED: Final[Named] = {
    "slots_file": _named,
    "slots_error": _wrong,
    "candidates": lambda s: ", ".join(map(str, _listed(s))),
    "slots": lambda s: dump(s.adaptive.slots) if s.adaptive else None,
}
