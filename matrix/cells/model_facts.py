"""The facts of the models on the axes that configuration resolution needs, from their recipes; a test reads them from
the checkpoints."""

from dataclasses import replace
from functools import cache
from typing import Final

from specmatrix.engine.core.config.asked import DraftFacts, Facts
from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.zoo.layouts import architecture_of
from specmatrix.matrix.zoo.recipes import RECIPES, HybridShape, LatentShape, ModelShape, Recipe


def _target(recipe: Recipe) -> Facts:
    shape, name = recipe.shape, architecture_of(recipe)
    widths: tuple[int, ...] = (shape.intermediate,)
    bundled = None
    if not isinstance(shape, ModelShape):
        widths += (shape.expert_intermediate,) if shape.experts else ()
        sizes = shape.vocab, shape.hidden, shape.hidden
        bundled = DraftFacts(f"{name}NextN", *sizes, aux_layers=(FINAL,), prediction_layers=shape.bundled)
    return Facts(
        name,
        *(shape.vocab, shape.hidden, shape.layers, shape.max_positions),
        window=(shape.window or None) if isinstance(shape, ModelShape) else None,
        bundled=bundled,
        heads=shape.heads,
        kv_heads=1 if isinstance(shape, LatentShape) else shape.kv_heads,
        widths=widths,
        recurrent=isinstance(shape, HybridShape),
    )


def _draft(recipe: Recipe) -> DraftFacts:
    shape = recipe.shape
    facts = DraftFacts(architecture_of(recipe), shape.vocab, shape.hidden)
    if recipe.kind == "standalone":
        return facts
    return replace(
        facts,
        target_hidden_size=RECIPES[recipe.target or ""].shape.hidden,
        draft_vocab_size=recipe.draft_vocab or shape.vocab,
        # A state is named by the layer that reads it, the last one's by FINAL.
        aux_layers=tuple(layer + 1 for layer in recipe.aux_layers) or (FINAL,),
        block_size=recipe.block or None,
        mask_token=recipe.mask_id if recipe.block else None,
    )


TARGETS: Final = {name: _target(recipe) for name, recipe in RECIPES.items() if recipe.kind == "target"}
DRAFTS: Final = {name: _draft(recipe) for name, recipe in RECIPES.items() if recipe.kind != "target"}


def zoo_facts(cell: Cell) -> Facts:
    """The facts of a cell's target and draft, on a CPU."""
    return model_facts(cell.target, cell.draft)


@cache
def model_facts(target: str, draft: str | None = None) -> Facts:
    """The facts of a zoo target and its draft, which may be a target too, on a CPU."""
    if draft in TARGETS:
        one = TARGETS[draft]
        return replace(TARGETS[target], draft=DraftFacts(one.architecture, one.vocab_size, one.hidden_size))
    return replace(TARGETS[target], draft=None if draft is None else DRAFTS[draft])
