"""sglang#26866, #26981, #26997: trees run on v2; merged with two defects, reverted, landed again."""

from typing import Final

from specmatrix.matrix.faults.patch import Edit
from specmatrix.matrix.incidents.incident import CodeState, ComparedStep, Expected, Incident, PromotedDefault
from specmatrix.matrix.incidents.promotion import Shortfall
from specmatrix.reports.compare import Acknowledgement

# A draft asked for as a tree on v2 runs v1.
FALLBACK: Final = (
    Edit(
        "RULES",
        "    TOPK_IS_BREADTH,\n",
        "    TOPK_IS_BREADTH,\n"
        "    Rule(\n"
        '        name="tree-without-overlap",\n'
        '        kind="rewritten",\n'
        '        field="spec_version",\n'
        '        why="the overlap worker drafts chains",\n'
        '        broken=lambda s: s.traits.max_lag == 1 and s.asked.spec_version == "v2" and s.asked_topk > 1,\n'
        '        message=lambda s: f"spec v2 does not support topk {s.asked_topk}, so the draft runs on v1",\n'
        '        got=lambda s: "v1",\n'
        "    ),\n",
    ),
    Edit(
        "CONSTRAINTS",
        '    _lifted("no-step-in-flight", "algorithm", "spec_version"),\n',
        '    _lifted("no-step-in-flight", "algorithm", "spec_version"),\n'
        '    _lifted("tree-without-overlap", "algorithm", "steps", "topk", "spec_version"),\n',
    ),
)
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
        "DeviceStep._compact",
        "        self.kv.move(kv, taken)\n",
        "        if not self.relay.overlaps:\n            self.kv.move(kv, taken)\n",
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
BEFORE: Final = CodeState("trees fall back to v1", FALLBACK)
MERGED: Final = CodeState("trees on v2, bonus with the wrong stride", WRONG_STRIDE)
AMENDED: Final = CodeState("trees on v2, path not compacted", NOT_COMPACTED)
RELANDED: Final = CodeState("trees on v2 by default", PROMOTED)
CHAINS: Final = ("standalone.pair", "eagle3.s3.v2.pair", "eagle3.s3.k1.n4.v1.pair")
ALONE: Final = "eagle3.s3.k4.n8.v2"
TREES: Final = ("standalone.s2.k2.n6.v2.p4.pair", "eagle3.s3.k4.n8.v2.pair", "eagle3.s3.k4.n8.v2.p16.pair")
# Their tests were deleted by the revert: the wide tree, and retraction under it.
DELETED: Final = ("eagle3.s5.k4.n16.v2.pair", "eagle3.s5.k4.n16.v2.tight.pair")
ON_V1: Final = ("eagle3.s3.k4.n8.v1.pair",)
AUTOMATIC: Final = "eagle3.s3.k4.n8.pair"
ALL: Final = (*CHAINS, *ON_V1, AUTOMATIC, ALONE, *TREES)
TO_V2: Final = Acknowledgement("rewrite", "spec_version: v1 -> v2", "sglang#26997: trees run on v2", "2099-12-31")

INCIDENT: Final = Incident(
    name="trees-on-overlap",
    origins=("sglang#26866", "sglang#26981", "sglang#26997"),
    question="Which change may run trees on v2, and which may make it the default?",
    steps=(
        ComparedStep(
            name="merge",
            story="Trees run on v2 instead of falling back to v1. The bonus token is read with the stride of the draft "
            "tokens, not of steps + 1.",
            base=BEFORE,
            head=MERGED,
            cells=(*ALL, *DELETED),
            acknowledged=(TO_V2,),
            promotions=(PromotedDefault(*ROW),),
            expected=Expected("red"),
        ),
        ComparedStep(
            name="amended",
            story="The stride is right; the accepted path is still not compacted to the front of its block.",
            base=BEFORE,
            head=AMENDED,
            cells=(*CHAINS, *ON_V1, ALONE, *TREES),
            acknowledged=(TO_V2,),
            expected=Expected("red"),
        ),
        ComparedStep(
            name="revert",
            story="The merge is reverted, and with it the tests of the wide tree and of retraction under it.",
            base=MERGED,
            head=BEFORE,
            cells=ALL,
            dropped=DELETED,
            expected=Expected("red"),
        ),
        ComparedStep(
            name="reland",
            story="Trees run on v2, the deleted cells are back, and v2 becomes the default for trees.",
            base=BEFORE,
            head=RELANDED,
            cells=ALL,
            added=DELETED,
            acknowledged=(TO_V2,),
            promotions=(
                PromotedDefault(*ROW),
                PromotedDefault(*ROW, shortfall=Shortfall(DELETED[1])),
                PromotedDefault(*ROW, shortfall=Shortfall(AUTOMATIC, "ledger")),
                PromotedDefault(*ROW, shortfall=Shortfall(AUTOMATIC, "effective", "NOT MEASURED")),
            ),
            expected=Expected("green"),
        ),
    ),
)
