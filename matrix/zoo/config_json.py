"""config.json of every checkpoint in the zoo, as transformers and the serving engines read it."""

from dataclasses import asdict
from typing import Any

from specmatrix.matrix.zoo.registry import Recipe


def config_of(recipe: Recipe, target: Recipe | None) -> dict[str, Any]:
    """The config.json of a recipe's checkpoint; `target` is a draft's."""
    if recipe.kind == "standalone" and recipe.parallel:
        return {**recipe.config, "pard_token": recipe.mask_id, "spd_type": "pard"}
    return recipe.config if target is None else recipe.config | _draft(recipe, target)


def _draft(recipe: Recipe, target: Recipe) -> dict[str, Any]:
    if recipe.kind == "eagle3":
        own = {"draft_vocab_size": recipe.draft_vocab} if recipe.draft_vocab else {}
        own |= {"ptd_token_id": recipe.mask_id} if recipe.parallel else {}
        return own | {
            "target_hidden_size": target.shape.hidden_size,
            # vLLM's ids name the states, those of SGLang's group the layers whose outputs these are.
            "eagle_aux_hidden_state_layer_ids": [index + 1 for index in recipe.aux_layers],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(recipe.aux_layers), "use_aux_hidden_state": True},
        }
    if recipe.kind == "dflash":
        parts = {} if recipe.dflash2 is None else asdict(recipe.dflash2)
        return {
            "block_size": recipe.block,
            "num_target_layers": target.shape.num_hidden_layers,
            "dflash_config": {"mask_token_id": recipe.mask_id, "target_layer_ids": list(recipe.aux_layers)} | parts,
        }
    if recipe.heads is not None:
        return {
            "block_size": recipe.block - 1,
            "num_target_layers": target.shape.num_hidden_layers,
            "mask_token_id": recipe.mask_id,
            "target_layer_ids": list(recipe.aux_layers),
            "markov_head_type": recipe.heads.kind,
            "markov_rank": recipe.heads.rank,
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "sample_from_anchor": recipe.heads.from_anchor,
        }
    return {}
