"""Rounds on one GPU against its memory: random weights of published shapes, prompts of 1024 tokens, bf16.

Drafts of random weights are hardly ever accepted; what is measured is what a round costs, whatever it yields.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

import torch

from benchmarks.metric import Metric, of, spread_of
from benchmarks.pairs import Pairs, interleave, seconds
from benchmarks.shapes import SHAPES, Llama, write_eagle3, write_target
from engine.api import LLM
from engine.core.config import EngineConfig
from engine.core.errors import ConfigError
from engine.core.request import SamplingParams

PROMPT: Final = 1024
# Rounds of a turn; all turns of an engine together stay below the next size of its graphs.
ROUNDS: Final = 16
PAIRS: Final = 10
WARM: Final = 8
READ_BYTES: Final = 2 << 30
DEPTHS: Final = (1, 3, 5, 7)
# Share of the memory floor at batch 1, at batch 32, and v2 over v1, by shape.
GOALS: Final = {"Llama-3.2-1B": (0.65, None, 1.20), "Llama-3.1-8B": (0.87, 0.78, 1.08)}
ROUND_GOAL: Final = (1.06, 0.070)


def measure() -> list[Metric]:
    """Every figure of every shape. ConfigError without a GPU."""
    if not torch.cuda.is_available():
        raise ConfigError("benchmark 'gpu' needs a GPU and this machine shows none")
    rate = read_rate()
    with TemporaryDirectory() as folder:
        return [
            of("memory_read_tb_per_second", [rate / 1e12], None, 0.0, note=torch.cuda.get_device_name()),
            *(metric for name, shape in SHAPES.items() for metric in _shape(name, shape, Path(folder), rate)),
        ]


def read_rate() -> float:
    """Bytes per second at which this GPU reads its memory: the best of a few sums over a large tensor."""
    data = torch.ones(READ_BYTES // 8, dtype=torch.int64, device="cuda")
    best = min(_device_seconds(lambda: data.sum()) for _ in range(8))
    return READ_BYTES / best


def _device_seconds(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def _shape(name: str, shape: Llama, folder: Path, rate: float) -> Iterator[Metric]:
    target = str(write_target(folder / name, shape, "cuda"))
    draft = str(write_eagle3(folder / f"{name}-eagle3", shape, "cuda"))
    one, many, overlap = GOALS[name]
    for batch, goal in ((1, one), (32, many)):
        with _decoding(target, batch) as engine:
            times = [engine.turn() for _ in range(PAIRS)]
        floor = (shape.step_bytes + batch * PROMPT * shape.token_bytes) / rate
        shares = [floor / time for time in times]
        note = f"floor {floor * 1e3:.2f} ms, step {sorted(times)[PAIRS // 2] * 1e3:.2f} ms"
        yield of(f"{name}_decode_batch_{batch}_of_floor", shares, goal, spread_of(times), note=note)
    for versus, ours, theirs, goal in (
        ("v2_over_v1", {"spec_version": "v2"}, {"spec_version": "v1"}, overlap),
        ("graphs_over_eager", {}, {"disable_cuda_graph": True}, None),
        ("fast_over_deterministic", {}, {"enable_deterministic_inference": True}, None),
    ):
        yield _pair(target, ours, theirs).metric(f"{name}_decode_{versus}", goal)
    for depth in DEPTHS:
        drafted = {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": draft,
            "speculative_num_steps": depth,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": depth + 1,
        }
        times = _pair(target, {}, drafted)
        ratios, goal = times.ratios, ROUND_GOAL[0] + ROUND_GOAL[1] * depth
        shown = goal if name == "Llama-3.1-8B" else None
        yield of(f"{name}_eagle3_round_{depth}_in_decode_steps", ratios, shown, spread_of(times.ours), "lower")


def _pair(target: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Pairs:
    with _decoding(target, 1, ours) as one, _decoding(target, 1, theirs) as other:
        return interleave(one.turn, other.turn, PAIRS)


class Decoding:
    """An engine whose requests all decode; each turn is ROUNDS rounds, all of them waited for."""

    def __init__(self, llm: LLM, batch: int) -> None:
        self.llm = llm
        numbers = torch.randint(
            2, llm.tokenizer.vocab_size, (batch, PROMPT), generator=torch.Generator().manual_seed(0)
        )
        params = SamplingParams(max_new_tokens=PROMPT, ignore_eos=True)
        self.rids = [llm.add(prompt, params) for prompt in numbers.tolist()]
        while not all(llm.request(rid).output for rid in self.rids):
            llm.step()
        self._rounds(WARM)

    def turn(self) -> float:
        """Seconds of a round."""
        return seconds(lambda: self._rounds(ROUNDS)) / ROUNDS

    def _rounds(self, count: int) -> None:
        for _ in range(count):
            self.llm.step()
        torch.cuda.synchronize()


@contextmanager
def _decoding(target: str, batch: int, asked: Mapping[str, Any] = MappingProxyType({})) -> Iterator[Decoding]:
    made = LLM(
        EngineConfig(
            target,
            device="cuda",
            context_length=2 * PROMPT,
            max_total_tokens=(batch + 1) * 2 * PROMPT,
            max_running_requests=batch,
            chunked_prefill_size=PROMPT,
            disable_radix_cache=True,
            **asked,
        )
    )
    decoding = Decoding(made, batch)
    del made
    try:
        yield decoding
    finally:
        # Whoever still has it must not keep the engine's memory.
        del decoding.llm
        gc.collect()
        torch.cuda.empty_cache()
