"""Engines in the middle of their requests: rounds, shared weights, memory given back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import engine.build
from benchmarks import steady, timings, verification

sys.path.insert(0, str(Path(__file__).parent))
from small_bench import small_bench

pytestmark = pytest.mark.register(est_seconds=8, tier="cpu", stage="pr")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return small_bench(tmp_path_factory.mktemp("bench"))


def test_every_round_of_a_turn_decodes(bench):
    with steady.freed(bench.engine(2)) as llm:
        decoding = steady.Decoding(llm, bench.prompts(llm.tokenizer.vocab_size, 2))
        before = llm.probes["decode.round"]
        assert decoding.turn() > 0
        assert llm.probes["decode.round"] == before + steady.ROUNDS
        assert [len(prompt) for prompt in bench.prompts(768, 2)] == [bench.prompt] * 2
    assert not vars(llm)


def test_a_chain_is_what_was_asked(bench):
    with steady.freed(bench.engine(1, bench.chain(3))) as llm:
        shown = llm.readback()
        assert (shown["algorithm"], shown["num_steps"], shown["num_draft_tokens"]) == ("EAGLE3", 3, 4)


def test_a_target_is_loaded_once_and_only_meanwhile(bench):
    load = engine.build.load_target
    with steady.targets_kept():
        one, two = bench.engine(1), bench.engine(1, {"spec_version": "v1"})
        assert one.loop.executor.target is two.loop.executor.target
        exact = bench.engine(1, {"enable_deterministic_inference": True})
        assert exact.loop.executor.target.deterministic
    assert engine.build.load_target is load
    assert bench.engine(1).loop.executor.target is not one.loop.executor.target


def test_the_speed_matrix_has_a_figure_for_each_cell(bench, monkeypatch):
    for name in ("PAIRS", "ROUNDS", "WARM"):
        monkeypatch.setattr(steady, name, 1)
    with steady.targets_kept():
        found = list(timings.timings(bench))
    assert len({metric.name for metric in found}) == len(found) == 7
    assert all(metric.goal == 0.98 and metric.ratio > 0 for metric in found)
    assert "small_eagle3_s3_k4_n8_batch_8_v2_over_v1" in {metric.name for metric in found}


def test_verification_costs_more_than_a_step(bench, monkeypatch):
    monkeypatch.setattr(verification, "PAIRS", 3)
    one, many = verification.verification(bench, stated=True)
    assert (one.goal, one.better, many.goal) == (1.05, "lower", 1.15)
    assert many.ratio > 1.0 and one.pairs == 3
    with steady.freed(bench.engine(1)) as llm:
        chosen = verification.forward(llm.loop.executor.target, 3, 5, 20)()
    assert chosen.shape == (3, 5)
