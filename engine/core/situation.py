"""What a launch rule is, and what a rule or a default row may look at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from engine.core.algorithm import Traits, algorithm
from engine.core.config import AUTO, EngineConfig, Facts

Value = str | int | float | bool | None


def tree_pool(num_steps: int, topk: int) -> int:
    """Candidate nodes of a draft tree, root not counted: topk at the first depth, topk * topk at each later one."""
    return topk + (num_steps - 1) * topk * topk


@dataclass(slots=True)
class Situation:
    """One resolution under way; only `engine.core.resolve` writes `chosen`.

    asked and facts never change; chosen maps a field of EngineConfig to the value that will run.
    """

    asked: EngineConfig
    facts: Facts
    traits: Traits
    chosen: dict[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, asked: EngineConfig, facts: Facts) -> "Situation":
        """ConfigError if the algorithm does not exist."""
        return cls(asked, facts, algorithm(asked.speculative_algorithm))

    def integer(self, name: str) -> int:
        """A chosen value that is known to be a whole number."""
        value = self.chosen[name]
        assert isinstance(value, int)
        return value

    @property
    def asked_topk(self) -> int:
        """Children per node as asked; an explicit depth without it means a chain."""
        topk = self.asked.speculative_eagle_topk
        return 1 if topk == AUTO else topk


@dataclass(frozen=True, slots=True)
class Rule:
    """One launch rule.

    name: stable, readable. kind: "refused" raises ConfigError, "rewritten" records a Rewrite of `field`.
    why: the reason in general. broken: true if the rule applies. sentence: the text for this case.
    got: the value that runs instead (rewritten only).
    """

    name: str
    kind: Literal["refused", "rewritten"]
    field: str
    why: str
    broken: Callable[[Situation], bool]
    sentence: Callable[[Situation], str]
    got: Callable[[Situation], int] | None = None
