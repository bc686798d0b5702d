"""An algorithm whose relay forgets an argument."""

from __future__ import annotations

from dataclasses import replace

from specmatrix.engine.device.relay import Relay
from specmatrix.engine.plugin import register_algorithm
from specmatrix.engine.spec.drafter import Drafter
from tools.incidents.algorithms.counting import TRAITS, CountingDrafter


def relay(rows: int, drafter: Drafter) -> Relay:
    """Lacks the parameter for the device, which the engine passes too."""
    raise NotImplementedError


register_algorithm(replace(TRAITS, name="FORGETFUL"), CountingDrafter, relay=relay)  # type: ignore[arg-type]
