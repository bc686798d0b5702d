"""A chain of layers, here of EAGLE heads: every layer's slots are exact in the end, whatever was drafted before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.device.pool import KVLayout
from specmatrix.engine.models.eagle.model import Eagle
from specmatrix.engine.models.loader import load_eagle
from specmatrix.engine.spec.builders import BUILDERS
from specmatrix.engine.spec.multilayer import MultiLayerDrafter
from tests.support.drafter_harness import Proposal, run
from tests.support.random_drafts import eagle_shapes, random_weights, save
from tests.support.uncached_models import WholeEagle, WholeLlama

NEW = 24
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle"],
    "vocab_size": 768,
    "hidden_size": 128,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
}
PLACES = {
    "v1 p1": {"spec_version": "v1", "page_size": 1},
    "v2 p16 chunked": {"spec_version": "v2", "page_size": 16, "chunked_prefill_size": 7},
    "v2 p5 chunk of one": {"spec_version": "v2", "page_size": 5, "chunked_prefill_size": 1},
    "chunk of two": {"chunked_prefill_size": 2, "page_size": 3},
    "retracted": {"max_total_tokens": 150, "page_size": 5, "disable_radix_cache": True},
}


class LayerOf:
    """The attention of layer `index`, whatever layer is named."""

    def __init__(self, attend, index) -> None:
        self.attend, self.index = attend, index

    def __call__(self, layer, q, kv) -> Tensor:
        return self.attend(self.index, q, kv)

    def arrays(self, layer):
        return self.attend.arrays(self.index)


@dataclass
class Placed:
    """A head as one layer of several: its KV lies at `index` of the pool."""

    head: Eagle
    index: int

    @property
    def carry_width(self) -> int:
        return self.head.carry_width

    def forward(self, tokens, positions, hidden, attend) -> Tensor:
        return self.head.forward(tokens, positions, hidden, LayerOf(attend, self.index))

    def logits(self, out: Tensor) -> Tensor:
        return self.head.logits(out)


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """Three folders."""
    root = tmp_path_factory.mktemp("heads")
    return [save(root / str(i), CONFIG, random_weights(eagle_shapes(CONFIG), 20 + i)) for i in range(3)]


@pytest.fixture
def start_engine(zoo, heads, monkeypatch):
    """A factory: an engine whose EAGLE is a chain of `steps` heads."""

    def chain(context):
        layers = [load_eagle(f, context.target) for f in heads[: context.resolved.num_steps]]
        pool = context.pool(KVLayout(len(layers), 1, 20))
        placed = [Placed(head, i) for i, head in enumerate(layers)]
        return MultiLayerDrafter(context.traits, placed, pool, layers[0].aux_layers, context.resolved.num_draft_tokens)

    def build(steps: int, **more: object) -> LLM:
        monkeypatch.setitem(BUILDERS, "EAGLE", chain)
        asked = {"context_length": 256, "max_total_tokens": 1024, "strict_memory": 2} | more
        asked |= {"speculative_num_steps": steps, "speculative_eagle_topk": 1}
        return LLM(EngineConfig(str(zoo("llama-mini")), "EAGLE", str(heads[0]), **asked))

    return build


def check(zoo, heads, proposals: list[Proposal], tokens: list[int], steps: int) -> None:
    """Layer m over all positions: token p + 1 + m, drafts where the text ends, and the states of layer m - 1."""
    target = WholeLlama(zoo("llama-mini"))
    whole = [WholeEagle(folder, target.embedding, target.head) for folder in heads[:steps]]
    final = target.states(tokens, (-1,))
    for proposal in proposals:
        start, drafts = proposal.start, proposal.tokens[1:]
        assert len(drafts) == steps
        states = final[:start]
        for m, layer in enumerate(whole):
            ids = [*tokens[1 : start + 1], *drafts][m : m + start]
            states = layer.run(torch.tensor(ids), list(states))
            logits = layer.logits(states[-1])
            assert logits.max() - logits[drafts[m]] < 1e-3, (proposal, m)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("place", PLACES)
def test_a_chain_of_layers_is_its_formulas(zoo, heads, start_engine, truth, place, steps):
    llm = start_engine(steps, **PLACES[place])
    copies = 2 if place == "retracted" else 1
    prompts, truths = [p for p, _ in truth] * copies, [t for _, t in truth] * copies
    found = run(llm, prompts, truths, NEW)
    assert (llm.loop.counters.counts["retract.done"] > 0) == (place == "retracted")
    for proposals, tokens in zip(found, truths, strict=True):
        assert {p.right for p in proposals} == set(range(steps + 1)), "every accepted length"
        check(zoo, heads, proposals, tokens, steps)


@pytest.mark.parametrize("left", [0, 1, 2, 3, 4])
def test_a_cached_prompt_drafts_the_same_however_little_of_it_is_left(zoo, heads, start_engine, truth, left):
    """A page is reused only if all tokens that its slots depend on match, so nothing before it is rebuilt."""
    llm = start_engine(3, page_size=4)
    prompt, tokens = truth[0]
    run(llm, [prompt], [tokens], NEW)
    before, size = llm.loop.counters.counts["prefix.hit"], len(prompt) // 4 * 4 + left
    (proposals,) = run(llm, [tokens[:size]], [tokens], NEW - left)
    assert llm.loop.counters.counts["prefix.hit"] - before == (size - 3) // 4 * 4
    check(zoo, heads, proposals, tokens, 3)


def test_a_row_starts_without_the_state_of_its_previous_request(zoo, heads, start_engine, truth):
    """Rows are reused; the second request must not rebuild its first slots from the first one's tokens."""
    llm = start_engine(3, max_running_requests=1, disable_radix_cache=True)
    for prompt, tokens in truth:
        (proposals,) = run(llm, [prompt], [tokens], NEW)
        check(zoo, heads, proposals, tokens, 3)
