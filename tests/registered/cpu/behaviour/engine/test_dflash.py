"""DFLASH: the drafts of a block, paged, chunked, cached, retracted and overlapped, equal those of its formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.draft.algorithms import FINAL
from tests.support.drafter_harness import run
from tests.support.random_drafts import dflash_shapes, random_weights, save
from tests.support.uncached_models import WholeDFlash, WholeLlama

NEW, BLOCK = 24, 6
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "vocab_size": 768,
    "hidden_size": 128,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 20,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "max_position_embeddings": 4096,
    "block_size": BLOCK,
    "num_target_layers": 4,
    "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 3]},
}
STATES = (1, FINAL)
PLACES = {
    "v1 p1": {"spec_version": "v1", "page_size": 1},
    "v2 p16 chunked": {"spec_version": "v2", "page_size": 16, "chunked_prefill_size": 7},
    "v1 p5 chunk of one": {"spec_version": "v1", "page_size": 5, "chunked_prefill_size": 1},
    "v2 p64": {"spec_version": "v2", "page_size": 64},
    "narrow": {"speculative_num_draft_tokens": 4, "page_size": 3},
    "retracted": {"max_total_tokens": 150, "page_size": 5, "disable_radix_cache": True},
}


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    weights = random_weights(dflash_shapes(CONFIG, len(STATES), 128), 8)
    return save(tmp_path_factory.mktemp("drafts") / "dflash", CONFIG, weights)


def start_engine(zoo, draft: Path, **more: object) -> LLM:
    asked = {"context_length": 256, "max_total_tokens": 1024, "strict_memory": 2} | more
    return LLM(EngineConfig(str(zoo("llama-mini")), "DFLASH", str(draft), **asked))


def check(zoo, draft: Path, proposals: list, tokens: list[int], width: int) -> None:
    """Every draft is the best token of the whole-sequence block at that position."""
    target = WholeLlama(zoo("llama-mini"))
    states, whole = target.states(tokens, STATES), WholeDFlash(draft, target.embedding, target.head)
    for proposal in proposals:
        assert len(proposal.tokens) == width and proposal.tokens[0] == tokens[proposal.start]
        logits = whole.block(tokens[proposal.start], width, states[: proposal.start])[1:]
        drafted = logits.gather(1, torch.tensor(proposal.tokens[1:])[:, None])[:, 0]
        assert (logits.amax(1) - drafted).max() < 1e-3, proposal


@pytest.mark.parametrize("place", PLACES)
def test_a_block_is_its_formula(zoo, draft, truth, place):
    llm = start_engine(zoo, draft, **PLACES[place])
    width = PLACES[place].get("speculative_num_draft_tokens", BLOCK)
    assert llm.loop.executor.drafter.nodes == width, "the width comes from the checkpoint, at most"
    copies = 2 if place == "retracted" else 1
    prompts, truths = [p for p, _ in truth] * copies, [t for _, t in truth] * copies
    found = run(llm, prompts, truths, NEW)
    assert (llm.loop.counters.counts["retract.done"] > 0) == (place == "retracted")
    for proposals, tokens in zip(found, truths, strict=True):
        assert len({p.right for p in proposals}) > 2, "several accepted lengths"
        check(zoo, draft, proposals, tokens, width)
