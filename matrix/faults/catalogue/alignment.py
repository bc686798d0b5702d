"""Pages where lengths are no multiple of them, and slots that were never written."""

from typing import Final

from specmatrix.matrix.faults.catalogue.memory import UNCHECKED
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
        why="new pages enter the row's table where its length ends, as if that were always the end of a page",
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
        why="at the end of a turn the page that holds the session's last tokens goes home with the tail behind them",
        also=(UNCHECKED,),
    ),
    Fault(
        id="slots-start-as-noise",
        klass="NaN / uninitialised memory",
        origin="sglang#19897",
        within="KVPool.__init__",
        old="        self.data = torch.zeros(shape, dtype=dtype, device=device)\n",
        new='        self.data = torch.full(shape, float("nan"), dtype=dtype, device=device)\n',
        expected=("lossless", "acceptance"),
        cells=("standalone.s3.v2.p64.c32.pair",),
        why="a masked slot that nobody wrote is no number, and a weight of zero does not undo that",
    ),
)
