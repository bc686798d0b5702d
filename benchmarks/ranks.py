"""Decode steps and EAGLE3 rounds of one model on 1, 2, 4 and 8 ranks, interleaved in one run.

    python -m specmatrix.benchmarks.ranks [RANKS ...] [--cpu] [--json] [--out FOLDER]

Random weights at Llama-3.1-8B's shape, bf16, prompts of 1024 tokens. Every rank generates its shard of the target on
its own GPU, so no target checkpoint is written or read; the draft is not sharded and is read by every rank. Drafts of
random weights are hardly ever accepted: the figures measure the cost of a round.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias
from zlib import crc32

import torch
from torch import Tensor

import specmatrix.engine.models.causal_lm
from specmatrix.benchmarks.command import machine
from specmatrix.benchmarks.shapes import SHAPES, LlamaShape, write_eagle3, write_frame
from specmatrix.benchmarks.steady import ROUNDS, Asked, Bench, Decoding, free
from specmatrix.engine.api import LLM
from specmatrix.engine.models.tensor_parallel import ShardedWeightReader
from specmatrix.engine.parallel.group import RankGroup
from specmatrix.engine.parallel.worker import Rank
from specmatrix.errors import ConfigError
from specmatrix.reports.atomic import write_text

SIZES: Final = (1, 2, 4, 8)
DEPTH: Final = 5
KINDS: Final = ("decode", "eagle3")

# Seconds per round in each repetition, by the number of ranks.
Times: TypeAlias = Mapping[int, Sequence[float]]


@dataclass(frozen=True, slots=True)
class RankSetup:
    """The measurement. repetitions: of ROUNDS rounds each, per number of ranks; all stay below the next CUDA-graph
    size."""

    model: str
    shape: LlamaShape
    device: str
    prompt: int
    batches: Sequence[int]
    repetitions: int


ON_GPUS: Final = RankSetup("Llama-3.1-8B", SHAPES["Llama-3.1-8B"], "cuda", 1024, (1, 32), 6)
# For trying the benchmark itself.
ON_CPU: Final = RankSetup("tiny", LlamaShape(32, 56, 6, 4, 2, 8, 768, tied=True), "cpu", 128, (1, 3), 2)


class DrawnShare(ShardedWeightReader):
    """Generates random target tensors in bf16 instead of reading them; the ranks' shards belong to the same tensor."""

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16, device=self._device)
        drawn = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        # On the rank's own GPU, which a bare "cuda" does not select.
        generator = torch.Generator(drawn.device).manual_seed(crc32(name.encode()))
        return drawn.normal_(0, 0.02, generator=generator)


@contextmanager
def drawn_weights() -> Iterator[None]:
    """Targets loaded within the context get random weights instead of their checkpoint's."""
    specmatrix.engine.models.causal_lm.ShardedWeightReader = DrawnShare  # type: ignore[misc]
    try:
        yield
    finally:
        specmatrix.engine.models.causal_lm.ShardedWeightReader = ShardedWeightReader  # type: ignore[misc]


def begin(rank: Rank, bench: Bench, batch: int, asked: Asked) -> None:
    """On a rank: start an engine with `batch` decoding requests, replacing the previous one."""
    rank.held = None
    free()
    config = bench.config(batch, {**asked, "dtype": "bfloat16", "tp_size": rank.place.size})
    ranks = rank.ranks(config.enable_deterministic_inference)
    with drawn_weights():
        llm = LLM(config, clock=lambda: rank.now, ranks=ranks, publish=rank.publish)
    # Memory cached by the allocator after loading would be missing for the other groups on this GPU.
    free()
    rank.held = Decoding(llm, bench.prompts(llm.vocab_size, batch))


def timed_rounds(rank: Rank) -> float:
    """On a rank: seconds per round."""
    decoding: Decoding = rank.held
    return decoding.timed_rounds()


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times of `ranks` ranks at a batch size. times: of one kind of round; alone: those of the fewest ranks."""

    kind: str
    batch: int
    ranks: int
    times: Sequence[float]
    alone: Sequence[float]
    fewest: int

    def as_dict(self) -> dict[str, Any]:
        """As JSON-serialisable data: milliseconds per round, speed-up over the fewest ranks, and efficiency."""
        ratios = [one / time for one, time in zip(self.alone, self.times, strict=True)]
        return {
            "kind": self.kind,
            "batch": self.batch,
            "ranks": self.ranks,
            "ms": 1e3 * median(self.times),
            "min_ms": 1e3 * min(self.times),
            "max_ms": 1e3 * max(self.times),
            "ratio": median(ratios),
            "min_ratio": min(ratios),
            "max_ratio": max(ratios),
            "efficiency": median(ratios) * self.fewest / self.ranks,
            "repetitions": len(self.times),
        }


def measure(setup: RankSetup, sizes: Sequence[int]) -> list[RankTimes]:
    """A row for each kind of round, batch size and number of ranks. RankLost and RanksDiverged as in RankGroup."""
    with TemporaryDirectory() as name, ExitStack() as stack, ThreadPoolExecutor(len(sizes)) as pool:
        starts = pool.map(lambda size: RankGroup(size, setup.device), sizes)
        target = write_frame(Path(name) / "target", setup.shape)
        draft = write_eagle3(Path(name) / "eagle3", setup.shape, setup.device)
        free()
        groups = [stack.enter_context(closed(group)) for group in starts]
        bench = Bench(setup.model, str(target), str(draft), setup.device, setup.prompt)
        rows = []
        for kind, asked in zip(KINDS, ({}, bench.chain(DEPTH)), strict=True):
            for batch in setup.batches:
                # Started concurrently: the wait is the slowest start, not the sum.
                list(pool.map(start, groups, *(repeat(each) for each in (bench, batch, asked))))
                rows += by_size(kind, batch, interleaved(groups, setup.repetitions))
    return rows


@contextmanager
def closed(group: RankGroup) -> Iterator[RankGroup]:
    """A group that is closed on exit."""
    try:
        yield group
    finally:
        group.close()


def start(group: RankGroup, bench: Bench, batch: int, asked: Asked) -> None:
    """Start a group's next engine and advance its requests to decoding."""
    group.begin()
    group.call(begin, bench, batch, asked)
    group.call(timed_rounds)


