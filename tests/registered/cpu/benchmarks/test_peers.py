"""Peers on a CPU: transformers' eager steps and assisted generation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.pairs import seconds

sys.path.insert(0, str(Path(__file__).parent))
from small_bench import small_bench

pytestmark = pytest.mark.register(est_seconds=6, tier="cpu", stage="pr")


def test_transformers_reads_the_same_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "PAIRS", 1)
    bench = small_bench(tmp_path)
    theirs = peers.transformers_model(bench)
    assert seconds(peers.eager_rounds(theirs, bench)) > 0
    monkeypatch.setattr(peers, "ASSISTED", (4, 5.0))
    metric = peers.assisted(bench, bench, theirs)
    assert metric.ratio is not None and metric.ratio > 0 and metric.goal == 5.0
    assert "ms a token, prompt included" in metric.note
