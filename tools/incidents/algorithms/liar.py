"""An algorithm that claims not to read on the host, but reads its tokens there in every round."""

from dataclasses import replace

from specmatrix.engine.device.batch import StepBatch
from specmatrix.engine.device.relay import Relay
from specmatrix.engine.plugin import register_algorithm
from specmatrix.engine.spec.drafter import DraftTree
from tools.incidents.algorithms.counting import TRAITS, CountingDrafter, marking_relay


class LyingDrafter(CountingDrafter):
    """Waits for the device, which its trait `reads_host` denies."""

    def propose(self, batch: StepBatch, relay: Relay) -> DraftTree:
        """As CountingDrafter, after reading the tokens on the host."""
        batch.root.tolist()
        return super().propose(batch, relay)


register_algorithm(replace(TRAITS, name="LIAR"), LyingDrafter, relay=marking_relay)
