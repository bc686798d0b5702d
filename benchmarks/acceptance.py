"""Acceptance by coins in place of the draft's merit, for drafts of random weights (SGLANG_SIMULATE_ACC_LEN's idea).

A round does all of its work and then takes as many drafts as the coins say, so that tokens per second mean something
where texts mean nothing.
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
    """Each draft of a chain is taken with the probability `rate`, float64 [], which lies on the device and may change.

    The coins are the same for all requests of one length, so that those which begin together end together.
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
