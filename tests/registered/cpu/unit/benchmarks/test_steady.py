"""Engines in the middle of their requests: rounds, shared weights, freed memory."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import count

import pytest
import torch

import specmatrix.engine.build
from specmatrix.benchmarks import steady, timings, verification
from specmatrix.benchmarks.metric import of, red
from specmatrix.benchmarks.pairs import Pairs
from specmatrix.benchmarks.steady import Bench
from tests.support.small_bench import small_bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return small_bench(tmp_path_factory.mktemp("bench"))


class Restless(Bench):
    """Sends each engine a different prompt."""

    seeds = count()

    def prompts(self, vocab_size, batch):
        generator = torch.Generator().manual_seed(next(self.seeds))
        return torch.randint(2, vocab_size, (batch, self.prompt), generator=generator).tolist()


def test_every_round_of_a_turn_decodes(bench):
    with steady.freed(bench.engine(2)) as llm:
        decoding = steady.Decoding(llm, bench.prompts(llm.vocab_size, 2))
        before = llm.counters["decode.round"]
        assert decoding.timed_rounds() > 0
        assert llm.counters["decode.round"] == before + steady.ROUNDS
        assert [len(prompt) for prompt in bench.prompts(768, 2)] == [bench.prompt] * 2
    assert not vars(llm)


def test_steady_rounds_time_neither_the_pipeline_fill_nor_the_last_wait(bench, monkeypatch):
    with bench.decoding(1) as decoding:
        events = []
        monkeypatch.setattr(decoding, "_step", lambda: events.append("step"))
        monkeypatch.setattr(decoding, "rounds", lambda count: events.append(f"wait {count}"))
        monkeypatch.setattr(
            steady, "seconds", lambda call: (events.append("from"), call(), events.append("to"), 6.0)[3]
        )
        assert decoding.steady(3) == 2.0
    assert events == ["step", "step", "from", "step", "step", "step", "to", "wait 0"]


def test_a_pair_has_the_seconds_of_steady_rounds(bench, monkeypatch):
    monkeypatch.setattr(steady, "PAIRS", 2)
    monkeypatch.setattr(steady.Decoding, "steady", lambda self, rounds: float(rounds))
    assert bench.pair({}, {}, rounds=5) == Pairs((5.0, 5.0), (5.0, 5.0))


def test_a_chain_is_as_requested(bench):
    with steady.freed(bench.engine(1, bench.chain(3))) as llm:
        shown = llm.readback()
        assert (shown["algorithm"], shown["num_steps"], shown["num_draft_tokens"]) == ("EAGLE3", 3, 4)


def test_a_target_is_loaded_once_and_only_meanwhile(bench):
    load = specmatrix.engine.build.load_target
    with steady.targets_kept():
        one, two = bench.engine(1), bench.engine(1, {"spec_version": "v1"})
        assert one.loop.executor.target is two.loop.executor.target
        exact = bench.engine(1, {"enable_deterministic_inference": True})
        assert exact.loop.executor.target.deterministic
    assert specmatrix.engine.build.load_target is load
    assert bench.engine(1).loop.executor.target is not one.loop.executor.target


@pytest.mark.nightly
def test_the_speed_matrix_has_a_figure_for_each_cell(bench, monkeypatch):
    for name in ("PAIRS", "ROUNDS", "WARM"):
        monkeypatch.setattr(steady, name, 1)
    with steady.targets_kept():
        *cells, whole = timings.timings(bench, 1e9)
    assert len({metric.name for metric in cells}) == len(cells) == 8
    assert all(metric.goal == 0.98 and metric.ratio > 0 for metric in cells)
    assert {"small_eagle3_s5_batch_32_v2_over_v1", "small_eagle3_s3_k4_n8_batch_8_v2_over_v1"} <= {
        m.name for m in cells
    }
    assert (whole.name, whole.state, whole.low) == ("small_v2_over_v1", "missed", min(m.ratio for m in cells))


@pytest.mark.nightly
def test_chains_of_the_speed_matrix_have_typical_acceptance(bench, monkeypatch):
    """Neither plain decoding nor trees, whose acceptance is not decided by coins."""
    seen = {}

    def pair(self, ours, theirs, batch, rounds):
        with self.decoding(batch, ours) as decoding:
            decoding.rounds(60)
            seen.setdefault((ours.get("speculative_eagle_topk"), rounds), []).append(len(decoding.outputs()[0]))
        return Pairs((1.0,), (1.0,))

    monkeypatch.setattr(Bench, "pair", pair)
    assert len(list(timings.timings(replace(bench, prompt=512), 1.0))) == 9
    assert {asked: len(found) for asked, found in seen.items()} == {(None, None): 3, (4, None): 2, (1, 3): 3}
    assert all(3 < tokens / 68 < 4 for tokens in seen[1, 3])
    assert all(tokens / 68 < 2 for tokens in seen[None, None] + seen[4, None])


def test_the_speed_matrix_is_judged_over_its_cells():
    cells = [of(f"s_{name}_v2_over_v1", [figure], 0.98, 0.1) for name, figure in (("a", 1.0), ("b", 1.3), ("c", 1.1))]
    whole = timings.over_all(cells, "s", 1.1)
    assert (whole.ratio, whole.low, whole.high, whole.state) == (1.1, 1.0, 1.3, "met")
    assert "2 reach it alone: b_v2_over_v1, c_v2_over_v1" in whole.note
    broken = timings.over_all([*cells, red("s_d_v2_over_v1", 0.98, "token 3")], "s", 1.1)
    assert (broken.state, broken.note) == ("red", "s_d_v2_over_v1: token 3")


@pytest.mark.nightly
def test_two_timings_with_different_tokens_have_no_speed(bench, monkeypatch):
    for name in ("PAIRS", "ROUNDS", "WARM"):
        monkeypatch.setattr(steady, name, 1)
    versions = ({"spec_version": "v2"}, {"spec_version": "v1"})
    assert not bench.pair(*versions).wrong
    restless = Restless(**asdict(bench))
    metric = restless.pair(*versions).metric("m", 0.98)
    assert metric.state == "red" and metric.note.startswith("request 0: token 0 is ")
    assert not restless.pair({}, bench.chain(1)).wrong


def test_tokens_are_compared_as_far_as_both_have_come():
    assert not steady.difference([[1, 2, 3], []], [[1, 2], [5]])
    assert steady.difference([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == "request 1: token 1 is 4 against 5"


def test_verification_costs_more_than_a_step(bench, monkeypatch):
    monkeypatch.setattr(verification, "PAIRS", 3)
    one, many = verification.verification(bench, stated=True)
    assert (one.goal, one.better, many.goal) == (1.05, "lower", 1.15)
    assert many.ratio > 1.0 and one.pairs == 3
    with steady.freed(bench.engine(1)) as llm:
        chosen = verification.forward(llm.loop.executor.target, 3, 5, 20)()
    assert chosen.shape == (3, 5)
