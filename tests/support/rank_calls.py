"""Functions that tests run on ranks; a separate file with few imports, as every rank imports it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import product
from multiprocessing.connection import wait

import torch
from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.parallel.worker import Rank

# Launches that a rank still takes part in before it leaves the others in the middle of a collective.
LAUNCHES = 4
# What it logs then.
LAST_WORDS = "this rank leaves the others"


def os_of(rank: Rank) -> int:
    return os.getpid()


def echo(rank: Rank, value: object) -> object:
    return value


def at_home(rank: Rank) -> int:
    """How many tensors of its engine a rank holds; it raises if one is not on the GPU of its number."""
    llm: LLM = rank.held.llm
    executor = llm.loop.executor
    tensors = list(_tensors([executor.target, executor.drafter, executor.kv.full.pools, executor.relay, executor.kv]))
    elsewhere = {str(tensor.device) for tensor in tensors} - {f"cuda:{rank.place.rank}"}
    others = [gpu for gpu in range(rank.place.size) if gpu != rank.place.rank and torch.cuda.memory_reserved(gpu)]
    if elsewhere or others:
        raise RuntimeError(f"rank {rank.place.rank} has tensors on {sorted(elsewhere)} and memory on the GPUs {others}")
    return len(tensors)


def sums_through_peers(rank: Rank) -> int:
    """How many sums a rank has compared with those of gathered parts; it raises if one differs in a bit, at once or
    replayed by a CUDA graph."""
    assert rank.peers is not None
    gathered, through = Ranks(rank.place.rank, rank.place.size), rank.ranks(ordered=False)
    generator, compared = torch.Generator("cuda").manual_seed(rank.place.rank), 0
    for dtype, rows in product((torch.float32, torch.float16, torch.bfloat16), (1, 3, 40)):
        part = torch.randn(rows, 3100, generator=generator, device="cuda").to(dtype)
        stream = torch.ones_like(part)
        wanted = gathered.total(part.clone(), stream.clone())
        for _ in range(3):
            compared += _equal(through.total(part.clone(), stream.clone()), wanted)
        graph, copy, out = torch.cuda.CUDAGraph(), part.clone(), stream.clone()
        with torch.cuda.graph(graph):
            copy.copy_(part)
            out.copy_(stream)
            through.total(copy, out)
        for _ in range(3):
            out.zero_()
            graph.replay()
            compared += _equal(out, wanted)
    return compared


def _equal(one: Tensor, other: Tensor) -> int:
    if not torch.equal(one, other):
        raise ValueError(f"{int((one != other).sum())} of {one.numel()} numbers differ in {one.dtype}")
    return 1


def dies_in_a_round(rank: Rank, prompts: list[str]) -> object:
    """The last rank is killed where the others wait for it."""
    return _leaving(rank, prompts, lambda: os.kill(os.getpid(), signal.SIGKILL))


def hangs_in_a_round(rank: Rank, prompts: list[str]) -> object:
    """The last rank sleeps where the others wait for it."""
    return _leaving(rank, prompts, lambda: time.sleep(60))


def raises_in_a_round(rank: Rank, prompts: list[str]) -> object:
    """The last rank raises where the others wait for it."""
    return _leaving(rank, prompts, lambda: 1 // 0)


def _leaving(rank: Rank, prompts: list[str], leave: Callable[[], object]) -> object:
    llm: LLM = rank.held.llm
    forward, left = llm.loop.executor.launch, LAUNCHES

    def launch(plan: object) -> object:
        nonlocal left
        left -= 1
        if rank.place.rank == rank.place.size - 1 and left < 0:
            print(LAST_WORDS, flush=True)
            leave()
        return forward(plan)

    llm.loop.executor.launch = launch
    return llm.generate(prompts)


def _tensors(roots: list[object]) -> Iterator[Tensor]:
    """Every tensor that these hold, directly or in what they hold."""
    seen: set[int] = set()
    queue = list(roots)
    while queue:
        item = queue.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, dict):
            queue += item.values()
        elif isinstance(item, list | tuple):
            queue += item
        elif type(item).__module__.startswith("specmatrix.engine."):
            queue += getattr(item, "__dict__", {}).values()
            queue += [getattr(item, name, None) for name in getattr(type(item), "__slots__", ())]


class InterruptedWaits:
    """KeyboardInterrupt from each of some waits for the ranks, counted from 0."""

    def __init__(self, *waits: int) -> None:
        self.waits, self.count = waits, 0

    def __call__(self, connections: list[object], timeout: float) -> list[object]:
        self.count += 1
        if self.count - 1 in self.waits:
            raise KeyboardInterrupt
        return wait(connections, timeout)
