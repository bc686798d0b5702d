"""A target whose layers all have a sliding window, as in Mistral: the pool of full-attention layers is empty."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import torch
from transformers import MistralForCausalLM

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.replay import replay
from specmatrix.engine.core.schedule.request import SamplingParams

WINDOW = 24
PROMPTS = [
    "Question: A garden is 19 feet long and 5 feet wide. What is its area in square feet?\nAnswer:",
    "Question: Gus saves $75 a week for 3 weeks. He had $94 before. How much does Gus have now?\nAnswer:",
]
LENGTH = 40
DRAFTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {"speculative_algorithm": "NGRAM", "page_size": 4},
    "standalone": {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": "llama-mini-standalone",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 6,
        "spec_version": "v2",
    },
    "eagle3": {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "llama-mini-eagle3",
        "speculative_num_steps": 4,
        "page_size": 8,
        "chunked_prefill_size": 13,
    },
}


@pytest.fixture(scope="module")
def mistral(zoo, tmp_path_factory):
    """The zoo's Llama with a sliding window of WINDOW tokens in every layer."""
    folder = tmp_path_factory.mktemp("mistral") / "mistral-mini"
    shutil.copytree(zoo("llama-mini"), folder)
    config = json.loads((folder / "config.json").read_text())
    changes = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": WINDOW}
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.fixture(scope="module")
def continuations(mistral):
    """The tokens of transformers' model, computed one by one without a cache."""
    model = MistralForCausalLM.from_pretrained(mistral, dtype=torch.float32).eval()
    tokenizer = LLM(EngineConfig(str(mistral))).tokenizer
    found = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        start = len(ids)
        with torch.inference_mode():
            for _ in range(LENGTH):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        found.append(tuple(ids[start:]))
    return found


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_generates_what_transformers_generates(mistral, zoo, continuations, drafter):
    asked = {"context_length": 256, "max_total_tokens": 700, "strict_memory": 2, "kv_stamps": True}
    llm = LLM(
        EngineConfig("mistral-mini", **asked | DRAFTERS[drafter]),
        lambda name: mistral if name == "mistral-mini" else zoo(name),
    )
    outputs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=LENGTH, ignore_eos=True))
    assert [output.output_ids for output in outputs] == continuations
    readback = llm.readback()
    assert (readback["window"], readback["radix_cache"]) == (WINDOW, False)
    assert llm.counters["window.slid"] > 0 and llm.counters["stamp.wrong"] == 0
    assert (llm.counters.get("spec.drafted", 0) > 0) == (drafter != "none")
    ledger = llm.loop.scheduler.ledger
    assert ledger.counts.free == ledger.counts.pages
    replay(llm.journal)
