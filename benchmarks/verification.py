"""Cost of verifying several tokens against decoding one: the target's forward, logits and argmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from specmatrix.benchmarks.metric import Metric, interleave, own_time, spread_of
from specmatrix.benchmarks.steady import PAIRS, Bench, freed
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import causal_bias
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.models.causal_lm import CausalLM

# Number of requests, verified tokens per request, and the largest allowed cost in decode steps.
GOALS: Final = ((1, 8, 1.05), (8, 6, 1.15))


def verification(bench: Bench, stated: bool) -> Iterator[Metric]:
    """A metric for each of GOALS; stated: whether the goals apply to this shape."""
    with freed(bench.engine(1)) as llm:
        target = llm.loop.executor.target
        for batch, width, goal in GOALS:
            verify, decode = (forward(target, batch, w, bench.prompt) for w in (width, 1))
            # The decode step is the divisor, so it takes the place of `ours`.
            pairs = interleave(
                lambda run=decode: device_seconds(run, bench.device),
                lambda run=verify: device_seconds(run, bench.device),
                PAIRS,
                clock=own_time,
            )
            note = f"decode step {min(pairs.ours) * 1e3:.2f} ms without the engine"
            name = f"{bench.name}_verify_{width}_at_batch_{batch}_in_decode_steps"
            yield Metric(name, pairs.ratios, goal if stated else None, spread_of(pairs.ours), "lower", note)


def device_seconds(run: Callable[[], object], device: str, repeated: int = 20) -> float:
    """Median seconds of a call; on a GPU as a CUDA graph with about `repeated` milliseconds of calls, without the
    host."""
    with torch.inference_mode():
        if device == "cpu":
            return Timer("run()", globals={"run": run}).timeit(4).median
        from triton.testing import do_bench_cudagraph

        milliseconds: float = do_bench_cudagraph(run, rep=repeated, return_mode="median")
        return milliseconds / 1e3


def forward(target: CausalLM, batch: int, width: int, length: int) -> Callable[[], Tensor]:
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
