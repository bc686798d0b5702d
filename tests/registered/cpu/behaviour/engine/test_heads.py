"""Drafts: the engine's, paged, chunked, cached and compacted, equal those of the formulas."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.draft.algorithms import FINAL
from tests.support.drafter_harness import Drafting, Puppet, paths, run
from tests.support.random_drafts import eagle3_shapes, eagle_shapes, llama_shapes, random_weights, save
from tests.support.uncached_models import WholeEagle, WholeEagle3, WholeLlama

NEW = 24
SHAPE: dict[str, Any] = {
    "vocab_size": 768,
    "intermediate_size": 80,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
}
EAGLE = SHAPE | {"architectures": ["LlamaForCausalLMEagle"], "hidden_size": 128}
EAGLE3 = SHAPE | {"architectures": ["LlamaForCausalLMEagle3"], "target_hidden_size": 128}
# name -> (algorithm, config.json, states that are read)
KINDS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "eagle": ("EAGLE", EAGLE | {"num_hidden_layers": 1}, (FINAL,)),
    "eagle3": (
        "EAGLE3",
        EAGLE3
        | {"hidden_size": 72, "draft_vocab_size": 300, "num_hidden_layers": 3}
        | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}},
        (1, 3, 4),
    ),
    "p-eagle": (
        "EAGLE3",
        EAGLE3
        | {"hidden_size": 72, "draft_vocab_size": 300, "num_hidden_layers": 2, "ptd_token_id": 767}
        | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]}},
        (1, 3, 4),
    ),
    "pard": (
        "STANDALONE",
        SHAPE | {"architectures": ["LlamaForCausalLM"], "hidden_size": 60, "num_hidden_layers": 2, "pard_token": 0},
        (),
    ),
}
TREES = ("eagle", "eagle3")
CHAIN, TREE = (4, 1, 5), (3, 3, 8)
PLACES = {
    "v1 p1": {"spec_version": "v1", "page_size": 1},
    "v2 p16 chunked": {"spec_version": "v2", "page_size": 16, "chunked_prefill_size": 7},
    "v2 p5": {"spec_version": "v2", "page_size": 5},
}


@pytest.fixture(scope="module")
def drafts(zoo, tmp_path_factory):
    """The folder of each kind's random draft."""
    made = {}
    for seed, (name, (algorithm, config, states)) in enumerate(KINDS.items()):
        shapes = {"EAGLE": eagle_shapes, "STANDALONE": llama_shapes}.get(
            algorithm, partial(eagle3_shapes, states=len(states))
        )(config)
        shapes |= {"mask_hidden": (1, 1, len(states) * 128)} if "ptd_token_id" in config else {}
        weights = random_weights(shapes, seed)
        if algorithm == "EAGLE3":
            ids = torch.randperm(768, generator=torch.Generator().manual_seed(seed))[:300].sort().values
            weights["d2t"] = ids - torch.arange(300)
        made[name] = save(tmp_path_factory.mktemp("drafts") / name, config, weights)
        shutil.copy(zoo("llama-mini") / "tokenizer.json", made[name])
    return made


def start_engine(zoo, drafts, kind: str, shape: tuple[int, int, int], place: str) -> LLM:
    sizes = {"context_length": 256, "max_total_tokens": 1024, "strict_memory": 2} | PLACES[place]
    return LLM(EngineConfig(str(zoo("llama-mini")), KINDS[kind][0], str(drafts[kind]), *shape, **sizes))


def oracle(zoo, folder: Path, kind: str, tokens: list[int]) -> Drafting:
    target = WholeLlama(zoo("llama-mini"))
    algorithm, config, states = KINDS[kind]
    if algorithm == "STANDALONE":
        return Drafting(WholeLlama(folder), tokens, torch.zeros(len(tokens), 0), (config["pard_token"], torch.zeros(0)))
    model = (WholeEagle if algorithm == "EAGLE" else WholeEagle3)(folder, target.embedding, target.head)
    masks = (config["ptd_token_id"], model.w["mask_hidden"].flatten()) if "ptd_token_id" in config else None
    return Drafting(model, tokens, target.states(tokens, states), masks)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_is_its_formulas(zoo, drafts, truth, kind, place):
    llm = start_engine(zoo, drafts, kind, CHAIN, place)
    prompts, truths = [p for p, _ in truth], [t for _, t in truth]
    for proposals, tokens in zip(run(llm, prompts, truths, NEW), truths, strict=True):
        drafting = oracle(zoo, drafts[kind], kind, tokens)
        assert len({p.right for p in proposals}) > 2, "several accepted lengths"
        for proposal in proposals:
            drafting.check_chain(proposal)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TREES)
def test_a_tree_is_its_formulas_after_compaction(zoo, drafts, truth, kind, place):
    llm = start_engine(zoo, drafts, kind, TREE, place)
    prompt, tokens = truth[1]
    (proposals,) = run(llm, [prompt], [tokens], NEW)
    assert llm.loop.counters.counts["tree.compacted"] > 0
    drafting = oracle(zoo, drafts[kind], kind, tokens)
    for proposal in proposals[::2]:
        assert paths(proposal) == drafting.best(proposal.start, *TREE)


@pytest.mark.parametrize("kind", ["p-eagle", "pard"])
def test_a_step_runs_one_forward_of_a_parallel_draft(zoo, drafts, truth, monkeypatch, kind):
    llm = start_engine(zoo, drafts, kind, CHAIN, "v1 p1")
    assert llm.resolved.parallel_drafting is llm.readback()["parallel_drafting"] is True
    model, shapes = llm.loop.executor.drafter.model, []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda tokens, *given: shapes.append(tokens.shape) or forward(tokens, *given))
    prompt, tokens = truth[1]
    run(llm, [prompt], [tokens], 8)
    masks = CHAIN[0] - 1
    assert shapes[0] == (1, len(prompt) + masks) and set(shapes[1:]) == {(1, CHAIN[2] + masks)}
    assert len(shapes) == 1 + llm.counters["decode.round"] > 2


@pytest.mark.parametrize("context", (42, 43, 47))
def test_masks_behind_the_context_have_its_last_position(zoo, drafts, truth, monkeypatch, caplog, context):
    place = {"context_length": context, "max_total_tokens": 256, "spec_version": "v2"}
    llm = LLM(EngineConfig(str(zoo("llama-mini")), "STANDALONE", str(drafts["pard"]), 7, 1, 8, **place))
    monkeypatch.setattr(Puppet, "right", lambda puppet, number, depth: depth)
    prompt, tokens = truth[1]
    run(llm, [prompt], [tokens], context - len(prompt))
    assert llm.counters["decode.round"] and "was stopped" not in caplog.text
