"""Peers on a CPU: transformers' generation, and gpt-fast's own decode step from a checkout."""

from __future__ import annotations

import sys

import pytest
import torch

from specmatrix.benchmarks import peers
from specmatrix.benchmarks.steady import ROUNDS
from tests.support.small_bench import small_bench

FILES = {
    "tokenizer": "",
    "model": """
import torch
class Transformer(torch.nn.Linear):
    from_name = classmethod(lambda cls, name: cls(1, 1))
    def setup_caches(self, batch, length): self.max_seq_length = length
""",
    "generate": """
import tokenizer
from model import Transformer
STEPS = []
def decode_one_token(model, x, input_pos):
    STEPS.append((model.max_seq_length, int(x), int(input_pos)))
    return x + 1, None
""",
}


@pytest.mark.nightly
def test_transformers_reads_the_same_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "PAIRS", 1)
    monkeypatch.setattr(peers, "TOKENS", 4)
    compiled = peers.transformers(small_bench(tmp_path))
    assert compiled.goal == 1.25 and compiled.median > 0


def test_the_checkouts_own_step_runs_token_by_token(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    theirs = peers.generate_module(tmp_path)
    assert str(tmp_path) not in sys.path
    peers.gpt_fast_rounds(theirs, "8b", small_bench(tmp_path / "bench"))()
    assert [(128 + peers.BEHIND, 1 + n, 128 + n) for n in range(ROUNDS)] == theirs.STEPS
