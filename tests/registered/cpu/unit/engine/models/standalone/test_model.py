"""The standalone draft: a Llama behind the surface of a draft."""

from __future__ import annotations

import torch

from specmatrix.engine.models.loader import load_standalone, load_target

TOKENS = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def test_it_is_the_llama_of_its_checkpoint(llama_folder, paged):
    target = load_target(llama_folder(), "cpu", torch.float32)
    folder = llama_folder("draft", hidden_size=32, num_hidden_layers=2)
    draft = load_standalone(folder, target)
    alone = load_target(folder, "cpu", torch.float32)
    driver = paged(draft, 2, 9)
    attend = driver.attend([0, 1], [0, 0], torch.ones(9, 9).tril().bool())
    out = draft.forward(TOKENS, torch.arange(9).expand(2, 9), None, attend)
    assert torch.equal(draft.logits(out), paged(alone, 2, 9).run(TOKENS, [0, 0]))
    assert draft.to_target(TOKENS) is TOKENS
    assert (draft.carry_width, draft.aux_layers, draft.kv.layers) == (0, (), 2)


def test_its_positions_reach_as_far_as_the_targets(llama_folder):
    target = load_target(llama_folder(), "cpu", torch.float32, positions=300)
    folder = llama_folder("draft", max_position_embeddings=64)
    draft = load_standalone(folder, target)
    assert len(draft.model.rotations) == 300
