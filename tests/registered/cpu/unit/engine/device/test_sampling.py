"""Coins, sampling and log-probabilities: distributions, guarantees from the host, independence of the batch."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare, kstest

from specmatrix.engine.device.sampling import SamplingRows, chosen_logprobs, largest, pick, top_logprobs, uniform
from specmatrix.kernels.backend import check_interpreter, interpreted

check_interpreter()

GOLDEN = ["0.652448486374", "0.701212109522", "0.368189515652", "0.020877712128"]


def rows(*given: tuple[float, int, float, int]) -> SamplingRows:
    t, k, p, s = zip(*given, strict=True)
    return SamplingRows(torch.tensor(t), torch.tensor(k), torch.tensor(p), torch.tensor(s))


def test_the_largest_logit_is_that_of_torch_on_a_gpu_too():
    logits = torch.randn(2, 3, 5000, generator=torch.Generator().manual_seed(0))
    logits[0, 1, 4800], logits[0, 2, 7] = float("nan"), float("inf")
    logits[1, 0], logits[1, 1, 9] = float("-inf"), float("-inf")
    with interpreted():
        found = largest(logits)
    torch.testing.assert_close(found, logits.amax(-1), rtol=0, atol=0, equal_nan=True)
    assert found.isfinite().tolist() == [[True, False, False], [False, True, True]]


def test_coins_are_fixed():
    """Golden values: a change of these changes every seeded sample."""
    coins = uniform(torch.tensor([0, 1]), torch.tensor([[0, 1], [0, 2**40]]))
    assert coins.dtype is torch.float64
    assert [f"{c:.12f}" for c in coins.flatten().tolist()] == GOLDEN


def test_coins_look_uniform_and_independent():
    coins = uniform(torch.arange(200), torch.arange(200).expand(200, 200))
    assert coins.min() >= 0
    assert coins.max() < 1
    assert kstest(coins.flatten().numpy(), "uniform").pvalue > 0.01
    assert kstest((coins[:, 1:] + coins[:, :-1]).remainder(1).flatten().numpy(), "uniform").pvalue > 0.01
    assert kstest((coins[1:] + coins[:-1]).remainder(1).flatten().numpy(), "uniform").pvalue > 0.01
    assert coins.flatten().unique().numel() == coins.numel()


@pytest.mark.parametrize("heat", [2.0**-126, 1.0, 2.0**126])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_drawn_token_is_in_the_vocabulary_whatever_the_logits(odd, heat):
    """The token past the last would end the engine at the next step, for every request."""
    logits = torch.randn(4, 3, 9, generator=torch.Generator().manual_seed(1))
    logits[1, :, 2:4] = logits[2] = odd
    tokens = pick(logits, torch.arange(12).view(4, 3), rows(*((heat, k, p, 3) for k, p in ((0, 1.0), (2, 0.5)) * 2)))
    assert bool((tokens >= 0).all() and (tokens < 9).all())


@pytest.mark.parametrize("heat", [2.0**-126, 3e-38, 1e-20])
def test_small_temperatures_are_their_limit(heat):
    logits = 100 * torch.randn(1, 50, 9, generator=torch.Generator().manual_seed(1))
    best, cold = logits.argmax(-1), rows((heat, 0, 1.0, 3))
    assert torch.equal(pick(logits, torch.arange(50)[None], cold), best)
    assert chosen_logprobs(logits, best, cold).eq(0).all() and top_logprobs(logits, 2, cold)[0][0, 0].tolist()[0] == 0


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ((0.5, 0, 1.0, 3), [1, 4, 9, 16]),
        ((1.0, 2, 1.0, 3), [0, 0, 3, 4]),
        ((1.0, 0, 0.6, 3), [0, 0, 3, 4]),
        ((1.0, 3, 0.75, 3), [0, 0, 3, 4]),
        ((1.0, 0, 0.3, 3), [0, 0, 0, 1]),
        ((1.0, 1, 1.0, 3), [0, 0, 0, 1]),
    ],
)
def test_temperature_top_k_and_top_p(row, wanted):
    """p = .1 .2 .3 .4; top-p applies to what top-k left, renormalised."""
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    tokens = pick(p.log().expand(1, 20_000, 4), torch.arange(20_000)[None], rows(row))
    counts = tokens.flatten().bincount(minlength=4).double()
    share = torch.tensor(wanted, dtype=torch.float64) / sum(wanted)
    kept = share > 0
    assert not counts[~kept].any()
    if kept.sum() > 1:
        assert chisquare(counts[kept].numpy(), (share[kept] * 20_000).numpy()).pvalue > 0.01


def test_greedy_takes_the_first_of_equals_whatever_the_promise():
    logits = torch.tensor([[[0.0, 2.0, 2.0, 1.0]]])
    at = torch.zeros(1, 1, dtype=torch.int64)
    assert pick(logits, at, None).tolist() == [[1]]
    assert pick(logits, at, rows((0.0, 0, 1.0, 1))).tolist() == [[1]]


def test_a_mixed_batch_gives_each_row_its_result_alone():
    given = [(0.0, 0, 1.0, 5), (1.0, 0, 1.0, 6), (0.7, 5, 1.0, 7), (1.3, 0, 0.8, 8), (0.9, 9, 0.5, 9)]
    logits = torch.randn(5, 7, 50, generator=torch.Generator().manual_seed(0)) * 2
    at = torch.randint(0, 1000, (5, 7), generator=torch.Generator().manual_seed(1))
    together = pick(logits, at, rows(*given))
    for r, row in enumerate(given):
        one = slice(r, r + 1)
        assert torch.equal(pick(logits[one], at[one], None if row[0] == 0 else rows(row)), together[one])
        for column in range(7):
            cut = (one, slice(column, column + 1))
            assert torch.equal(pick(logits[cut], at[cut], rows(row)), together[cut])


def test_the_promise_of_no_truncation_changes_nothing():
    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0)) * 2
    given = rows((1.0, 0, 1.0, 1), (0.0, 0, 1.0, 2), (0.6, 0, 1.0, 3))
    at = torch.arange(12).view(3, 4)
    assert torch.equal(pick(logits, at, given, truncate=False), pick(logits, at, given))


def test_logprobs():
    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0)) * 2
    tokens = torch.tensor([[0, 8, 4], [3, 3, 3]])
    given = rows((0.0, 1, 0.1, 1), (2.0, 1, 0.1, 1))
    heat = torch.tensor([1.0, 2.0])[:, None, None]
    wanted = torch.log_softmax(logits / heat, -1)
    torch.testing.assert_close(chosen_logprobs(logits, tokens, given), wanted.gather(2, tokens[:, :, None])[:, :, 0])
    values, ids = top_logprobs(logits, 4, given)
    order = wanted.sort(-1, descending=True)
    torch.testing.assert_close(values, order.values[:, :, :4])
    assert torch.equal(ids, order.indices[:, :, :4])
    plain = torch.log_softmax(logits, -1)
    torch.testing.assert_close(chosen_logprobs(logits, tokens), plain.gather(2, tokens[:, :, None])[:, :, 0])
    torch.testing.assert_close(top_logprobs(logits, 2)[0], plain.topk(2).values)
