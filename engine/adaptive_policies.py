"""Adaptive policies of other packages, by entry point; the built-in ones are pure and in `engine.core.draft`."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from specmatrix.engine.core.config.adaptive_file import EMA, STRATEGIES, THROUGHPUT, Slots
from specmatrix.engine.core.draft.throughput import AdaptivePolicy, PolicyFactory, ThroughputAware
from specmatrix.errors import ConfigError, described, is_interrupt, shown

GROUP: Final = "specmatrix.adaptive_policies"
HOOKS: Final = ("choose", "observe")


def installed_policies() -> dict[str, EntryPoint]:
    """Other packages' policies by name. ConfigError if two have the same name, or one that of a built-in policy."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP)):
        if point.name in STRATEGIES or found.setdefault(point.name, point).value != point.value:
            raise ConfigError(f"adaptive policy {shown(point.name)} of {point.value} exists already; rename it")
    return found


def policy_of(slots: Slots, steps: int) -> AdaptivePolicy | None:
    """The policy that the slots name, None for the default one. ConfigError, with its name, if it cannot be made."""
    if not slots or slots[0].strategy == EMA:
        return None
    name, settings = slots[0].strategy, json.loads(slots[0].settings)
    if name == THROUGHPUT:
        return ThroughputAware(slots, settings, steps)
    point = installed_policies()[name]
    try:
        factory: PolicyFactory = point.load()
        policy = factory(slots, settings, steps)
    except Exception as error:  # a user's own code
        if is_interrupt(error):
            raise
        raise ConfigError(f"adaptive policy {name} ({point.value}) cannot be made: {described(error)}") from error
    for hook in HOOKS:
        if not callable(getattr(policy, hook, None)):
            raise ConfigError(f"adaptive policy {name} ({point.value}) has no {hook}; it needs {', '.join(HOOKS)}")
    return policy
