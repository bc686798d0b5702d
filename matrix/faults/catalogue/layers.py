"""NEXTN: a chain of prediction layers, or the first one applied repeatedly. They differ only in acceptance."""

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
        origin="rule: a head's inputs are in the order that it was trained on",
        within="PredictionLayer.forward",
        old="        pair = torch.cat((self.norm(word, self.word_norm), self.norm(state, self.state_norm)), 1)\n",
        new="        pair = torch.cat((self.norm(state, self.state_norm), self.norm(word, self.word_norm)), 1)\n",
        expected=("acceptance",),
        cells=(PAIR, TREE),
        why="hidden state and embedding are concatenated in the wrong order for the projection",
    ),
    Fault(
        id="nextn-layers-reversed",
        klass=MIXED_UP,
        origin="rule: each draft layer reads tokens shifted by one more than the layer before",
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
        origin="rule: each draft layer reads tokens shifted by one more than the layer before",
        within="_nextn",
        old="    return MultiLayerDrafter(context.traits, layers, pool,",
        new="    return MultiLayerDrafter(context.traits, [first] * count, pool,",
        expected=("acceptance",),
        cells=(PAIR,),
        why="the first layer drafts every step of the chain, with one KV cache",
    ),
    Fault(
        id="nextn-ids-unrotated",
        klass=STALE,
        origin="rule: each draft layer reads tokens shifted by one more than the layer before",
        within="MultiLayerDrafter._extend",
        old="            ids = ids.roll(-1, 1).scatter(1, last, best)\n",
        new="            ids = ids.scatter(1, last, best)\n",
        expected=("acceptance",),
        cells=(PAIR,),
        why="the second layer reads the same tokens as the first, without the shift by one",
    ),
    Fault(
        id="nextn-draft-not-fed",
        klass=STALE,
        origin="rule: each draft layer reads tokens shifted by one more than the layer before",
        within="MultiLayerDrafter._extend",
        old="            ids = ids.roll(-1, 1).scatter(1, last, best)\n",
        new="            ids = ids.roll(-1, 1)\n",
        expected=("acceptance",),
        cells=(PAIR,),
        why="the second layer's last input is a stale token instead of the first layer's draft",
    ),
    Fault(
        id="nextn-rebuilt-too-late",
        klass=INDEX,
        origin="rule: each draft layer reads tokens shifted by one more than the layer before",
        within="MultiLayerDrafter._extend",
        old="        behind = kept[:, None] + count(back, tokens.device)\n",
        new="        behind = kept[:, None] + count(back, tokens.device) - 1\n",
        expected=("acceptance",),
        cells=(PAIR,),
        why="the next extend rebuilds a slot from the (token, state) pair of the position before it",
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
        why="KV slots computed from drafts are never rebuilt from the tokens that were accepted",
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
        why="the configuration resolves to one layer per step, but the first layer drafts the whole chain",
    ),
)
