"""Rounds on one GPU against its memory bandwidth and other engines, with random weights of published shapes, prompts
of 1024 tokens and bf16.

Drafts of random weights are hardly ever accepted; the figures measure the cost of a round, whatever its yield.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

import specmatrix.engine.device_step
from specmatrix.benchmarks.metric import Metric, interleave, own_time, spread_of, wrong
from specmatrix.benchmarks.peers import gpt_fast, transformers
from specmatrix.benchmarks.shapes import SHAPES, write_eagle3, write_target
from specmatrix.benchmarks.steady import PAIRS, Bench, free, freed, targets_kept
from specmatrix.engine.device.attention import StepAttention
from specmatrix.engine.device.batch import causal_bias
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.device.pool import KVPool
from specmatrix.engine.device.sampling import SamplingRows, uniform
from specmatrix.engine.models.causal_lm import CausalLM
from specmatrix.engine.spec.drafter import DraftTree, VerifyResult
from specmatrix.errors import ConfigError

# Number of requests, verified tokens per request, and the largest allowed cost in decode steps.
VERIFIED: Final = ((1, 8, 1.05), (8, 6, 1.15))


def verification(bench: Bench, stated: bool) -> Iterator[Metric]:
    """A metric for each of VERIFIED; stated: whether the goals apply to this shape."""
    with freed(bench.engine(1)) as llm:
        target = llm.loop.executor.target
        for batch, width, goal in VERIFIED:
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

        # It calls on a stream of its own, which does not wait for what `run` reads.
        torch.cuda.synchronize()
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
    start = positions[:, 0].contiguous()

    def run() -> Tensor:
        hidden, _ = target.forward(tokens, positions, StepAttention(pool, write, slots, bias, start=start, causal=True))
        return target.logits(hidden).argmax(-1)

    return run


GOAL: Final = 0.98
BATCHES: Final = (1, 8, 32)
DEPTH: Final = 5
# With this acceptance probability a round of 5 drafts yields 3.55 tokens; rounds per repetition, so that all of an
# engine's stay below its next CUDA-graph size.
TAKEN, ROUNDS = 0.784, 3


def timings(bench: Bench, overall: float, trees: bool = True) -> Iterator[Metric]:
    """A metric per cell, and one over all of them with the goal `overall`. trees: also include tree cells."""
    tree = bench.chain(3) | {"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    cells: list[tuple[str, int, dict[str, Any]]] = [("none", batch, {}) for batch in BATCHES]
    cells += [("eagle3_s3_k4_n8", batch, tree) for batch in BATCHES[:2] if trees]
    found = []
    for name, batch, asked in cells:
        found.append(_cell(bench, name, batch, asked))
        yield found[-1]
    for batch in BATCHES:
        with accepted_by_coins(TAKEN):
            found.append(_cell(bench, f"eagle3_s{DEPTH}", batch, bench.chain(DEPTH), ROUNDS))
        yield found[-1]
    yield over_all(found, bench.name, overall)


def _cell(bench: Bench, name: str, batch: int, asked: dict[str, Any], rounds: int | None = None) -> Metric:
    pairs = bench.pair({**asked, "spec_version": "v2"}, {**asked, "spec_version": "v1"}, batch, rounds)
    return pairs.metric(f"{bench.name}_{name}_batch_{batch}_v2_over_v1", GOAL)


def over_all(cells: list[Metric], bench: str, goal: float) -> Metric:
    """The medians of all cells as one metric; red if any cell has no figure."""
    name = f"{bench}_v2_over_v1"
    if failed := [f"{cell.name}: {cell.note}" for cell in cells if cell.median is None]:
        return wrong(name, goal, "; ".join(failed))
    figures = {cell.name.removeprefix(f"{bench}_"): cell.median for cell in cells if cell.median is not None}
    enough = [cell for cell, figure in figures.items() if figure >= goal]
    note = f"median over {len(cells)} cells; {len(enough)} reach it alone{': ' * bool(enough)}{', '.join(enough)}"
    return Metric(name, list(figures.values()), goal, max(cell.spread for cell in cells), note=note)


@contextmanager
def accepted_by_coins(rate: float) -> Iterator[None]:
    """Accept each draft of a chain with probability `rate`: a round does all of its work, but coins decide its yield.

    The coins depend on a request's length only, so that requests that start together end together.
    """
    verify = specmatrix.engine.device_step.verify

    def tossed(
        logits: Tensor, tree: DraftTree, start: Tensor, rows: SamplingRows | None, ranks: Ranks = ALONE
    ) -> VerifyResult:
        verdict = verify(logits, tree, start, rows, ranks)
        if not tree.depth:
            return verdict
        positions = start[:, None] + tree.depths[:, 1:]
        coins = uniform(torch.zeros_like(start), positions.contiguous())
        return verdict._replace(count=1 + (coins < rate).long().cumprod(1).sum(1))

    try:
        specmatrix.engine.device_step.verify = tossed
        yield
    finally:
        specmatrix.engine.device_step.verify = verify


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
