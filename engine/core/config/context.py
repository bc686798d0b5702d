"""A configuration rule, and the context that rules and default rows read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from specmatrix.engine.core.config.adaptive_file import DEFAULT_SLOTS, AdaptiveConfig, dump, inline, middle, read, union
from specmatrix.engine.core.config.asked import AUTO, DraftFacts, EngineConfig, Facts
from specmatrix.engine.core.draft.algorithms import Topology, Traits, algorithm

Value = str | int | float | bool | None
# Maximum children of an n-gram tree's node, unless set explicitly.
BREADTH: Final = 10
DEFAULT_TEXT: Final = dump(DEFAULT_SLOTS)
# Above the maximum number of nodes of any draft.
ENOUGH: Final = 1 << 16


@dataclass(slots=True)
class RuleContext:
    """One resolution in progress; only `engine.core.config.resolve` writes `chosen`.

    asked: the requested configuration; it and facts never change. chosen: field of EngineConfig -> value that will run.
    """

    asked: EngineConfig
    facts: Facts
    traits: Traits
    chosen: dict[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, asked: EngineConfig, facts: Facts) -> "RuleContext":
        """Raises ConfigError if the algorithm does not exist."""
        return cls(asked, facts, algorithm(asked.speculative_algorithm))

    def integer(self, name: str) -> int:
        """A chosen value that is known to be an integer."""
        value = self.chosen[name]
        assert isinstance(value, int)
        return value

    @property
    def matches(self) -> bool:
        """Whether drafts are accepted where the target's own draw equals them; other rules need chains."""
        return self.asked.speculative_acceptance == "match"

    @property
    def draft(self) -> DraftFacts | None:
        """Facts about the algorithm's draft: the named checkpoint's, else those of the target's bundled draft."""
        if not self.traits.needs_draft_model:
            return None
        if self.traits.draft_weights != "bundled":
            return self.facts.draft
        path = self.asked.speculative_draft_model_path
        if path is None or (path == self.asked.model_path and self.facts.bundled is not None):
            return self.facts.bundled
        return self.facts.draft

    @property
    def parallel(self) -> bool:
        """Whether the draft predicts all steps of a chain in one forward: its checkpoint names a mask token."""
        return self.traits.parallel and self.draft is not None and self.draft.mask_token is not None

    @property
    def adaptive_text(self) -> str | None:
        """The requested slots as JSON text, the default table if no file is named; None for an unread file."""
        asked = self.asked.speculative_adaptive_config
        if asked is None:
            return DEFAULT_TEXT
        return asked if inline(asked) else self.facts.adaptive_config

    @property
    def adaptive_asked(self) -> AdaptiveConfig | str | None:
        """The slots that adaptive steps would have, or the error in them; None for an unread file."""
        text = self.adaptive_text
        return None if text is None else read(text, self.facts.adaptive_policies)

    @property
    def static_because(self) -> str | None:
        """Why the depth cannot be adaptive in this configuration, None if it can; in the order of SGLang's checks."""
        topk = self.asked.speculative_eagle_topk
        if not self.traits.adaptive:
            return f"{self.traits.name} cannot change its draft depth"
        if topk not in (AUTO, 1):
            return f"a tree (topk {topk}) has a fixed width"
        if self.asked.enable_multi_layer_eagle is True:
            return "multi-layer drafting has a fixed depth"
        return None

    @property
    def adaptive(self) -> AdaptiveConfig | None:
        """The slots that will run; None for a static depth."""
        if not self.asked.speculative_adaptive or self.static_because is not None:
            return None
        asked = self.adaptive_asked
        return asked if isinstance(asked, AdaptiveConfig) else None

    @property
    def asked_steps(self) -> int | None:
        """The requested depth, or the middle candidate of adaptive steps; None for an automatic depth."""
        steps = self.asked.speculative_num_steps
        if isinstance(steps, int):
            return steps
        return None if self.adaptive is None else middle(union(self.adaptive.slots))

    @property
    def widest(self) -> int:
        """Nodes of the widest round that can run, by the chosen values."""
        deepest = 0 if self.adaptive is None else union(self.adaptive.slots)[-1]
        return max(self.integer("speculative_num_draft_tokens"), deepest + 1)

    @property
    def asked_topk(self) -> int:
        """The requested topk; without one, 1 for an explicit depth, or the breadth of an n-gram tree."""
        topk, breadth = self.asked.speculative_eagle_topk, self.asked.speculative_ngram_max_bfs_breadth
        if self.traits.topology is Topology.CHAIN:
            return 1
        if self.traits.irregular and breadth != AUTO:
            return breadth
        if topk == AUTO:
            return BREADTH if self.traits.irregular and self.matches else 1
        return topk


def gram_room(s: RuleContext) -> int:
    """Nodes of a complete n-gram tree of the requested depth and topk, root included; counting stops at ENOUGH."""
    steps, total, level = s.asked.speculative_num_steps, 1, 1
    if steps == AUTO:
        return ENOUGH
    for _ in range(steps):
        level *= s.asked_topk
        total += level
        if total >= ENOUGH:
            break
    return total


def gram_width(s: RuleContext) -> int:
    """Nodes of an n-gram draft: as requested, else steps + 1 for a chain, else 12 or all nodes of a smaller tree."""
    width, steps = s.asked.speculative_num_draft_tokens, s.asked.speculative_num_steps
    if width != AUTO:
        return width
    return steps + 1 if s.asked_topk == 1 and steps != AUTO else min(12, gram_room(s))


@dataclass(frozen=True, slots=True)
class Rule:
    """One configuration rule: it raises ConfigError, or with `got` records a Rewrite of `field`.

    name: stable and readable. why: the general reason. broken: true if the rule applies. message: the text for this
    case. got: the value that runs instead.
    """

    name: str
    why: str
    broken: Callable[[RuleContext], bool]
    message: Callable[[RuleContext], str]
    field: str = ""
    got: Callable[[RuleContext], Value] | None = None

    @property
    def kind(self) -> Literal["refused", "rewritten"]:
        """The outcome that the matrix expects for a cell to which the rule applies."""
        return "refused" if self.got is None else "rewritten"


# By a rule's name, whether it applies; by a name in the rules' messages and values, what it stands for.
Conditions: TypeAlias = dict[str, Callable[[RuleContext], bool]]
Named: TypeAlias = dict[str, Callable[[RuleContext], Any]]


def outside(value: float | str, low: float, high: float) -> bool:
    """True for a number below `low` or above `high`."""
    return not isinstance(value, str) and not low <= value <= high
