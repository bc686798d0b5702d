"""Times of the GPU kernels at Llama-3.1-8B's shapes, against their memory floors and cuBLAS.

Run as python -m specmatrix.benchmarks.kernels.
Launches are captured in CUDA graphs over several sets of random inputs that together exceed the cache; implementations
are interleaved in one run. A floor is the bytes that must be read, divided by the read bandwidth measured in that run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from specmatrix.kernels.matmul import matmul
from specmatrix.kernels.paged_attention import Reads, paged_attention, plan_reads

PAIRS: Final = 12
# Total bytes of the input sets: several times the largest cache.
ROTATED: Final = 3e8
# Input and output width of a layer's projections: QKV, attention output, gate and up, down.
PROJECTIONS: Final = {"qkv": (4096, 6144), "o": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}
ROWS: Final = (1, 8, 32, 64, 2048)
HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16
STEPS: Final = ((1, 1024), (8, 1024), (32, 1024), (1, 16384), (8, 8192))
VERIFIED: Final = 8
# DeepSeek-V3: heads, width of a latent row, width of its value.
LATENT: Final = (128, 576, 512)

Call = Callable[[], object]


class Spread(NamedTuple):
    """Microseconds per call: median, minimum and maximum."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.least:.1f} to {self.most:.1f})"


def main() -> int:
    """Print the tables; status 2 on a host without a GPU."""
    if not torch.cuda.is_available():
        print("benchmark 'kernels' needs a GPU but this machine has none", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    rate = read_rate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: memory read bandwidth {rate / 1e12:.2f} TB/s\n")
    print("Projections of a layer, bfloat16: microseconds (minimum to maximum), and time over cuBLAS's\n")
    print(*table(("projection", "rows", "floor", "cuBLAS", "ours", "ratio"), projections(rate)), sep="\n")
    print("\nAttention of one layer, bfloat16: microseconds; verification reads what a decode step reads\n")
    names = ("requests", "context", "floor", "decode", f"verify {VERIFIED}", "verify / decode")
    print(*table(names, attention(rate)), sep="\n")
    return 0


def read_rate() -> float:
    """Memory read bandwidth of a large sum, in bytes per second."""
    large = torch.empty(2**30, dtype=torch.float32, device="cuda").normal_()
    return 4 * large.numel() / interleaved([large.sum] * 4)[0].least * 1e6


def interleaved(*forms: Sequence[Call]) -> list[Spread]:
    """Time per call of each implementation, interleaved; each is given as the same call over several inputs."""
    graphs = [captured(calls) for calls in forms]
    times: list[list[float]] = [[] for _ in forms]
    for _ in range(PAIRS):
        for graph, calls, found in zip(graphs, forms, times, strict=True):
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            graph.replay()
            after.record()
            torch.cuda.synchronize()
            found.append(before.elapsed_time(after) * 1000 / len(calls))
    return [Spread(statistics.median(found), min(found), max(found)) for found in times]


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """One CUDA graph of all calls, warmed up and replayed once."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def rotated(size: float) -> int:
    """Number of inputs of `size` bytes that together exceed the cache."""
    return min(40, max(2, round(ROTATED / size)))


def projections(rate: float) -> Iterator[tuple[object, ...]]:
    """A table row for each projection and number of rows, and the layer's sums."""
    sums = {rows: [0.0, 0.0, 0.0] for rows in ROWS}
    for name, (depth, columns) in PROJECTIONS.items():
        size = 2 * depth * columns
        weights = [random(depth, columns) for _ in range(rotated(size))]
        for rows in ROWS:
            x = random(rows, depth)
            theirs, ours = interleaved(
                [lambda w=w, x=x: torch.mm(x, w) for w in weights], [lambda w=w, x=x: matmul(x, w) for w in weights]
            )
            floor = size / rate * 1e6
            yield name, rows, f"{floor:.1f}", theirs, ours, f"{ours.median / theirs.median:.2f}"
            sums[rows] = [a + b for a, b in zip(sums[rows], (floor, theirs.median, ours.median), strict=True)]
    for rows, (floor, theirs, ours) in sums.items():
        yield "all four", rows, f"{floor:.1f}", f"{theirs:.1f}", f"{ours:.1f}", f"{ours / theirs:.2f}"


def attention(rate: float) -> Iterator[tuple[object, ...]]:
    """A table row for each step, and one for latent attention."""
    for batch, length in STEPS:
        yield step(batch, length, HEADS, KV_HEADS, HEAD_DIM, None, rate)
    heads, width, value = LATENT
    yield step(8, 1024, heads, 1, width, value, rate)


def step(
    batch: int, length: int, heads: int, kv_heads: int, head_dim: int, value_dim: int | None, rate: float
) -> tuple[object, ...]:
    """A table row: decoding and verification after `length` tokens; rate: bytes per second."""
    size = 2 * batch * length * kv_heads * head_dim * (2 if value_dim is None else 1)
    times = []
    for width in (1, VERIFIED):
        inputs = [reads(batch, length, width, heads, kv_heads, head_dim, value_dim) for _ in range(rotated(size))]
        times += interleaved([lambda one=one: paged_attention(*one) for one in inputs])
    decode, verify = times
    kind = f"{batch}, latent" if value_dim else batch
    return kind, length, f"{size / rate * 1e6:.1f}", decode, verify, f"{verify.median / decode.median:.2f}"


def reads(
    batch: int, length: int, width: int, heads: int, kv_heads: int, head_dim: int, value_dim: int | None
) -> tuple[Tensor, Tensor, Reads]:
    """Queries, a KV cache with pages in random order, and the plan."""
    planes = 2 if value_dim is None else 1
    pages = torch.randperm(batch * length // PAGE, device="cuda")
    slots = (pages[:, None] * PAGE + torch.arange(PAGE, device="cuda")).view(batch, length)
    bias = torch.zeros(batch, 1, width, length, dtype=torch.bfloat16, device="cuda")
    cache = random(batch * length * planes * kv_heads, head_dim)
    plan = plan_reads(slots, bias, heads, kv_heads, head_dim, value_dim=value_dim)
    return random(batch, width, heads, head_dim), cache, plan


def random(*shape: int) -> Tensor:
    """Normally distributed bfloat16 values on the GPU."""
    return torch.randn(shape, device="cuda").to(torch.bfloat16)


def table(names: Sequence[str], rows: Iterator[tuple[object, ...]]) -> Iterator[str]:
    """A Markdown table, yielded line by line as rows are measured."""
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


if __name__ == "__main__":
    sys.exit(main())
