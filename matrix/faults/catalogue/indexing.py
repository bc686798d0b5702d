"""Strides, masks and rows: correct values read from the wrong place."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

KLASS: Final = "stride / indexing"
TREE: Final = "eagle3.s3.k4.n8.v2.ragged"

INDEXING_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="bonus-stride",
        klass=KLASS,
        origin="sglang#26866",
        within="DeviceStep._round",
        old="            bonus = verdict.tokens.gather(1, (verdict.count - 1)[:, None])\n",
        new=(
            "            block = torch.arange(len(verdict.count), device=verdict.count.device) * batch.width\n"
            "            at = block + verdict.count - 1\n"
            "            bonus = verdict.tokens.reshape(-1)[at.clamp(max=verdict.tokens.numel() - 1)][:, None]\n"
        ),
        expected=("lossless",),
        cells=(TREE,),
        why="the bonus token is read with stride num_draft_tokens instead of num_steps + 1",
    ),
    Fault(
        id="path-not-compacted",
        klass=KLASS,
        origin="sglang#15360",
        within="DeviceStep._compact",
        old="        self.kv.move(kv, taken)\n",
        new="",
        expected=("lossless", "ledger"),
        cells=(TREE, "standalone.s2.k2.n6.v2.p4.pair"),
        why="the KV of an accepted tree path is not compacted",
    ),
    Fault(
        id="tokens-not-compacted",
        klass=KLASS,
        origin="sglang#15360",
        within="verify",
        old="emit.gather(1, path))",
        new="emit[:, : path.shape[1]])",
        expected=("lossless",),
        cells=(TREE,),
        why="the first nodes' predictions are returned instead of the accepted nodes'",
    ),
    Fault(
        id="siblings-visible",
        klass=KLASS,
        origin="sglang#26866",
        within="DeviceStep._round",
        old="            bias = tree_bias(batch.start, tree.ancestors, batch.reach, self._dtype)\n",
        new=(
            "            seen = torch.ones_like(tree.ancestors).tril()\n"
            "            bias = tree_bias(batch.start, seen, batch.reach, self._dtype)\n"
        ),
        expected=("lossless",),
        cells=(TREE,),
        why="a tree node attends to its earlier siblings as if they were ancestors",
    ),
    Fault(
        id="tree-positions-dense",
        klass="off-by-one length or KV position",
        origin="rule: positions of a flattened tree",
        within="DeviceStep._round",
        old="        positions = batch.start[:, None] + tree.depths\n",
        new="        positions = batch.start[:, None] + count(batch.width, tree.depths.device)\n",
        expected=("lossless",),
        cells=(TREE,),
        why="a node's position is its index in the tree instead of its depth",
    ),
    Fault(
        id="logprob-row",
        klass="logprob",
        origin="sglang#21589, sglang#14046",
        within="DeviceStep._round",
        old="            if plan.logprobs >= 0:\n",
        new="            if plan.logprobs >= 0 and not batch.width:\n",
        expected=("distribution",),
        cells=("eagle3.s3.k4.n8.v2.p16.ragged.temperature", "eagle3.s3.k4.n8.v2.pair.temperature"),
        why="log-probabilities are read from the tree's first nodes instead of the accepted path",
    ),
    Fault(
        id="neighbour-state",
        klass=KLASS,
        origin="sglang#2730",
        within="AutoregressiveDrafter._extend",
        old="        last = out.gather(1, (kept - 1)[:, None, None].expand(-1, 1, out.shape[2]))\n",
        new="        last = out[:1].expand_as(out).gather(1, (kept - 1)[:, None, None].expand(-1, 1, out.shape[2]))\n",
        expected=("acceptance",),
        cells=("eagle3.s5.v2.p4.ragged",),
        why="every request drafts from the first request's hidden states",
    ),
    Fault(
        id="prefix-table-stale",
        klass="stale or un-restored state",
        origin="sglang#18647, sglang#18803",
        within="Scheduler._chunk",
        old="        before = 0 if admitted else len(account.pages)\n",
        new="        before = len(account.pages)\n",
        expected=("lossless", "ledger"),
        cells=(
            "none.v2.p4.c7.m4.burst",
            "standalone.s1.k1.v1.p4.c32.m4.burst",
        ),
        why="the pages of a prefix hit are not written to the page table, so the row reads another request's slots",
    ),
    Fault(
        id="draft-table-without-branches",
        klass=KLASS,
        origin="sglang#27338, sglang#27460",
        within="AutoregressiveDrafter._draft_attention",
        old="        return DraftAttention(self.pool, batch.slots[:, :reach], bias, scratch)\n",
        new=(
            "        slots = batch.slots[:, :reach].clone()\n"
            "        slots[48 // self.topk :] = 0\n"
            "        return DraftAttention(self.pool, slots, bias, scratch)\n"
        ),
        expected=("acceptance",),
        cells=("eagle3.s3.k4.n8.v2.p16.waves.length",),
        why="the draft page table is sized for 48 chains without branches, so a large batch of trees reads slot 0",
    ),
    Fault(
        id="compiled-mask-of-the-root",
        klass=KLASS,
        origin="rule: each query has a row of the mask",
        within="_attend",
        old="        slots, mask = read[r // width], bias[r // width, 0, r % width]\n",
        new="        slots, mask = read[r // width], bias[r // width, 0, 0]\n",
        expected=("lossless",),
        cells=(TREE,),
        why="every node of a tree attends to what its root sees",
    ),
    Fault(
        id="compiled-fourth-row",
        klass=KLASS,
        origin="rule: a row's bits do not depend on the rows that share its loads",
        within="_product",
        old="                out3[j] = out3[j] + x3[k] * a + x3[k + 1] * b + x3[k + 2] * c + x3[k + 3] * d\n",
        new="                out3[j] = out3[j] + x3[k] * a + x3[k + 1] * b + x3[k + 2] * c + x2[k + 3] * d\n",
        expected=("lossless",),
        cells=(TREE,),
        why="one factor in four of every fourth row is the row's before it",
    ),
    Fault(
        id="compiled-heads-interleaved",
        klass=KLASS,
        origin="rule: query head h reads key head h // (heads / kv_heads)",
        within="_attend",
        old="            at = head // group * dim\n",
        new="            at = head % kv_heads * dim\n",
        expected=("lossless",),
        cells=("none.v2.p4.c7.ragged.mixed",),
        why="query heads are assigned to key heads in turn; plain decoding does the same, so only the oracle differs",
    ),
)
