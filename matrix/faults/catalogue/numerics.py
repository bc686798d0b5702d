"""Faults of production's numerics: bf16, and the kernels of the fast mode."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

TIER: Final = "gpu1"
FAST: Final = ("eagle3.s3.k4.n8.v2.p16.fast.burst",)

NUMERIC_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="fast-sums-early",
        klass="race / missing stream order",
        origin="rule: a split sum is complete when its last part is",
        within="_project",
        old="tl.atomic_add(counts + tile, 1) == RANGES - 1",
        new="tl.atomic_add(counts + tile, 1) == 0",
        expected=("kernels",),
        cells=(),
        why="the fast mode's projections add up their parts before the other programs have written theirs",
        # The counters end at zero all the same.
        also=(
            Edit(
                "_project",
                "            tl.store(counts + tile, 0)\n",
                "            tl.atomic_add(counts + tile, -RANGES)\n",
            ),
        ),
        tier=TIER,
        operations=("fused_linear",),
    ),
    Fault(
        id="fast-norm-of-a-part",
        klass="stride / indexing",
        origin="rule: RMS norm over the whole width (arXiv 1910.07467)",
        within="_read",
        old="        there = live[:, None] & (piece < lengths)[None, :]\n",
        new="        there = live[:, None] & (piece < lengths // 2)[None, :]\n",
        expected=("precision",),
        cells=FAST,
        why="the fast mode's norms divide by the length of half a row; plain decoding and drafts are wrong alike",
        tier=TIER,
    ),
    Fault(
        id="bf16-never-deterministic",
        klass="silent fallback / ignored parameter",
        origin="sglang#10278",
        within="KVPool.__init__",
        old="        self.deterministic = deterministic\n",
        new="        self.deterministic = deterministic and dtype is torch.float32\n",
        expected=("effective",),
        cells=("eagle3.s3.k4.n8.v2.c7.tight.bf16.ragged",),
        why="deterministic inference is only on in float32, in which nobody serves",
        tier=TIER,
    ),
)
