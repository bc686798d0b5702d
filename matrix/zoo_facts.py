"""What a launch needs to know of the zoo's models, from their recipes: no checkpoint is read and no torch imported."""

from functools import cache

from engine.core.config import DraftFacts, Facts
from matrix.cell import DRAFTS, TARGET
from matrix.zoo.recipes import RECIPES, Recipe

ARCHITECTURES = {
    "target": "LlamaForCausalLM",
    "standalone": "LlamaForCausalLM",
    "eagle3": "LlamaForCausalLMEagle3",
}


@cache
def zoo_facts(algorithm: str) -> Facts:
    """The facts of llama-mini with the draft of an axis value of `algorithm`, on a CPU.

    The zoo trains its models with one tokenizer, so no tokenizer hash is given.
    """
    target = RECIPES[TARGET]
    draft = RECIPES[DRAFTS[algorithm]] if algorithm in DRAFTS else None
    return Facts(
        architecture=ARCHITECTURES[target.kind],
        vocab_size=target.shape.vocab,
        hidden_size=target.shape.hidden,
        num_layers=target.shape.layers,
        context_length=target.shape.max_positions,
        draft=_draft(draft, target) if draft else None,
    )


def _draft(draft: Recipe, target: Recipe) -> DraftFacts:
    head = draft.kind == "eagle3"
    return DraftFacts(
        architecture=ARCHITECTURES[draft.kind],
        vocab_size=draft.shape.vocab,
        hidden_size=draft.shape.hidden,
        target_hidden_size=target.shape.hidden if head else None,
        draft_vocab_size=draft.draft_vocab if head else None,
        aux_layers=draft.aux_layers,
    )
