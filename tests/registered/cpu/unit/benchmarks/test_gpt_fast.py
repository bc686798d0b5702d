"""gpt-fast as a peer: the error without a checkout, and that the checkout's own decode step runs."""

from __future__ import annotations

import sys

import pytest
import torch

from specmatrix.benchmarks import gpt_fast
from specmatrix.benchmarks.pairs import seconds
from specmatrix.benchmarks.steady import ROUNDS
from tests.support.small_bench import small_bench

MODEL = """
import torch
class Transformer(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name, self.weight = name, torch.nn.Parameter(torch.empty(3))
    @classmethod
    def from_name(cls, name):
        return cls(name)
    def setup_caches(self, batch, length):
        self.batch, self.max_seq_length = batch, length
"""
GENERATE = """
import tokenizer
from model import Transformer
STEPS = []
def causal_mask(*where): return True
def create_block_mask(mask, *sizes, device): return sizes
def decode_one_token(model, x, input_pos{more}):
    STEPS.append((model.name, model.max_seq_length, int(x), int(input_pos){seen}))
    return x + 1, None
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with the files of a checkout whose step takes masks, and their names free again afterwards."""
    (tmp_path / "tokenizer.py").write_text("")
    (tmp_path / "model.py").write_text(MODEL)
    yield tmp_path
    for name in gpt_fast.FILES:
        sys.modules.pop(name, None)


def test_gpt_fast_is_not_measured_without_a_checkout(tmp_path, monkeypatch):
    monkeypatch.delenv(gpt_fast.CHECKOUT, raising=False)
    metric = gpt_fast.gpt_fast(small_bench(tmp_path), "llama-3.1-8b")
    assert (metric.state, metric.goal) == ("not measured", 1.05)
    assert metric.note == "GPT_FAST must be set to the folder of a gpt-fast checkout"


def test_nor_with_a_folder_that_is_none(tmp_path, checkout, monkeypatch):
    monkeypatch.setenv(gpt_fast.CHECKOUT, str(checkout))
    metric = gpt_fast.gpt_fast(small_bench(tmp_path), "llama-3.1-8b")
    assert metric.state == "not measured"
    assert metric.note == f"folder {checkout} (GPT_FAST) is no gpt-fast checkout: generate.py is missing"


@pytest.mark.parametrize(("more", "seen"), [("", ""), (", block_mask", ", block_mask")])
def test_the_checkouts_own_step_runs_token_by_token(checkout, tmp_path, monkeypatch, more, seen):
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    (checkout / "generate.py").write_text(GENERATE.format(more=more, seen=seen))
    theirs = gpt_fast.generate_module(checkout)
    assert str(checkout) not in sys.path
    assert seconds(gpt_fast.gpt_fast_rounds(theirs, "8b", small_bench(tmp_path / "bench"))) > 0
    length = 128 + gpt_fast.BEHIND
    masks = ((1, 1, length, length),) if more else ()
    assert [("8b", length, 1 + n, 128 + n, *masks) for n in range(ROUNDS)] == theirs.STEPS
