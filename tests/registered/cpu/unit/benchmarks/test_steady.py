"""Engines in the middle of their requests: rounds, shared weights, freed memory."""

from __future__ import annotations

import pytest

import specmatrix.engine.build
import specmatrix.engine.device_step
from specmatrix.benchmarks import gpu, steady
from specmatrix.benchmarks.metric import Metric, wrong
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.small_bench import small_bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return small_bench(tmp_path_factory.mktemp("bench"))


def test_every_round_of_a_turn_decodes(bench):
    with steady.freed(bench.engine(2)) as llm:
        decoding = steady.Decoding(llm, bench.prompts(llm.vocab_size, 2))
        before = llm.counters["decode.round"]
        assert decoding.timed_rounds() > 0
        assert llm.counters["decode.round"] == before + steady.ROUNDS
        assert [len(prompt) for prompt in bench.prompts(768, 2)] == [bench.prompt] * 2
    assert not vars(llm)


def test_a_target_is_loaded_once_and_only_meanwhile(bench):
    load = specmatrix.engine.build.load_target
    with steady.targets_kept():
        one, two = bench.engine(1), bench.engine(1, {"spec_version": "v1"})
        assert one.loop.executor.target is two.loop.executor.target
        exact = bench.engine(1, {"enable_deterministic_inference": True})
        assert exact.loop.executor.target.deterministic
    assert specmatrix.engine.build.load_target is load
    assert bench.engine(1).loop.executor.target is not one.loop.executor.target


def test_the_speed_matrix_is_judged_over_its_cells():
    cells = [
        Metric(f"s_{name}_v2_over_v1", [figure], 0.98, 0.1) for name, figure in (("a", 1.0), ("b", 1.3), ("c", 1.1))
    ]
    whole = gpu.over_all(cells, "s", 1.1)
    assert (whole.median, whole.figures, whole.state) == (1.1, [1.0, 1.3, 1.1], "met")
    assert "2 reach it alone: b_v2_over_v1, c_v2_over_v1" in whole.note
    broken = gpu.over_all([*cells, wrong("s_d_v2_over_v1", 0.98, "token 3")], "s", 1.1)
    assert (broken.state, broken.note) == ("red", "s_d_v2_over_v1: token 3")


def test_two_timings_with_different_tokens_have_no_speed(bench, monkeypatch):
    for name in ("PAIRS", "ROUNDS", "WARM"):
        monkeypatch.setattr(steady, name, 1)
    monkeypatch.setattr(steady, "difference", lambda ours, theirs: "request 0: token 0")
    assert bench.pair({"spec_version": "v2"}, {"spec_version": "v1"}).metric("m", 0.98).state == "red"
    assert not bench.pair({}, bench.chain(1)).differs


def test_tokens_are_compared_as_far_as_both_have_come():
    assert not steady.difference([[1, 2, 3], []], [[1, 2], [5]])
    assert steady.difference([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == "request 1: token 1 is 4 against 5"


def test_verification_costs_more_than_a_step(bench, monkeypatch):
    monkeypatch.setattr(gpu, "PAIRS", 3)
    one, many = gpu.verification(bench, stated=True)
    assert (one.goal, one.better, many.goal) == (1.05, "lower", 1.15)
    assert many.median > 1.0 and len(one.figures) == 3
    with steady.freed(bench.engine(1)) as llm:
        chosen = gpu.forward(llm.loop.executor.target, 3, 5, 20)()
    assert chosen.shape == (3, 5)


@pytest.mark.nightly
@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 1.0, 1.0), (0.5, 1.3, 2.5), (1.0, 4.0, 4.0)])
def test_coins_decide_acceptance(bench, share, least, most):
    verify = specmatrix.engine.device_step.verify
    with gpu.accepted_by_coins(share), steady.freed(bench.engine(2, bench.chain(3))) as llm:
        outputs = llm.generate(bench.prompts(768, 2), SamplingParams(max_new_tokens=61, ignore_eos=True))
    assert specmatrix.engine.device_step.verify is verify
    first, second = (output.accept_lengths for output in outputs)
    assert first == second
    assert least <= sum(first[:-1]) / len(first[:-1]) <= most
