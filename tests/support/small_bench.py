"""A bench of a few thousand random weights, on a CPU."""

from __future__ import annotations

from pathlib import Path

from specmatrix.benchmarks.shapes import LlamaShape, write_eagle3, write_target
from specmatrix.benchmarks.steady import Bench

SMALL = LlamaShape(hidden=32, inner=56, layers=6, heads=4, kv_heads=2, head_dim=8, vocab=768, tied=True)


def small_bench(folder: Path, prompt: int = 128) -> Bench:
    target, draft = write_target(folder / "target", SMALL, "cpu"), write_eagle3(folder / "draft", SMALL, "cpu")
    return Bench("small", str(target), str(draft), "cpu", prompt)
