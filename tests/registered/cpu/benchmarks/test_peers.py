"""Peers on a CPU: transformers' eager steps and assisted generation."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.core import quickest_core

sys.path.insert(0, str(Path(__file__).parent))
from small_bench import small_bench

pytestmark = pytest.mark.register(est_seconds=6, tier="cpu", stage="pr")


def test_transformers_reads_the_same_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "PAIRS", 1)
    bench = small_bench(tmp_path)
    theirs = peers.transformers_model(bench)
    monkeypatch.setattr(peers, "ASSISTED", (4, 5.0))
    held = []

    @contextmanager
    def one_core():
        with quickest_core():
            held.append(len(os.sched_getaffinity(0)))
            yield

    monkeypatch.setattr(peers, "quickest_core", one_core)
    metrics = [peers.eager(bench, theirs), peers.assisted(bench, bench, theirs)]
    assert held == [1, 1] and all(metric.ratio > 0 and metric.goal == 5.0 for metric in metrics)
    assert "ms a token at best" in metrics[0].note and "ms a token, prompt included" in metrics[1].note
