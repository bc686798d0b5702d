"""Which rounds of a text are compared with naive drafts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specmatrix.matrix.oracles.naive_rounds import NaiveCheck, naive_check

# Chains of two drafts of token 0, all accepted in a text of zeros: three tokens in each round.
SHAPES, LENGTHS, PROMPT = [(2, 1, 3)] * 4, [3] * 4, [0, 0]


class Zeros:
    """Proposes token 0 of 32 everywhere."""

    def of(self, algorithm: str, shape: object, tokens: Sequence[int]) -> Zeros:
        return self

    def after(self, known: int, paths: Sequence[tuple[int, ...]], fed: object) -> tuple[Tensor, Tensor]:
        logits = torch.zeros(len(paths), 32)
        logits[:, 0] = 9.0
        return torch.zeros(len(paths), 1), logits

    def to_target(self, index: int) -> int:
        return index


def check(output: Sequence[int], lengths: Sequence[int] = LENGTHS, among: range = range(9)) -> NaiveCheck:
    return naive_check("llama-mini", "EAGLE3", SHAPES, PROMPT, output, lengths, among, lambda target: Zeros())


@pytest.mark.parametrize("size", range(1, 15))
def test_a_round_whose_path_may_go_on_past_the_end_is_not_compared(size: int):
    rounds = min(4, (size - 1) // 3)
    assert check([0] * size) == NaiveCheck(rounds, None, rounds and 3 * rounds - 1)


@pytest.mark.parametrize(
    ("output", "lengths", "among", "found"),
    [
        ([0] * 20, [3, 2, 3, 3], range(9), NaiveCheck(2, 1, len(PROMPT) + 3)),
        ([0, 0, 7] + [0] * 20, LENGTHS, range(9), NaiveCheck(1, 0, len(PROMPT))),  # its second draft is refused
        ([0] * 20, [3, 2, 3, 3], range(0, 4, 2), NaiveCheck(2, None, 7)),
        ([0] * 20, [3, 2, 3, 3], range(1, 4, 2), NaiveCheck(1, 1, len(PROMPT) + 3)),
    ],
)
def test_the_first_chosen_round_of_another_length_is_named(output, lengths, among, found):
    assert check(output, lengths, among) == found
