"""Engines in steady state on one device: all requests decode, round after round."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

import specmatrix.engine.build
from specmatrix.benchmarks.metric import Pairs, interleave, own_time, seconds
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.models.causal_lm import CausalLM

# Rounds per repetition; all repetitions of an engine together stay below its next CUDA-graph size.
ROUNDS: Final = 16
PAIRS: Final = 10
WARM: Final = 8
# Rounds that refill the pipeline after a synchronisation.
LEAD: Final = 2

# Fields of an engine's configuration.
Asked: TypeAlias = Mapping[str, Any]
NOTHING: Final[Asked] = MappingProxyType({})
TIMING: Final = "spec_version"


@dataclass(frozen=True, slots=True)
class Bench:
    """A target and its EAGLE3 draft with random weights, their device, and the prompt length in tokens."""

    name: str
    target: str
    draft: str
    device: str = "cuda"
    prompt: int = 1024

    def chain(self, depth: int) -> dict[str, Any]:
        """Configuration fields for chains of `depth` drafts, which are hardly ever accepted."""
        return {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": self.draft,
            "speculative_num_steps": depth,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": depth + 1,
        }

    def engine(self, batch: int, asked: Asked = NOTHING) -> LLM:
        """An engine for `batch` requests of twice the prompt's length."""
        config = EngineConfig(
            self.target,
            device=self.device,
            context_length=2 * self.prompt,
            max_total_tokens=(batch + 1) * 2 * self.prompt,
            max_running_requests=batch,
            chunked_prefill_size=self.prompt,
            disable_radix_cache=True,
            **asked,
        )
        return LLM(config)

    def prompts(self, vocab_size: int, batch: int) -> list[list[int]]:
        """The same random tokens every time."""
        generator = torch.Generator().manual_seed(0)
        drawn: list[list[int]] = torch.randint(2, vocab_size, (batch, self.prompt), generator=generator).tolist()
        return drawn

    @contextmanager
    def decoding(self, batch: int, asked: Asked = NOTHING) -> Iterator[Decoding]:
        """An engine whose requests are decoding."""
        with freed(self.engine(batch, asked)) as llm:
            yield Decoding(llm, self.prompts(llm.vocab_size, batch))

    def pair(self, ours: Asked, theirs: Asked, batch: int = 1, rounds: int | None = None) -> Pairs:
        """Interleaved rounds of two engines, `rounds` per turn if given. If only their timing differs, their tokens
        must be equal."""
        with self.decoding(batch, ours) as one, self.decoding(batch, theirs) as other:
            pairs = interleave(partial(one.steady, rounds), partial(other.steady, rounds), PAIRS, clock=own_time)
            if {**ours, TIMING: ""} == {**theirs, TIMING: ""}:
                pairs = pairs._replace(differs=difference(one.outputs(), other.outputs()))
        return pairs


class Decoding:
    """An engine's requests after prefill; a repetition is ROUNDS rounds, followed by a synchronisation."""

    def __init__(self, llm: LLM, prompts: list[list[int]]) -> None:
        self._step: Callable[[], bool] = llm.step
        self._request = llm.request
        self._cuda = llm.resolved.device != "cpu"
        params = SamplingParams(max_new_tokens=len(prompts[0]), ignore_eos=True)
        self._rids = [llm.add(prompt, params) for prompt in prompts]
        while not all(llm.request(rid).output for rid in self._rids):
            llm.step()
        self.rounds(WARM)

    def timed_rounds(self) -> float:
        """Seconds per round of one repetition."""
        return seconds(lambda: self.rounds(ROUNDS)) / ROUNDS

    def steady(self, rounds: int | None = None) -> float:
        """Seconds per round in steady state: the rounds that fill the pipeline and the final wait are not timed."""
        count = ROUNDS if rounds is None else rounds
        self._steps(LEAD)
        taken = seconds(lambda: self._steps(count)) / count
        self.rounds(0)
        return taken

    def outputs(self) -> list[list[int]]:
        """The tokens of each request so far, without those of a round in flight."""
        return [list(self._request(rid).output) for rid in self._rids]

    def rounds(self, count: int) -> None:
        self._steps(count)
        if self._cuda:
            torch.cuda.synchronize()

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._step()


def difference(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> str:
    """The first difference between the tokens of a request, up to the shorter length, or ""."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for at, (token, wanted) in enumerate(zip(one, other, strict=False)):
            if token != wanted:
                return f"request {number}: token {at} is {token} against {wanted}"
    return ""


@contextmanager
def freed(llm: LLM) -> Iterator[LLM]:
    """The engine; its memory is released on exit even if references to it remain."""
    try:
        yield llm
    finally:
        llm.__dict__.clear()
        free()


def free() -> None:
    """Return unreferenced memory to the GPU, if there is one."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def targets_kept() -> Iterator[None]:
    """Within the context, engines reuse the last loaded target."""
    load = specmatrix.engine.build.load_target
    loaded = lru_cache(maxsize=1)(load)

    def kept(*wanted: Any) -> CausalLM:  # noqa: ANN401 - as load_target
        # One target has the positions for rounds of any width.
        *others, positions = wanted
        return loaded(*others, 1 << positions.bit_length())

    try:
        specmatrix.engine.build.load_target = kept
        yield
    finally:
        specmatrix.engine.build.load_target = load
        loaded.cache_clear()
        free()
