"""The launch rules about adaptive draft depth: what it needs, and where it gives way to a static depth."""

from typing import Final

from specmatrix.engine.core.config.adaptive_file import SOURCE, dump, union
from specmatrix.engine.core.config.asked import AUTO
from specmatrix.engine.core.config.context import Rule, RuleContext


def _listed(s: RuleContext) -> tuple[int, ...]:
    return union(s.adaptive.slots) if s.adaptive else ()


def _foreign(s: RuleContext) -> bool:
    """An explicit depth that no slot may take."""
    steps = s.asked.speculative_num_steps
    return s.adaptive is not None and steps != AUTO and steps not in _listed(s)


ADAPTING: Final[tuple[Rule, ...]] = (
    Rule(
        name="adaptive-config-alone",
        kind="refused",
        field=SOURCE,
        why="the slots steer adaptive steps",
        broken=lambda s: s.asked.speculative_adaptive_config is not None and not s.asked.speculative_adaptive,
        sentence=lambda s: (
            f"{SOURCE} {s.asked.speculative_adaptive_config} is read with speculative_adaptive only; add it or "
            "leave the file out"
        ),
    ),
    Rule(
        name="adaptive-config-unread",
        kind="refused",
        field=SOURCE,
        why="slots of which nothing is known cannot be checked",
        broken=lambda s: s.asked.speculative_adaptive and s.adaptive_text is None,
        sentence=lambda s: (
            f"nothing is known of the file {s.asked.speculative_adaptive_config}; read its text into the facts first"
        ),
    ),
    Rule(
        name="adaptive-config-wrong",
        kind="refused",
        field=SOURCE,
        why="a mistake in a slot would silently adapt to something else",
        broken=lambda s: s.asked.speculative_adaptive and isinstance(s.adaptive_asked, str),
        sentence=lambda s: str(s.adaptive_asked),
    ),
    Rule(
        name="steps-no-candidate",
        kind="refused",
        field="speculative_num_steps",
        why="with several slots nobody knows where a depth that none lists should go",
        broken=_foreign,
        sentence=lambda s: (
            f"speculative_num_steps {s.asked.speculative_num_steps} is no candidate of any slot of adaptive steps; use "
            f"auto or one of {', '.join(map(str, _listed(s)))}"
        ),
    ),
    Rule(
        name="adaptive-unsupported",
        kind="rewritten",
        field="speculative_adaptive",
        why="the depth of a round changes only where a chain can be cut at any length",
        broken=lambda s: s.traits.drafts and s.asked.speculative_adaptive and s.static_because is not None,
        sentence=lambda s: f"{s.static_because}, so the depth stays static",
        got=lambda s: False,
    ),
    Rule(
        name="adaptive-config-flat",
        kind="rewritten",
        field=SOURCE,
        why="the older format has no batch sizes",
        broken=lambda s: s.adaptive is not None and s.adaptive.flat,
        sentence=lambda s: "the flat format without batch sizes is read as one slot for all of them",
        got=lambda s: dump(s.adaptive.slots) if s.adaptive else None,
    ),
)
