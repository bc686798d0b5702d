"""Sizes that coincide in the usual cell: tree depth, breadth and width, block size, pages larger than a request."""

from typing import Final

from specmatrix.matrix.faults.fault import Edit, Fault

SILENT: Final = "silent fallback / ignored parameter"
STRIDE: Final = "stride / indexing"
LEAK: Final = "KV leak / over-allocation"
LARGE: Final = "none.v2.p256.tight.ragged.stream.length"

SIZE_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="grams-depth-ignored",
        klass=SILENT,
        origin="rule: steps, breadth and width of an n-gram tree are independent",
        within="_ngram",
        old="        steps=resolved.num_steps,\n",
        new="        steps=resolved.num_draft_tokens - 1,\n",
        expected=("acceptance", "effective"),
        cells=("ngram.s3.k4.n8.ragged",),
        why="paths of an n-gram tree are as long as its node count allows, whatever num_steps is",
    ),
    Fault(
        id="grams-breadth-ignored",
        klass=SILENT,
        origin="rule: topk of an n-gram tree is its breadth",
        within="NgramIndex._place",
        old=" or len(siblings) >= topk or ",
        new=" or ",
        expected=("acceptance",),
        cells=("ngram.s3.k2.n8.p256.c32.burst",),
        why="a node of an n-gram tree has a child for every candidate, whatever topk is",
    ),
    Fault(
        id="block-width-ignored",
        klass=STRIDE,
        origin="rule: a block may be narrower than the one the draft was trained with; sglang#23331",
        within="_dflash",
        old="    return BlockDrafter(context.traits, model, context.pool(model), context.verify_tokens)\n",
        new="    return BlockDrafter(context.traits, model, context.pool(model), 6)\n",
        expected=("acceptance",),
        cells=("dflash.n4.ragged",),
        why="the drafter uses the checkpoint's block size and only reports the configured one",
        also=(Edit("running", "else drafter.nodes,\n", "else min(drafter.nodes, 4),\n"),),
    ),
    Fault(
        id="reserve-a-page-ahead",
        klass="page alignment",
        origin="sglang#31616, sglang#26972",
        within="Ledger._growth",
        old="        more = -(-end // self.page_size) - len(account.pages)\n",
        new="        more = end // self.page_size + 1 - len(account.pages)\n",
        expected=("ledger",),
        cells=(LARGE,),
        why="a step that ends on a page boundary reserves one more page",
    ),
    Fault(
        id="retracted-turn-held",
        klass=LEAK,
        origin="sglang#22862",
        within="Scheduler.kept",
        old="        undone = aborted or request.retracting\n",
        new="        undone = aborted\n",
        expected=("session", "ledger", "effective"),
        cells=(LARGE, "none.v2.p256.tight.pair.stream.length"),
        why="a retracted turn keeps its pages in its session although another request needs them",
    ),
)
