"""Four ranks over NCCL, each on its own GPU; one that dies, hangs or raises in a collective ends all."""

from __future__ import annotations

import pytest

from tests.support.gpu_ranks import LOSSES, check_homes, check_loss, check_raise, check_sums, check_tokens, spare_ends

SIZE = 4
spare_ends = pytest.fixture(scope="module", autouse=True)(spare_ends)


def test_ranks_hold_their_tensors_on_their_own_gpus():
    check_homes(SIZE)


def test_sums_through_the_ranks_memory_have_the_bits_of_sums_of_gathered_parts():
    check_sums(SIZE)


def test_four_gpus_generate_what_one_generates():
    check_tokens(SIZE)


@LOSSES
def test_a_rank_that_is_lost_within_a_round_is_named_and_ends_all(leaves, version, how):
    check_loss(SIZE, leaves, version, how)


def test_what_one_rank_raises_within_a_round_ends_all():
    check_raise(SIZE)
