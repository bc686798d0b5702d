"""The facts of the models on the axes that configuration resolution needs; a test reads them from the checkpoints."""

from dataclasses import replace
from functools import cache
from typing import Final

from specmatrix.engine.core.config.asked import DraftFacts, Facts
from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.matrix.cells.cell import Cell

# All share one vocabulary, and one tokenizer, so no tokenizer hash is given.
VOCABULARY: Final = 768
CONTEXT: Final = 4096
LAYERS: Final = 4


def _hybrid(architecture: str, hidden: int, widths: tuple[int, ...]) -> Facts:
    """The facts of a hybrid of six layers with an MTP head."""
    head = DraftFacts(f"{architecture}NextN", VOCABULARY, hidden, hidden, aux_layers=(FINAL,), prediction_layers=1)
    sizes = VOCABULARY, hidden, 6, CONTEXT
    return Facts(architecture, *sizes, bundled=head, heads=4, kv_heads=2, state_heads=2, widths=widths)


TARGETS: Final[dict[str, Facts]] = {
    "llama-mini": Facts("LlamaForCausalLM", VOCABULARY, 128, LAYERS, CONTEXT, heads=4, kv_heads=2, widths=(384,)),
    "llama-mini-json": Facts("LlamaForCausalLM", VOCABULARY, 128, LAYERS, CONTEXT, heads=4, kv_heads=2, widths=(384,)),
    "qwen3-mini": Facts(
        "Qwen3ForCausalLM", VOCABULARY, 112, LAYERS, CONTEXT, window=48, heads=6, kv_heads=3, widths=(352,)
    ),
    "deepseek-mini": Facts(
        "DeepseekV3ForCausalLM",
        *(VOCABULARY, 96, LAYERS, CONTEXT),
        bundled=DraftFacts("DeepseekV3ForCausalLMNextN", VOCABULARY, 96, 96, aux_layers=(FINAL,), prediction_layers=2),
        heads=4,
        widths=(320, 56),
    ),
    "mistral-mini": Facts(
        "MistralForCausalLM", VOCABULARY, 144, LAYERS, CONTEXT, window=56, heads=6, kv_heads=2, widths=(304,)
    ),
    "qwen3next-mini": _hybrid("Qwen3NextForCausalLM", 96, (192, 36)),
    "qwen35-mini": _hybrid("Qwen3_5ForCausalLM", 112, (224,)),
}
DRAFTS: Final[dict[str, DraftFacts]] = {
    "llama-mini-standalone": DraftFacts("LlamaForCausalLM", VOCABULARY, 64),
    "llama-mini-eagle3": DraftFacts("LlamaForCausalLMEagle3", VOCABULARY, 96, 128, 320, aux_layers=(1, 2, 3)),
    "llama-mini-json-eagle3": DraftFacts("LlamaForCausalLMEagle3", VOCABULARY, 96, 128, 320, aux_layers=(1, 2, 3)),
    "llama-mini-eagle": DraftFacts("LlamaForCausalLMEagle", VOCABULARY, 128, 128, VOCABULARY, aux_layers=(FINAL,)),
    "llama-mini-dflash": DraftFacts(
        "DFlashDraftModel", VOCABULARY, 128, 128, VOCABULARY, aux_layers=(1, 2, 3), block_size=6, mask_token=0
    ),
    "qwen3-mini-standalone": DraftFacts("Qwen3ForCausalLM", VOCABULARY, 72),
    "qwen3-mini-eagle3": DraftFacts("LlamaForCausalLMEagle3", VOCABULARY, 112, 112, VOCABULARY, aux_layers=(1, 3)),
    "qwen35-mini-eagle3": DraftFacts("LlamaForCausalLMEagle3", VOCABULARY, 80, 112, 320, aux_layers=(1, 3, 5)),
}


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
