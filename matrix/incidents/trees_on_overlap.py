"""sglang#26866, #26981, #26997: trees run on v2; merged with two defects, reverted, landed again."""

from typing import Final

from specmatrix.matrix.faults.patch import Edit
from specmatrix.matrix.incidents import fallback
from specmatrix.matrix.incidents.incident import CodeState, ComparedStep, Expected, Incident, PromotedDefault, each
from specmatrix.matrix.incidents.promotion import Shortfall
from specmatrix.reports.compare import Acknowledgement

# The defects are in the overlap worker alone.
OVERLAP_ONLY: Final = Edit(
    "_executor",
    "    relay = build_relay(context.traits, _rows(resolved), drafter, device)\n",
    "    relay = build_relay(context.traits, _rows(resolved), drafter, device)\n"
    "    relay.overlaps = resolved.lag > 0\n",
)
WRONG_STRIDE: Final = (
    OVERLAP_ONLY,
    Edit(
        "DeviceStep._round",
        "            bonus = verdict.tokens.gather(1, (verdict.count - 1)[:, None])\n",
        "            stride = batch.width if self.relay.overlaps else verdict.tokens.shape[1]\n"
        "            block = torch.arange(len(verdict.count), device=verdict.count.device) * stride\n"
        "            at = block + verdict.count - 1\n"
        "            bonus = verdict.tokens.reshape(-1)[at.clamp(max=verdict.tokens.numel() - 1)][:, None]\n",
    ),
)
NOT_COMPACTED: Final = (
    OVERLAP_ONLY,
    Edit(
        "DeviceStep._round",
        "        self.kv.commit(kv, verdict)\n",
        "        if not self.relay.overlaps:\n            self.kv.commit(kv, verdict)\n",
    ),
)
# The row of the defaults, whose evidence a promotion needs.
ROW: Final = ("spec_version", "a tree (topk > 1)")
PROMOTED: Final = (
    Edit(
        "DEFAULTS",
        '        lambda s: "v1",\n        "trees (topk > 1) default to v1; set spec_version v2 to overlap them",\n',
        '        lambda s: "v2",\n        "trees (topk > 1) overlap as chains do",\n',
    ),
)
BEFORE: Final = CodeState("trees fall back to v1", fallback.REWRITTEN)
MERGED: Final = CodeState("trees on v2, bonus with the wrong stride", WRONG_STRIDE)
AMENDED: Final = CodeState("trees on v2, path not compacted", NOT_COMPACTED)
RELANDED: Final = CodeState("trees on v2 by default", PROMOTED)
CHAINS: Final = ("standalone.pair", "eagle3.s3.v2.pair")
# With one request the stride has no effect.
ALONE: Final = ("eagle3.s3.k4.n8.v2", "eagle3.s3.k2.n6.v2", "standalone.s3.k2.n6.v2")
ON_V1: Final = ("eagle3.s3.k4.n8.v1.pair",)
AUTOMATIC: Final = "eagle3.s3.k4.n8.pair"
PAIRS: Final = (
    "eagle3.s3.k4.n8.v2.pair",
    "eagle3.s3.k2.n6.v2.pair",
    "eagle3.s3.k2.n8.v2.pair",
    "standalone.s3.k2.n6.v2.pair",
    "standalone.s3.k2.n8.v2.pair",
)
# Deleted by the revert: the wide tree, and retraction under it.
DELETED: Final = ("eagle3.s5.k4.n16.v2.pair", "eagle3.s5.k4.n16.v2.tight.pair")
ALL: Final = (*CHAINS, *ON_V1, AUTOMATIC, *ALONE, *PAIRS)
MERGE, RELAND = (
    (Acknowledgement("rewrite", "spec_version: v1 -> v2", f"{change}: trees run on v2", "2099-12-31"),)
    for change in ("sglang#26866", "sglang#26997")
)

MOVED: Final = {"moved spec_version: v1 -> v2": "acknowledged", "gone spec_version: v2 -> v1": "noted"}
ON_V2: Final = "spec_version=v2 x topk=4"

INCIDENT: Final = Incident(
    name="trees-on-overlap",
    origins=("sglang#26866", "sglang#26981", "sglang#26997"),
    question="Which of the changes may run trees on v2, and which may make v2 their default?",
    steps=(
        ComparedStep(
            name="merge",
            story="Trees run on v2 instead of falling back to v1. The bonus token is read with the stride of the draft "
            "tokens, not of steps + 1.",
            base=BEFORE,
            head=MERGED,
            cells=(*ALL, *DELETED),
            acknowledged=MERGE,
            promotions=(
                PromotedDefault(*ROW, refused=(f"lossless is FAIL in 7 of 14 cells, the first is {PAIRS[1]}",)),
            ),
            expected=Expected(
                "red",
                cells=each("REGRESSED: lossless, acceptance", *PAIRS, *DELETED) | each("REWRITTEN", *ALONE),
                factor="topk > 1 x spec_version=v2 x batch=pair",
                rewrites=MOVED,
                gained_pairs=(ON_V2,),
            ),
        ),
        ComparedStep(
            name="amended",
            story="The stride is right; the accepted path is still not compacted to the front of its block.",
            base=BEFORE,
            head=AMENDED,
            cells=(CHAINS[-1], ON_V1[0], ALONE[0], PAIRS[0]),
            acknowledged=MERGE,
            expected=Expected(
                "red",
                cells=each("REGRESSED: ledger, lossless, acceptance, effective", ALONE[0], PAIRS[0]),
                rewrites=MOVED,
            ),
        ),
        ComparedStep(
            name="revert",
            story="The merge is reverted, and with it the tests of the wide tree and of retraction under it.",
            base=MERGED,
            head=BEFORE,
            cells=ALL,
            dropped=DELETED,
            expected=Expected(
                "red",
                cells=each("LOST", *DELETED) | each("REWRITTEN", *PAIRS, *ALONE),
                rewrites={"new spec_version: v2 -> v1": "red"},
                lost_pairs=(ON_V2,),
            ),
        ),
        ComparedStep(
            name="reland",
            story="Trees run on v2, the deleted cells are back, and v2 becomes the default for trees.",
            base=BEFORE,
            head=RELANDED,
            cells=ALL,
            added=DELETED,
            acknowledged=RELAND,
            promotions=(
                PromotedDefault(*ROW),
                PromotedDefault(
                    *ROW,
                    shortfall=Shortfall(DELETED[1]),
                    refused=(f"the run is partial: 1 of 14 cells is missing, {DELETED[1]}",),
                ),
                PromotedDefault(
                    *ROW,
                    shortfall=Shortfall(AUTOMATIC, "ledger"),
                    refused=(f"ledger is missing in 1 of 14 cells, {AUTOMATIC}",),
                ),
                PromotedDefault(
                    *ROW,
                    shortfall=Shortfall(AUTOMATIC, "effective", "NOT MEASURED"),
                    refused=(f"effective is NOT MEASURED in 1 of 14 cells, {AUTOMATIC}",),
                ),
            ),
            expected=Expected(
                "green",
                cells=each("NEW", *DELETED) | each("REWRITTEN", AUTOMATIC, *PAIRS, *ALONE),
                rewrites=MOVED,
                gained_pairs=(ON_V2,),
            ),
        ),
    ),
)
