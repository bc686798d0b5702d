"""Engines whose requests all decode, round after round, on one device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

import specmatrix.engine.build
from specmatrix.benchmarks.pairs import Pairs, interleave, seconds, told
from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.models.target import Target

# Rounds of a turn; all turns of an engine together stay below the next size of its graphs.
ROUNDS: Final = 16
PAIRS: Final = 10
WARM: Final = 8
# Rounds that fill the pipeline again which a wait has emptied.
LEAD: Final = 2

# Fields of an engine's configuration.
Asked: TypeAlias = Mapping[str, Any]
NOTHING: Final[Asked] = MappingProxyType({})
TIMING: Final = "spec_version"


@dataclass(frozen=True, slots=True)
class Bench:
    """A target and its EAGLE3 draft of random weights, where they run, and the tokens of each prompt."""

    name: str
    target: str
    draft: str
    device: str = "cuda"
    prompt: int = 1024

    def chain(self, depth: int) -> dict[str, Any]:
        """What asks for chains of `depth` drafts; they are hardly ever accepted."""
        return {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": self.draft,
            "speculative_num_steps": depth,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": depth + 1,
        }

    def engine(self, batch: int, asked: Asked = NOTHING) -> LLM:
        """An engine for `batch` requests of twice the prompt's length."""
        return LLM(self.config(batch, asked))

    def config(self, batch: int, asked: Asked = NOTHING) -> EngineConfig:
        """What `engine` is made from."""
        return EngineConfig(
            self.target,
            device=self.device,
            context_length=2 * self.prompt,
            max_total_tokens=(batch + 1) * 2 * self.prompt,
            max_running_requests=batch,
            chunked_prefill_size=self.prompt,
            disable_radix_cache=True,
            **asked,
        )

    def prompts(self, vocab_size: int, batch: int) -> list[list[int]]:
        """The same random tokens every time."""
        generator = torch.Generator().manual_seed(0)
        drawn: list[list[int]] = torch.randint(2, vocab_size, (batch, self.prompt), generator=generator).tolist()
        return drawn

    @contextmanager
    def decoding(self, batch: int, asked: Asked = NOTHING) -> Iterator[Decoding]:
        """An engine in the middle of its requests."""
        with freed(self.engine(batch, asked)) as llm:
            yield Decoding(llm, self.prompts(llm.vocab_size, batch))

    def pair(self, ours: Asked, theirs: Asked, batch: int = 1, rounds: int | None = None) -> Pairs:
        """Rounds of two engines by turns, of `rounds` where it is given. Where only their timing differs, no token may
        differ."""
        with self.decoding(batch, ours) as one, self.decoding(batch, theirs) as other:
            pairs = interleave(partial(one.steady, rounds), partial(other.steady, rounds), PAIRS, clock=told)
            if {**ours, TIMING: ""} == {**theirs, TIMING: ""}:
                pairs = replace(pairs, wrong=difference(one.outputs(), other.outputs()))
        return pairs


class Decoding:
    """Requests of an engine behind their prompts; a turn is ROUNDS rounds, all of them waited for."""

    def __init__(self, llm: LLM, prompts: list[list[int]]) -> None:
        self._step: Callable[[], bool] = llm.step
        self._request = llm.request
        self._cuda = llm.resolved.device != "cpu"
        params = SamplingParams(max_new_tokens=len(prompts[0]), ignore_eos=True)
        self._rids = [llm.add(prompt, params) for prompt in prompts]
        while not all(llm.request(rid).output for rid in self._rids):
            llm.step()
        self.rounds(WARM)

    def turn(self) -> float:
        """Seconds of a round."""
        return seconds(lambda: self.rounds(ROUNDS)) / ROUNDS

    def steady(self, rounds: int | None = None) -> float:
        """Seconds of a round among others: those that fill the pipeline, and the wait at the end, are not timed."""
        count = ROUNDS if rounds is None else rounds
        self._steps(LEAD)
        taken = seconds(lambda: self._steps(count)) / count
        self.rounds(0)
        return taken

    def outputs(self) -> list[list[int]]:
        """The tokens of each request so far; a round in flight is not among them."""
        return [list(self._request(rid).output) for rid in self._rids]

    def rounds(self, count: int) -> None:
        self._steps(count)
        if self._cuda:
            torch.cuda.synchronize()

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._step()


def difference(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> str:
    """Where the tokens of a request differ, as far as both have come, or ""."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for at, (token, wanted) in enumerate(zip(one, other, strict=False)):
            if token != wanted:
                return f"request {number}: token {at} is {token} against {wanted}"
    return ""


@contextmanager
def freed(llm: LLM) -> Iterator[LLM]:
    """The engine, whose memory is given back at the end whoever still holds it."""
    try:
        yield llm
    finally:
        llm.__dict__.clear()
        free()


def free() -> None:
    """Give the memory of what nobody holds back to the device."""
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def targets_kept(most: int = 1) -> Iterator[None]:
    """Engines made meanwhile load a target once, for as long as no other `most` targets were loaded."""
    load = specmatrix.engine.build.load_target
    loaded = lru_cache(maxsize=most)(load)

    def kept(*wanted: Any) -> Target:  # noqa: ANN401 - as load_target
        # Rounds of any width find their positions in one target.
        *others, positions = wanted
        return loaded(*others, 1 << positions.bit_length())

    try:
        specmatrix.engine.build.load_target = kept
        yield
    finally:
        specmatrix.engine.build.load_target = load
        loaded.cache_clear()
        free()
