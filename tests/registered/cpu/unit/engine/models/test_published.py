"""Checkpoints in the exact layout of the published ones: logits are transformers', and every pair drafts for real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.models.loader import load_target
from specmatrix.matrix.zoo.published.pairs import PAIRS
from tests.support.published_layouts import TARGETS, writer

BOUND = 1e-4  # float32, largest absolute difference of a logit
TOKENS = torch.randint(2, 768, (2, 40), generator=torch.Generator().manual_seed(1))
PROMPTS = ["Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:", "A farmer has 12 cows."]
LENGTH = 12


@pytest.fixture(scope="module", autouse=True)
def silent():
    """transformers warns of prediction layers that it does not run."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folder of a small checkpoint like the published one, by name; each is written once."""
    return writer(tmp_path_factory.mktemp("published"))


def theirs(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", [*TARGETS, "deepseek-v3"])
@torch.inference_mode()
def test_logits_are_those_of_transformers(published, paged, name):
    folder = published(name)
    expected = theirs(folder)(TOKENS).logits
    ours = paged(load_target(folder, "cpu", torch.float32), 2, 40)
    parts = [ours.run(TOKENS[:, :29], [0, 0]), ours.run(TOKENS[:, 29:30], [29, 29]), ours.run(TOKENS[:, 30:], [30, 30])]
    assert expected.abs().max() > 1.0
    assert (torch.cat(parts, 1) - expected).abs().max() < BOUND


@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_generates_what_transformers_generates(published, name):
    """With drafts of random weights: most are refused, so that their KV and states are rolled back all the time."""
    pair = PAIRS[name]
    small = {"device": "cpu", "dtype": "float32", "context_length": 256, "max_total_tokens": 512, "strict_memory": 2}
    width = {"speculative_num_draft_tokens": 5} if pair.algorithm == "DFLASH" else {}
    llm = LLM(replace(pair.config, **small, **width), published)
    outputs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=LENGTH, ignore_eos=True))
    model = theirs(published(pair.target))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = llm.tokenizer.encode(prompt)
        start = len(ids)
        with torch.inference_mode():
            for _ in range(LENGTH):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert list(output.output_ids) == ids[start:]
    assert llm.readback()["algorithm"] == pair.algorithm
    assert pair.algorithm == "NGRAM" or llm.counters["spec.drafted"] > 0
