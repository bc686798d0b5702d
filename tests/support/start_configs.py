"""Configurations for tests of rules, and facts: a target of 512 tokens, four layers, 128 wide, and its drafts."""

import pytest

from specmatrix.engine.core.config.asked import DraftFacts, EngineConfig, Facts
from specmatrix.engine.core.config.context import RuleContext
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.table import RULES
from specmatrix.errors import ConfigError

HEAD = DraftFacts(
    "LlamaForCausalLMEagle3",
    vocab_size=512,
    hidden_size=96,
    target_hidden_size=128,
    draft_vocab_size=300,
    tokenizer_hash="t",
    aux_layers=(1, 2, 3),
)
MODEL = DraftFacts("LlamaForCausalLM", vocab_size=512, hidden_size=64, tokenizer_hash="t")


def facts(draft: DraftFacts | None = HEAD, gpus: int = 0, window: int | None = None) -> Facts:
    return Facts("LlamaForCausalLM", 512, 128, 4, 1024, "t", draft, "cuda" if gpus else "cpu", gpus, window)


def eagle3(*sizes: int | str, **asked: object) -> EngineConfig:
    """sizes: steps, topk and draft tokens."""
    return EngineConfig("m", "EAGLE3", "d", *sizes, **asked)


def standalone(**asked: object) -> EngineConfig:
    return EngineConfig("m", "STANDALONE", "d", **asked)


def broken(config: EngineConfig, known: Facts) -> list[str]:
    """The names of the rules that an ask breaks."""
    situation = RuleContext.of(config, known)
    return [row.name for row in RULES if row.broken(situation)]


def refusal(config: EngineConfig, known: Facts) -> tuple[list[str], str]:
    """The names of the rules that an ask breaks, and the sentence that refuses it."""
    with pytest.raises(ConfigError) as caught:
        resolve(config, known)
    return broken(config, known), str(caught.value)
