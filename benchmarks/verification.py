"""Cost of verifying several tokens against decoding one: the target's forward, logits and argmax, in one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from specmatrix.benchmarks.metric import Metric, of, spread_of
from specmatrix.benchmarks.pairs import interleave
from specmatrix.benchmarks.steady import PAIRS, Bench, freed
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import causal_bias
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.models.target import Target

# Number of requests, verified tokens per request, and the largest allowed cost in decode steps.
GOALS: Final = ((1, 8, 1.05), (8, 6, 1.15))
REPEATS: Final = 16


def verification(bench: Bench, stated: bool) -> Iterator[Metric]:
    """A metric for each of GOALS; stated: whether the goals apply to this shape."""
    with freed(bench.engine(1)) as llm:
        target = llm.loop.executor.target
        for batch, width, goal in GOALS:
            one, many = (repeated(forward(target, batch, w, bench.prompt), bench.device) for w in (1, width))
            pairs = interleave(many, one, PAIRS)
            costs = [1 / ratio for ratio in pairs.ratios]
            note = f"decode step {min(pairs.theirs) / REPEATS * 1e3:.2f} ms without the engine"
            name = f"{bench.name}_verify_{width}_at_batch_{batch}_in_decode_steps"
            yield of(name, costs, goal if stated else None, spread_of(pairs.theirs), "lower", note)


def forward(target: Target, batch: int, width: int, length: int) -> Callable[[], Tensor]:
    """A forward over the last `width` of `length` + width tokens of each request; returns their argmax [B, W]."""
    device = target.device
    reach = -(-(length + width) // 256) * 256
    pool = KVPool(target.kv, batch * reach // 16 + 1, 16, target.dtype, device, deterministic=target.deterministic)
    pool.data.normal_()
    pages = torch.randperm(batch * reach // 16, device=device) + 1
    slots = (pages[:, None] * 16 + torch.arange(16, device=device)).view(batch, reach)
    positions = torch.arange(length, length + width, device=device).expand(batch, -1)
    tokens = torch.randint(2, target.vocab_size, (batch, width), device=device)
    write, bias = slots.gather(1, positions), causal_bias(positions, reach, target.dtype)

    def run() -> Tensor:
        hidden, _ = target.forward(tokens, positions, StepAttention(pool, write, slots, bias))
        return target.logits(hidden).argmax(-1)

    return run


def repeated(run: Callable[[], object], device: str) -> Callable[[], None]:
    """REPEATS runs, on a GPU as replays of one CUDA graph, followed by a synchronisation."""
    wait: Callable[[], object] = int
    once = run
    if device != "cpu":
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode():
            run()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                run()
        once, wait = graph.replay, torch.cuda.synchronize

    def runs(kept: Callable[[], object] = run) -> None:
        # `kept` keeps the graph's input tensors alive.
        with torch.inference_mode():
            for _ in range(REPEATS):
                once()
        wait()

    return runs
