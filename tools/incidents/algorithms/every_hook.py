"""An algorithm that overrides each hook: the target's verify shape, its own relay, its own check."""

from dataclasses import replace

from specmatrix.engine.core.config.asked import EngineConfig, Facts
from specmatrix.engine.plugin import BuildContext, register_algorithm
from specmatrix.errors import ConfigError
from tools.incidents.algorithms.counting import TRAITS, CountingDrafter, marking_relay

checked: list[EngineConfig] = []


def check(asked: EngineConfig, facts: Facts) -> None:
    """Remember that the hook was called."""
    checked.append(asked)


def build(context: BuildContext) -> CountingDrafter:
    """The drafter, if the engine called the check before."""
    if not checked:
        raise ConfigError("the check of EVERY_HOOK was not called")
    return CountingDrafter(context)


register_algorithm(replace(TRAITS, name="EVERY_HOOK"), build, check=check, relay=marking_relay)
