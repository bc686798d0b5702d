"""Peers on a CPU: transformers' eager steps, and its generation in three forms (nothing is compiled there)."""

from __future__ import annotations

import pytest

from specmatrix.benchmarks import peers
from tests.support.small_bench import small_bench


@pytest.mark.nightly
def test_transformers_reads_the_same_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "PAIRS", 1)
    monkeypatch.setattr(peers, "EAGER", (4, 5.0))
    monkeypatch.setattr(peers, "ASSISTED", (4, 5.0))
    monkeypatch.setattr(peers, "COMPILED", (4, 1.25))
    bench = small_bench(tmp_path)
    metrics = {metric.name.split("_over_transformers_")[1]: metric for metric in peers.peers(bench, bench)}
    goals = {"eager_calls": None, "eager": 5.0, "compiled": 1.25, "assisted": 5.0}
    assert {name: metric.goal for name, metric in metrics.items()} == goals
    assert all(metric.ratio > 0 for metric in metrics.values())
    assert "ms a token at best" in metrics.pop("eager_calls").note
    assert all("ms a token, prompt included" in metric.note for metric in metrics.values())


def test_every_turn_of_eager_steps_reads_the_same_contexts(tmp_path):
    bench = small_bench(tmp_path)
    theirs = peers.transformers_model(bench)
    seen = []
    theirs.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((kwargs["past_key_values"].get_seq_length(), args[0].tolist())),
        with_kwargs=True,
    )
    rounds = peers.eager_rounds(theirs, bench)
    seen.clear()
    for _ in range(2):
        rounds()
    assert [length for length, _ in seen] == 2 * [bench.prompt + number for number in range(peers.ROUNDS)]
    assert seen[: peers.ROUNDS] == seen[peers.ROUNDS :]
