"""Rounds on one GPU against its memory bandwidth and other engines, with random weights of published shapes, prompts
of 1024 tokens and bf16.

Drafts of random weights are hardly ever accepted; the figures measure the cost of a round, whatever its yield.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from specmatrix.benchmarks.metric import Metric, spread_of
from specmatrix.benchmarks.peers import gpt_fast, transformers
from specmatrix.benchmarks.shapes import SHAPES, write_eagle3, write_target
from specmatrix.benchmarks.steady import PAIRS, Bench, free, targets_kept
from specmatrix.benchmarks.timings import timings
from specmatrix.benchmarks.verification import verification
from specmatrix.errors import ConfigError

# Bandwidth measurement: bytes per tensor, and number of tensors.
READ_BYTES: Final = 2 << 30
PLACES: Final = 4
DEPTHS: Final = (1, 3, 5, 7)
SMALL, LARGE = "Llama-3.2-1B", "Llama-3.1-8B"
# Goals by shape: share of the memory floor at batch 1 and at batch 32, and v2 over v1 in the speed matrix.
GOALS: Final = {SMALL: (0.65, None, 1.20), LARGE: (0.87, 0.78, 1.08)}
ROUND_GOAL: Final = (1.06, 0.070)
OTHERS: Final = (
    ("graphs_over_eager", {}, {"disable_cuda_graph": True}),
    ("fast_over_deterministic", {}, {"enable_deterministic_inference": True}),
)


def measure() -> Iterator[Metric]:
    """Every figure of every shape. ConfigError without a GPU."""
    if not torch.cuda.is_available():
        raise ConfigError("benchmark 'gpu' needs a GPU but this machine has none")
    with TemporaryDirectory() as folder:
        yield from metrics(Path(folder))


def metrics(folder: Path) -> Iterator[Metric]:
    """The figures as they are measured; checkpoints are written to `folder`."""
    rate = read_rate()
    yield Metric("memory_read_tb_per_second", [rate / 1e12], None, note=torch.cuda.get_device_name())
    small, large = (bench(name, folder) for name in (SMALL, LARGE))
    for one in (small, large):
        with targets_kept():
            yield from decoding(one, rate)
            yield from rounds(one)
            yield from verification(one, stated=one is large)
            yield from timings(one, GOALS[one.name][2], trees=one is small)
            if one is large:
                yield transformers(one)
                free()
                yield gpt_fast(one, "llama-3.1-8b")


def bench(name: str, folder: Path) -> Bench:
    """A target of a published shape with random weights, and a draft for it."""
    shape = SHAPES[name]
    target = write_target(folder / name, shape, "cuda")
    return Bench(name, str(target), str(write_eagle3(folder / f"{name}-eagle3", shape, "cuda")))


def read_rate() -> float:
    """Memory read bandwidth in bytes per second: the best of many sums over several large tensors.

    Sums over a single tensor varied from 2.94 to 3.08 TB/s within minutes on one H100, which would move the floor.
    """
    from triton.testing import do_bench

    held = [torch.ones(READ_BYTES // 8, dtype=torch.int64, device="cuda") for _ in range(PLACES)]
    best = min(do_bench(data.sum, return_mode="min") for data in held)
    held.clear()
    free()
    return READ_BYTES / best * 1e3


def decoding(one: Bench, rate: float) -> Iterator[Metric]:
    """Plain decoding against the memory floor, without CUDA graphs, and in deterministic mode."""
    shape, (alone, many, _) = SHAPES[one.name], GOALS[one.name]
    for batch, goal in ((1, alone), (32, many)):
        with one.decoding(batch) as engine:
            times = [engine.timed_rounds() for _ in range(PAIRS)]
        floor = (shape.step_bytes + batch * one.prompt * shape.token_bytes) / rate
        shares = [floor / time for time in times]
        note = f"floor {floor * 1e3:.2f} ms, step {sorted(times)[PAIRS // 2] * 1e3:.2f} ms"
        yield Metric(f"{one.name}_decode_batch_{batch}_of_floor", shares, goal, spread_of(times), note=note)
    for versus, ours, theirs in OTHERS:
        yield one.pair(ours, theirs).metric(f"{one.name}_decode_{versus}", None)


def rounds(one: Bench) -> Iterator[Metric]:
    """Cost of speculative rounds in plain decode steps."""
    stated = one.name == LARGE
    for depth in DEPTHS:
        times = one.pair({}, one.chain(depth))
        goal, spread = ROUND_GOAL[0] + ROUND_GOAL[1] * depth, spread_of(times.ours)
        name = f"{one.name}_eagle3_round_{depth}"
        yield Metric(f"{name}_in_decode_steps", times.ratios, goal if stated else None, spread, "lower")
