"""Block drafting (DFLASH): the block's rows, mask tokens and attention, and its context KV."""

from typing import Final

from specmatrix.matrix.faults.fault import Fault

OFF_BY_ONE: Final = "off-by-one length or KV position"
CELL: Final = "dflash.pair"

BLOCK_FAULTS: Final[tuple[Fault, ...]] = (
    Fault(
        id="block-rows-shifted",
        klass=OFF_BY_ONE,
        origin="rule: position 0 of a block is the bonus token",
        within="BlockDrafter.propose",
        old="        drafts = self.model.logits(out[:, 1:]).argmax(-1)\n",
        new="        drafts = self.model.logits(out[:, :-1]).argmax(-1)\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="each mask position's token is read one row too early",
    ),
    Fault(
        id="block-context-late",
        klass=OFF_BY_ONE,
        origin="rule: draft slot p holds the state of position p, unshifted",
        within="BlockDrafter._keep",
        old="self.model.context(aux, batch.positions)",
        new="self.model.context(aux, batch.positions + 1)",
        expected=("acceptance",),
        cells=(CELL,),
        why="RoPE places the context one position too late, as for EAGLE's (token, state) pairs",
    ),
    Fault(
        id="block-context-unwritten",
        klass="prefix-cache semantics under EAGLE",
        origin="vllm#3951, sglang#19897",
        within="BlockDrafter.absorb",
        old="overwrites before it is read.\n        self._keep(batch, aux)\n",
        new="overwrites before it is read.\n        return None\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="accepted tokens are never written to the draft KV",
    ),
    Fault(
        id="block-masks-wrong",
        klass="config parsing, weights, draft/target mix-up",
        origin="rule: positions 1..B-1 hold the checkpoint's mask token",
        within="_mask_token",
        old="    mask = config.draft.mask_token\n",
        new="    mask = config.draft.mask_token + 1\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="the masked positions of a block hold an ordinary token instead of the mask token",
    ),
    Fault(
        id="block-causal",
        klass="silent fallback / ignored parameter",
        origin="rule: one non-causal forward",
        within="BlockDrafter.propose",
        old="        attend.begin(0, everything)\n",
        new="        attend.begin(0, everything.tril())\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="a block position does not attend to the later positions of its block",
    ),
    Fault(
        id="block-prefix-one-short",
        klass=OFF_BY_ONE,
        origin="rule: the block attends to every committed position",
        within="BlockDrafter.propose",
        old="        bias = prefix_bias(batch.start, reach, self.pool.data.dtype)\n",
        new="        bias = prefix_bias(batch.start - 1, reach, self.pool.data.dtype)\n",
        expected=("acceptance",),
        cells=(CELL,),
        why="a block does not attend to the last committed position",
    ),
    Fault(
        id="block-context-unprojected-keys",
        klass="config parsing, weights, draft/target mix-up",
        origin="vllm#14464",
        within="DFlash.context",
        old="        self.head_norm.each(keys, self.key_norm)\n",
        new="",
        expected=("acceptance",),
        cells=(CELL,),
        why="the context's keys skip the norm that the block's keys get",
    ),
)
