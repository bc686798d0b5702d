"""The model facts that configuration resolution needs, from the zoo's recipes, without checkpoints or torch."""

from functools import cache

from specmatrix.engine.core.config.asked import DraftFacts, Facts
from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.zoo.layouts import architecture_of
from specmatrix.matrix.zoo.recipes import RECIPES, LatentShape, ModelShape, Recipe


def zoo_facts(cell: Cell) -> Facts:
    """The facts of a cell's target and draft, on a CPU."""
    return model_facts(cell.target, cell.draft)


@cache
def model_facts(target: str, draft: str | None = None) -> Facts:
    """The facts of a zoo target and its draft, on a CPU.

    All zoo models share one tokenizer, so no tokenizer hash is given.
    """
    recipe = RECIPES[target]
    shape = recipe.shape
    return Facts(
        architecture=architecture_of(recipe),
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        context_length=shape.max_positions,
        draft=None if draft is None else _draft(RECIPES[draft], recipe),
        window=shape.window if isinstance(shape, ModelShape) and shape.sliding else None,
        bundled=_bundled(shape) if isinstance(shape, LatentShape) and shape.bundled else None,
        heads=shape.heads,
        kv_heads=shape.kv_heads if isinstance(shape, ModelShape) else 1,
        widths=(shape.intermediate, *((shape.expert_intermediate,) if isinstance(shape, LatentShape) else ())),
    )


def _bundled(shape: LatentShape) -> DraftFacts:
    return DraftFacts(
        architecture="DeepseekV3ForCausalLMNextN",
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        target_hidden_size=shape.hidden,
        aux_layers=(FINAL,),
        prediction_layers=shape.bundled,
    )


def _draft(draft: Recipe, target: Recipe) -> DraftFacts:
    reads = draft.kind in ("eagle", "eagle3", "dflash")
    block = draft.kind == "dflash"
    return DraftFacts(
        architecture=architecture_of(draft),
        vocab_size=draft.shape.vocab,
        hidden_size=draft.shape.hidden,
        target_hidden_size=target.shape.hidden if reads else None,
        draft_vocab_size=draft.draft_vocab or draft.shape.vocab if reads else None,
        aux_layers=_states(draft, target) if reads else (),
        block_size=draft.block if block else None,
        mask_token=draft.mask_id if block else None,
    )


def _states(draft: Recipe, target: Recipe) -> tuple[int, ...]:
    """A recipe names the layers whose outputs are captured, which are the inputs of the following layers."""
    states = tuple(index + 1 for index in draft.aux_layers) or (FINAL,)
    last = target.shape.layers if draft.kind == "dflash" else None
    return tuple(FINAL if state == last else state for state in states)
