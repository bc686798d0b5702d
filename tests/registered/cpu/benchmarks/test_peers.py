"""Peers on a CPU: transformers' eager steps and assisted generation, and what is said where gpt-fast is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.pairs import seconds

sys.path.insert(0, str(Path(__file__).parent))
from small_bench import small_bench

pytestmark = pytest.mark.register(est_seconds=6, tier="cpu", stage="pr")


def test_gpt_fast_is_not_measured_without_a_checkout(tmp_path, monkeypatch):
    monkeypatch.delenv(peers.CHECKOUT, raising=False)
    metric = peers.gpt_fast(small_bench(tmp_path), "llama-3.1-8b")
    assert (metric.state, metric.goal) == ("not measured", 1.05)
    assert metric.note == "GPT_FAST names no folder with a checkout of gpt-fast"


def test_a_checkout_is_read_from_its_folder(tmp_path):
    (tmp_path / "model.py").write_text("Transformer = 'theirs'\n")
    assert peers.model_module(tmp_path).Transformer == "theirs"


def test_transformers_reads_the_same_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "PAIRS", 1)
    bench = small_bench(tmp_path)
    theirs = peers.transformers_model(bench)
    assert seconds(peers.eager_rounds(theirs, bench)) > 0
    monkeypatch.setattr(peers, "ASSISTED", (4, 5.0))
    metric = peers.assisted(bench, bench, theirs)
    assert metric.ratio is not None and metric.ratio > 0 and metric.goal == 5.0
    assert "ms a token, prompt included" in metric.note
