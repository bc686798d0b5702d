"""Simulated acceptance for drafts with random weights (as SGLANG_SIMULATE_ACC_LEN).

A round does all of its work, but random coins decide how many drafts it accepts, so that tokens per second are
meaningful although the texts are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import specmatrix.engine.device_step
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.sampling import SamplingRows, uniform
from specmatrix.engine.spec.drafter import DraftTree, Verdict


@contextmanager
def accepted_by_coins(rate: Tensor) -> Iterator[None]:
    """Accept each draft of a chain with probability `rate`, a float64 scalar tensor on the device that may change.

    The coins depend on a request's length only, so that requests that start together end together.
    """
    verify = specmatrix.engine.device_step.verify

    def tossed(
        logits: Tensor, tree: DraftTree, start: Tensor, rows: SamplingRows | None, ranks: Ranks = ALONE
    ) -> Verdict:
        verdict = verify(logits, tree, start, rows, ranks)
        if not tree.depth:
            return verdict
        positions = start[:, None] + tree.depths[:, 1:]
        coins = uniform(torch.zeros_like(start), positions.contiguous())
        return verdict._replace(count=1 + (coins < rate).long().cumprod(1).sum(1))

    try:
        specmatrix.engine.device_step.verify = tossed
        yield
    finally:
        specmatrix.engine.device_step.verify = verify
