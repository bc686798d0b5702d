"""Acceptance decided by coins, and adaptive steps compared with static ones."""

from __future__ import annotations

import pytest
import torch

import specmatrix.engine.device_step
from specmatrix.benchmarks import adaptive_load, steady
from specmatrix.benchmarks.acceptance import accepted_by_coins
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.small_bench import small_bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return small_bench(tmp_path_factory.mktemp("bench"))


@pytest.mark.nightly
@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 1.0, 1.0), (0.5, 1.3, 2.5), (1.0, 4.0, 4.0)])
def test_coins_decide_acceptance(bench, share, least, most):
    verify = specmatrix.engine.device_step.verify
    rate = torch.full((), share, dtype=torch.float64)
    with accepted_by_coins(rate), steady.freed(bench.engine(2, bench.chain(3))) as llm:
        outputs = llm.generate(bench.prompts(768, 2), SamplingParams(max_new_tokens=61, ignore_eos=True))
    assert specmatrix.engine.device_step.verify is verify
    first, second = (output.accept_lengths for output in outputs)
    assert first == second
    assert least <= sum(first[:-1]) / len(first[:-1]) <= most


@pytest.mark.nightly
def test_the_load_is_served_by_every_choice(bench, monkeypatch):
    low, high = (1, 8, 0.9), (2, 4, 0.5)
    monkeypatch.setattr(adaptive_load, "PAIRS", 1)
    monkeypatch.setattr(adaptive_load, "HIGH", high)
    phases = {"low": low, "high": high, "low again": low, "high again": high}
    monkeypatch.setattr(adaptive_load, "PHASES", phases)
    with steady.targets_kept():
        found = list(adaptive_load.adaptive_load(bench))
    assert [metric.goal for metric in found] == [0.97] * 4 + [1.03]
    assert all(metric.ratio > 0 and metric.note.startswith("best: static ") for metric in found)


def test_the_best_static_choice_differs_by_phase_and_over_all():
    times = {
        "adaptive": [(1.0, 2.0, 1.0, 2.0)] * 3,
        "static 1": [(2.0, 2.2, 2.0, 2.2)] * 3,
        "static 7": [(1.1, 4.0, 1.1, 4.0)] * 3,
    }
    *phases, whole = adaptive_load.judged(times, "x")
    assert [metric.ratio for metric in phases] == pytest.approx([1.1, 1.1, 1.1, 1.1])
    assert [metric.note for metric in phases] == ["best: static 7", "best: static 1"] * 2
    assert whole.ratio == pytest.approx(8.4 / 6) and whole.note == "best: static 1"
    assert phases[1].name == "x_adaptive_high_over_best_static"
