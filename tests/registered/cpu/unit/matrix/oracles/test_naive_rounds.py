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
    assert check([0] * size) == NaiveCheck(rounds, None, len(PROMPT) + 3 * (rounds - 1) if rounds else 0)


@pytest.mark.parametrize(
    ("output", "lengths", "found"),
    [
        ([0] * 20, [3, 2, 3, 3], NaiveCheck(2, 1, len(PROMPT) + 3)),
        ([0, 0, 7] + [0] * 20, LENGTHS, NaiveCheck(1, 0, len(PROMPT))),  # its second draft is refused
    ],
)
def test_the_first_round_of_another_length_is_named(output, lengths, found):
    assert check(output, lengths) == found


def test_rounds_that_are_not_chosen_are_passed_over():
    assert check([0] * 20, [3, 2, 3, 3], among=range(0, 4, 2)).place is None
    assert check([0] * 20, [3, 2, 3, 3], among=range(1, 4, 2)) == NaiveCheck(1, 1, len(PROMPT) + 3)
