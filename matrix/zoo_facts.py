"""What the zoo's configurations say, as a constant: resolving a cell needs no checkpoint and no torch."""

from dataclasses import replace
from typing import Final

from engine.core.config import DraftFacts, Facts

TARGET_FACTS: Final = Facts(
    architecture="LlamaForCausalLM",
    vocab_size=768,
    hidden_size=128,
    num_layers=4,
    context_length=4096,
    tokenizer_hash="llama-mini",
    device_kind="cpu",
    gpus=0,
)
DRAFT_FACTS: Final = {
    "standalone": DraftFacts(
        architecture="LlamaForCausalLM", vocab_size=768, hidden_size=64, tokenizer_hash="llama-mini"
    ),
    "eagle3": DraftFacts(
        architecture="LlamaForCausalLMEagle3",
        vocab_size=768,
        hidden_size=96,
        target_hidden_size=128,
        draft_vocab_size=320,
        tokenizer_hash="llama-mini",
        aux_layers=(0, 1, 2),
    ),
}


def zoo_facts(algorithm: str) -> Facts:
    """The facts of llama-mini with the draft of an axis value of `algorithm`, on a CPU."""
    return replace(TARGET_FACTS, draft=DRAFT_FACTS.get(algorithm))
