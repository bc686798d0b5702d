"""NEXTN: bundled prediction layers, one applied repeatedly or one per step, draft what their formulas give."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.drafter_harness import Drafting, Proposal, run
from tests.support.random_drafts import DEEPSEEK, deepseek_shapes, random_weights, save
from tests.support.uncached_models import WholeDeepseek

NEW = 20
CONFIG = DEEPSEEK | {
    "vocab_size": 768,
    "hidden_size": 64,
    "num_nextn_predict_layers": 3,
    "max_position_embeddings": 512,
}
PLACES = {
    "v1 p1": {"spec_version": "v1", "page_size": 1},
    "v2 p16 chunked": {"spec_version": "v2", "page_size": 16, "chunked_prefill_size": 7},
    "retracted": {"max_total_tokens": 130, "page_size": 5, "disable_radix_cache": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, zoo) -> Path:
    """A target with three prediction layers, the last with its own embedding and head."""
    shapes = deepseek_shapes(CONFIG)
    last = f"model.layers.{CONFIG['num_hidden_layers'] + 2}."
    shapes |= {f"{last}embed_tokens.weight": (768, 64), f"{last}shared_head.head.weight": (768, 64)}
    made = save(tmp_path_factory.mktemp("deepseek") / "target", CONFIG, random_weights(shapes, 3))
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(zoo("llama-mini") / file, made / file)
    return made


@pytest.fixture(scope="module")
def truth(folder):
    llm = LLM(EngineConfig(str(folder), context_length=256, max_total_tokens=1024))
    prompts = [llm.tokenizer.encode(text) for text in ("Question: A garden is 19 feet long.", "Eli had 75 keys")]
    outs = llm.generate(prompts, SamplingParams(max_new_tokens=NEW + 12, ignore_eos=True))
    return [(prompt, [*prompt, *out.output_ids]) for prompt, out in zip(prompts, outs, strict=True)]


def start_engine(folder: Path, steps: int, topk: int, nodes: int, **more: object) -> LLM:
    asked = {"context_length": 256, "max_total_tokens": 1024, "strict_memory": 2} | more
    return LLM(EngineConfig(str(folder), "NEXTN", None, steps, topk, nodes, **asked))


def check_layers(folder: Path, proposals: list[Proposal], tokens: list[int], steps: int) -> None:
    """Layer m over all positions: token p + 1 + m, drafts where the text ends, and the states of layer m - 1."""
    whole = WholeDeepseek(folder)
    final, layers = whole.final(tokens), [whole.prediction(i) for i in range(steps)]
    for proposal in proposals:
        start, drafts = proposal.start, proposal.tokens[1:]
        states = final[:start]
        for m, layer in enumerate(layers):
            states = layer.run(torch.tensor([*tokens[1 : start + 1], *drafts][m : m + start]), list(states))
            logits = layer.logits(states[-1])
            assert logits.max() - logits[drafts[m]] < 1e-3, (proposal, m)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("steps", [2, 3])
def test_a_layer_per_step_is_its_formula(folder, truth, place, steps):
    llm = start_engine(folder, steps, 1, steps + 1, **PLACES[place])
    assert llm.resolved.enable_multi_layer_eagle is llm.readback()["enable_multi_layer_eagle"] is True
    assert llm.loop.executor.drafter.key_span == steps
    copies = 2 if place == "retracted" else 1
    prompts, truths = [p for p, _ in truth] * copies, [t for _, t in truth] * copies
    found = run(llm, prompts, truths, NEW)
    assert (llm.loop.counters.counts["retract.done"] > 0) == (place == "retracted")
    for proposals, tokens in zip(found, truths, strict=True):
        check_layers(folder, proposals, tokens, steps)


def test_layers_of_a_different_checkpoint_may_be_named(folder, truth, tmp_path):
    other = save(tmp_path / "other", CONFIG, random_weights(deepseek_shapes(CONFIG), 9))
    asked = {"context_length": 256, "max_total_tokens": 1024}
    llm = LLM(EngineConfig(str(folder), "NEXTN", str(other), 4, 1, 5, **asked))
    prompt, tokens = truth[0]
    (proposals,) = run(llm, [prompt], [tokens], NEW)
    named, target = WholeDeepseek(other).prediction(0), WholeDeepseek(folder)
    named.embedding, named.head = target.w["model.embed_tokens.weight"], target.w["lm_head.weight"]
    drafting = Drafting(named, tokens, target.final(tokens))
    for proposal in proposals:
        drafting.check_chain(proposal)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_long_cached_prompt_beside_a_long_new_one(folder, steps):
    """The new one's tokens pad the cached one's last token, far past the positions that the models know."""
    llm = start_engine(folder, steps, 1, steps + 1, context_length=512)
    once, fresh = [[(7 * place + salt) % 700 for place in range(440)] for salt in (0, 3)]
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    (before,) = llm.generate([once], params)
    again, _ = llm.generate([once, fresh], params)
    assert again.output_ids == before.output_ids and again.cached_tokens > 400
