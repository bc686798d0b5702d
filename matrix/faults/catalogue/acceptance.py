"""Faults that make drafts worse. The output stays correct; only acceptance is lower."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

STATE: Final = "stale or un-restored state"

ACCEPTANCE_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="draft-positions-end-early",
        klass="off-by-one length or KV position",
        origin="rule: drafts get no worse behind a position; users report right text without acceptance",
        within="AutoregressiveDrafter._chain",
        old="(batch.start + step)[:, None], hidden, attend)",
        new="(batch.start + step).clamp(max=160)[:, None], hidden, attend)",
        expected=("acceptance",),
        cells=("standalone.s5.v2.ctx.pair.length",),
        why="drafts behind position 160 have the position 160",
    ),
    Fault(
        id="draft-tree-positions-end-early",
        klass="off-by-one length or KV position",
        origin="rule: drafts get no worse behind a position; users report right text without acceptance",
        within="AutoregressiveDrafter._tree",
        old="            positions = (batch.start + step)[:, None].expand",
        new="            positions = (batch.start + step).clamp(max=160)[:, None].expand",
        expected=("acceptance",),
        cells=("eagle3.s3.k4.n8.v2.p16.ctx.pair.stream.length", "eagle3.s3.k4.n8.v1.p4.ctx.pair.length"),
        why="a tree's drafts behind position 160 have the position 160, also in a session's last turn",
    ),
    Fault(
        id="draft-position-high",
        klass="off-by-one length or KV position",
        origin="sglang#25015",
        within="AutoregressiveDrafter._chain",
        old="            hidden = self.model.forward(tokens[-1], (batch.start + step)[:, None], hidden, attend)\n",
        new="            hidden = self.model.forward(tokens[-1], (batch.start + step + 1)[:, None], hidden, attend)\n",
        expected=("acceptance",),
        cells=(
            "eagle3.s5.v2.p4.ragged",
            "standalone.ragged",
        ),
        why="draft positions advance before the forward instead of after it",
    ),
    Fault(
        id="chunk-tail-sampled",
        klass=STATE,
        origin="sglang#26329",
        within="shift_left",
        old="    tail = torch.where(following < 0, sampled, following)\n",
        new="    tail = sampled\n",
        expected=("acceptance",),
        cells=("standalone.s5.k1.n6.sync.p16.c7.ragged",),
        why="the last pair of a prefill chunk holds the sampled token instead of the prompt's next token",
    ),
    Fault(
        id="aux-not-gathered",
        klass="stride / indexing",
        origin="sglang#26997, sglang#9976",
        within="DeviceStep._round",
        old="aux.gather(1, verdict.path[:, :, None].expand(-1, -1, aux.shape[2]))\n",
        new="aux[:, : verdict.path.shape[1]]\n",
        expected=("acceptance",),
        cells=("eagle3.s3.k4.n8.v2.ragged",),
        why="the drafter absorbs the hidden states of the tree's first nodes instead of the accepted path's",
    ),
    Fault(
        id="unigram-keys",
        klass="prefix-cache semantics under EAGLE",
        origin="sglang#10846",
        within="build",
        old="PrefixCache(ledger, drafter.key_span, resolved.radix_cache)",
        new="PrefixCache(ledger, 0, resolved.radix_cache)",
        expected=("acceptance",),
        cells=(
            "eagle3.s5.v2.m4.burst",
            "standalone.s1.k1.v1.p4.c32.m4.burst",
        ),
        why="cached pages are keyed by their own tokens, although draft KV also depends on the token after them",
    ),
    Fault(
        id="draft-map-ignored",
        klass="config parsing, weights, draft/target mix-up",
        origin="vllm#53017",
        within="Eagle3.to_target",
        old="        return self.id_map.index_select(0, ids.reshape(-1)).view(ids.shape)\n",
        new="        return ids\n",
        expected=("acceptance",),
        cells=("eagle3.s5.v2.p4.ragged",),
        why="ids of the draft vocabulary are used as target ids",
    ),
    Fault(
        id="draft-norm-dropped",
        klass="config parsing, weights, draft/target mix-up",
        origin="vllm#14464",
        within="Eagle3.forward",
        old="        normed = self.first.front(x)\n",
        new="        normed = x\n",
        expected=("acceptance",),
        cells=("eagle3.s5.v2.p4.ragged",),
        why="the fused states enter the draft layer without their norm",
    ),
    Fault(
        id="draft-kv-frozen",
        klass="prefix-cache semantics under EAGLE",
        origin="vllm#14649, sglang#19897",
        within="AutoregressiveDrafter.absorb",
        old="        return self._extend(batch, verdict.tokens, aux, verdict.count)\n",
        new=(
            "        kept = self.pool.data.clone()\n"
            "        state = self._extend(batch, verdict.tokens, aux, verdict.count)\n"
            "        self.pool.data.copy_(kept)\n"
            "        return state\n"
        ),
        expected=("acceptance",),
        cells=("standalone.pair",),
        why="draft KV of accepted tokens is never written",
    ),
    Fault(
        id="acceptance-inflated",
        klass="metric misreport",
        origin="sglang#18483",
        within="SpecMetrics.count",
        old="        self.lengths.append(accepted)\n",
        new="        self.lengths.append(accepted + 1)\n",
        expected=("finish", "acceptance"),
        cells=("eagle3.s5.v2.p4.ragged",),
        why="each round reports one token too many",
    ),
    Fault(
        id="pair-keys-for-two-layers",
        klass="prefix-cache semantics under EAGLE",
        origin="sglang#10846",
        within="MultiLayerDrafter.__init__",
        old="        self.steps = self.key_span = len(layers)\n",
        new="        self.steps, self.key_span = len(layers), 1\n",
        expected=("ledger",),
        cells=("nextn.deepseek.s2.v2.m4.burst",),
        why="pages are keyed by one token past their end, although the second layer's draft KV depends on two",
    ),
)
