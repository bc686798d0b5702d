"""What drafters share: the token that follows each token of a chunk."""

from __future__ import annotations

import torch

from specmatrix.engine.spec.drafter import shift_left


def test_a_prompt_chunk_is_followed_by_its_next_token_or_the_sampled_one():
    tokens = torch.tensor([[5, 6, 7], [8, 9, 0]])
    # The first chunk goes on with token 0, the second ends its prompt after two tokens.
    found = shift_left(tokens, torch.tensor([3, 2]), torch.tensor([3, 4]), torch.tensor([0, -1]))
    assert found[0].tolist() == [6, 7, 0] and found[1, :2].tolist() == [9, 4]
