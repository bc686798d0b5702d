"""Lengths that are no multiple of the page size, and KV slots that were never written."""

from typing import Final

from specmatrix.matrix.faults.catalogue.memory import UNCHECKED, UNSEEN
from specmatrix.matrix.faults.fault import Fault

ALIGNMENT: Final = "page alignment"

ALIGNMENT_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="table-entered-by-length",
        klass=ALIGNMENT,
        origin="sglang#20070",
        within="Scheduler._round_row",
        old="            first_page=before,\n",
        new="            first_page=account.committed // self.ledger.page_size,\n",
        expected=("lossless", "ledger"),
        cells=("standalone.s3.v2.p64.c32.pair", "eagle3.s5.v2.p4.pair.stream"),
        why="new pages are entered in the page table at the length, as if it always were a multiple of the page size",
    ),
    Fault(
        id="partial-page-freed",
        klass=ALIGNMENT,
        origin="rule: a partial page still holds live tokens (sglang#22862)",
        within="Ledger.hold",
        old="        whole = -(-keep // self.page_size)\n        gone = ",
        new="        whole = keep // self.page_size\n        gone = ",
        expected=("ledger", "session", "lossless"),
        cells=("none.v1.p4.pair.stream",),
        why="at the end of a turn the page with the session's last tokens is freed together with the tail after them",
        also=(UNCHECKED,),
    ),
    Fault(
        id="slots-start-as-noise",
        klass="NaN / uninitialised memory",
        origin="sglang#19897",
        within="KVPool.__init__",
        old="        self.data = _zeros(shape, dtype, torch.device(device))\n",
        new='        self.data = torch.full(shape, float("nan"), dtype=dtype, device=device)\n',
        expected=("lossless", "acceptance"),
        cells=("standalone.s3.v2.p64.c32.pair",),
        why="masked KV slots that were never written hold NaN, which an attention weight of zero does not remove",
        also=(UNSEEN,),
    ),
)