def interleaved(groups: Sequence[RankGroup], repetitions: int) -> Times:
    """Repetitions of each group, interleaved in alternating order."""
    times: dict[int, list[float]] = {group.size: [] for group in groups}
    for number in range(repetitions):
        for group in groups[:: (1, -1)[number % 2]]:
            times[group.size].append(group.call(timed_rounds))
    return times


def by_size(kind: str, batch: int, times: Times) -> list[RankTimes]:
    """A row for each number of ranks, the fewest first."""
    fewest = min(times)
    return [RankTimes(kind, batch, size, times[size], times[fewest], fewest) for size in sorted(times)]


def markdown(record: Mapping[str, Any]) -> str:
    """The record as a table: a row per batch size and number of ranks, with both kinds of rounds."""
    host, found = record["machine"], {(row["batch"], row["ranks"], row["kind"]): row for row in record["rows"]}
    repetitions = f"{record['rows'][0]['repetitions']} repetitions of {record['rounds']} rounds"
    lines = [
        f"{record['device']}; {host['cores']}-core {host['processor']}, Python {host['python']}, torch "
        f"{host['torch']}. {record['model']}, random weights, bf16, prompts of {record['prompt']} tokens; EAGLE3 "
        f"chains of {record['depth']}. Medians of {repetitions}, with minimum and maximum.",
        "",
        "| batch | ranks | decode step, ms | ratio | efficiency | EAGLE3 round, ms | ratio | efficiency |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for batch, ranks in sorted({(batch, ranks) for batch, ranks, _ in found}):
        cells = [_cells(found[batch, ranks, kind]) for kind in KINDS]
        lines.append(f"| {batch} | {ranks} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> str:
    time = f"{row['ms']:.2f} ({row['min_ms']:.2f} to {row['max_ms']:.2f})"
    return f"{time} | {row['ratio']:.2f} ({row['min_ratio']:.2f} to {row['max_ratio']:.2f}) | {row['efficiency']:.0%}"


def sizes_of(asked: Sequence[int], most: int) -> list[int]:
    """The numbers of ranks to measure: the requested ones, else all up to `most`. ConfigError on others."""
    allowed = [size for size in SIZES if size <= most]
    if not allowed:
        raise ConfigError("benchmark 'ranks' needs a GPU but this machine has none; use --cpu to try it")
    for size in asked:
        if size not in allowed:
            raise ConfigError(
                f"benchmark 'ranks' cannot run {size} ranks here; allowed: {', '.join(map(str, allowed))}"
            )
    return sorted(set(asked)) or allowed


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the table or JSON. Exit status 2 on numbers of ranks that cannot run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", nargs="*", type=int, help="numbers of ranks; default: all for which there are GPUs")
    parser.add_argument("--cpu", action="store_true", help="try it with a tiny model on 1 and 2 CPU ranks")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="also write ranks.json and ranks.md here")
    options = parser.parse_args(words)
    setup = ON_CPU if options.cpu else ON_GPUS
    try:
        sizes = sizes_of(options.ranks, 2 if options.cpu else torch.cuda.device_count())
    except ConfigError as error:
        parser.error(str(error))
    record = {
        "rows": [row.as_dict() for row in measure(setup, sizes)],
        "model": setup.model,
        "prompt": setup.prompt,
        "depth": DEPTH,
        "rounds": ROUNDS,
        "device": setup.device if options.cpu else torch.cuda.get_device_name(),
        "machine": machine(),
    }
    if options.out is not None:
        write_text(options.out / "ranks.json", json.dumps(record, indent=1) + "\n")
        write_text(options.out / "ranks.md", markdown(record) + "\n")
    print(json.dumps(record) if options.json else markdown(record), flush=True)


if __name__ == "__main__":
    # Ranks import functions by module name, which must not be __main__.
    importlib.import_module("specmatrix.benchmarks.ranks").main()
