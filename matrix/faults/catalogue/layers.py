"""NEXTN: prediction layers in a chain, or the first one going on by itself. Only the acceptance knows them apart."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

MIXED_UP: Final = "config parsing, weights, draft/target mix-up"
STALE: Final = "stale or un-restored state"
INDEX: Final = "off-by-one length or KV position"
PAIR: Final = "nextn.deepseek.s2.v2.ragged"
TREE: Final = "nextn.deepseek.s3.k4.n8.v2.p16.ragged"

LAYER_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="nextn-pair-swapped",
        klass=MIXED_UP,
        origin="rule: what a head reads is what it was trained on",
        within="PredictionLayer.forward",
        old="        pair = torch.cat((self.norm(word, self.word_norm), self.norm(state, self.state_norm)), 1)\n",
        new="        pair = torch.cat((self.norm(state, self.state_norm), self.norm(word, self.word_norm)), 1)\n",
        expected=("acceptance",),
        cells=(PAIR, TREE),
        why="state and embedding enter the projection in each other's place",
    ),
    Fault(
        id="nextn-layers-reversed",
        klass=MIXED_UP,
        origin="rule: each layer of a draft reads one token further on than the layer before",
        within="_nextn",
        old="    return MultiLayerDrafter(context.traits, layers, pool,",
        new="    return MultiLayerDrafter(context.traits, layers[::-1], pool,",
        expected=("acceptance",),
        cells=(PAIR,),
        why="the last prediction layer drafts the first step",
    ),
    Fault(
        id="nextn-first-layer-for-all",
        klass=MIXED_UP,
        origin="rule: each layer of a draft reads one token further on than the layer before",
        within="_nextn",
        old="    return MultiLayerDrafter(context.traits, layers, pool,",
        new="    return MultiLayerDrafter(context.traits, [first] * count, pool,",
        expected=("acceptance",),
        cells=(PAIR,),
        why="every step of the chain is drafted by the first layer, over one KV",
    ),
    Fault(
        id="nextn-ids-unrotated",
        klass=STALE,
        origin="rule: each layer of a draft reads one token further on than the layer before",
        within="MultiLayerDrafter._extend",
        old="            ids = ids.roll(-1, 1).scatter(1, last, best)\n",
        new="            ids = ids.scatter(1, last, best)\n",
        expected=("acceptance",),
        cells=(PAIR,),
        why="the second layer reads the first one's tokens again, not those that follow",
    ),
    Fault(
        id="nextn-draft-not-fed",
        klass=STALE,
        origin="rule: each layer of a draft reads one token further on than the layer before",
        within="MultiLayerDrafter._extend",
        old="            ids = ids.roll(-1, 1).scatter(1, last, best)\n",
        new="            ids = ids.roll(-1, 1)\n",
        expected=("acceptance",),
        cells=(PAIR,),
        why="the second layer reads what stood behind the last token, not the draft of the first",
    ),
    Fault(
        id="nextn-rebuilt-too-late",
        klass=INDEX,
        origin="rule: each layer of a draft reads one token further on than the layer before",
        within="MultiLayerDrafter._extend",
        old="        behind = kept[:, None] + count(back, tokens.device)\n",
        new="        behind = kept[:, None] + count(back, tokens.device) - 1\n",
        expected=("acceptance",),
        cells=(PAIR,),
        why="the next extend rebuilds a slot with the pair of the position before it",
    ),
    Fault(
        id="nextn-drafted-slots-kept",
        klass=STALE,
        origin="vllm#14649",
        within="MultiLayerDrafter._extend",
        old='            "held": (carried["held"] + kept).clamp(max=back),\n',
        new='            "held": torch.zeros_like(kept),\n',
        expected=("acceptance",),
        cells=("nextn.deepseek.s2.v2.exam",),
        why="slots that rest on drafts are never rebuilt with the tokens that followed",
    ),
    Fault(
        id="nextn-layer-per-step-dropped",
        klass="silent fallback / ignored parameter",
        origin="sglang#33199",
        within="_nextn",
        old="    if not r.enable_multi_layer_eagle:\n",
        new="    if True:\n",
        expected=("effective",),
        cells=(PAIR,),
        why="a chain that was resolved to a layer per step is drafted by the first layer",
    ),
)
