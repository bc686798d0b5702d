"""Every operation on every case on one CUDA device, against the reference on the CPU."""

from __future__ import annotations

import pytest

from kernels import check
from kernels.registry import KERNELS

pytestmark = pytest.mark.register(est_seconds=1, tier="gpu1", stage="pr")

ROWS = [pytest.param(k, c, id=f"{k}: {c}") for k in KERNELS for c in k.cases]
CHECKS = [check.agreement, check.poisoned, check.canaries, check.repeatable]


@pytest.mark.parametrize("holds", CHECKS, ids=lambda holds: holds.__name__)
@pytest.mark.parametrize(("kernel", "case"), ROWS)
def test_on_cuda(kernel, case, holds):
    holds(kernel, case, "cuda")
