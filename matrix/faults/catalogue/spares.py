"""Draft KV in the spare slots after a pool's pages: which slots, for which request."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

GPU: Final = ("gpu1",)
TREE: Final = "eagle3.s3.k4.n8.v2.ragged"
DEEP: Final = "eagle3.s5.v2.p16.ragged.length"

SPARE_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="drafts-share-spare-slots",
        klass="stride / indexing",
        origin="sglang#27338 (a draft step's writes leave their row)",
        within="DraftAttention.__init__",
        old="        self._own = pool.spare[: batch * capacity].view(batch, capacity)\n",
        new="        self._own = pool.spare[:capacity].expand(batch, capacity)\n",
        expected=("acceptance",),
        cells=(TREE, DEEP),
        why="all requests of a round write their draft KV to the same slots",
        also_on=GPU,
    ),
    Fault(
        id="spare-slots-within-the-pages",
        klass="KV leak / over-allocation",
        origin="rule: only the owner of a page writes to it (K3)",
        within="KVPool.__init__",
        old="        self.spare = torch.arange(slots, slots + spare, device=device)\n",
        new="        self.spare = torch.arange(page_size, page_size + spare, device=device)\n",
        expected=("acceptance",),
        cells=(TREE, DEEP),
        why="draft KV is written over the committed draft KV of the first requests",
        also_on=GPU,
    ),
    Fault(
        id="spare-slot-written-again",
        klass="off-by-one length or KV position",
        origin="rule: draft KV is read where it was written (K6: acceptance against an oracle)",
        within="DraftAttention.begin",
        old="        write = self._own[:, offset : offset + beams].contiguous()\n",
        new="        write = self._own[:, :beams].contiguous()\n",
        expected=("acceptance",),
        cells=(TREE, DEEP),
        why="each draft step of a round overwrites the draft KV of the step before",
        also_on=GPU,
    ),
)
