"""Drafts with mask tokens at the end of the context, which their masks would pass."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.spec.dflash import ParallelDrafter


@pytest.mark.parametrize("context", (42, 43, 47))
def test_masks_behind_the_context_have_its_last_position(zoo, truth, monkeypatch, caplog, context):
    prompt, tokens = truth[1]
    known, propose = torch.tensor(tokens), ParallelDrafter.propose

    def right(drafter, batch, relay):
        tree = propose(drafter, batch, relay)
        return tree._replace(tokens=known[batch.start[:, None] + tree.depths])

    monkeypatch.setattr(ParallelDrafter, "propose", right)
    place = {"context_length": context, "max_total_tokens": 256, "spec_version": "v2"}
    llm = LLM(EngineConfig(str(zoo("llama-mini")), "STANDALONE", str(zoo("llama-mini-pard")), 7, 1, 8, **place))
    (out,) = llm.generate([prompt], SamplingParams(max_new_tokens=context - len(prompt), ignore_eos=True))
    assert list(out.output_ids) == tokens[len(prompt) : context]
    assert max(out.accept_lengths) == 8 and "was stopped" not in caplog.text
