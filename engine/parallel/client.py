"""The API of an engine over several ranks: `RankedLLM`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, Self

from specmatrix.engine.api import LLM, Output, Prompt
from specmatrix.engine.build import Locate, known_facts
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.parallel.group import PATIENCE, GroupLease, RankGroup
from specmatrix.engine.parallel.worker import Rank

# Steps of a generation per call to the ranks, which takes 0.1 ms: an interrupt waits for this many steps.
STEPS: Final = 8


class RankedLLM:
    """`LLM` over config.tp_size processes on this machine.

    locate: as for LLM, and importable by name in a fresh process. ConfigError as for LLM; RankLost, RanksDiverged and
    the effect of an interrupt as in RankGroup.call, which `generate` calls once every few steps. `close`, or the end of
    a `with`, keeps the processes for the next engine; otherwise they end when this object is dropped.
    """

    def __init__(self, config: EngineConfig, locate: Locate = Path, patience: float = PATIENCE) -> None:
        self.resolved = resolve(config, known_facts(config, locate))
        self._lease = GroupLease(self.resolved.tp_size, self.resolved.device, patience)
        self._numbers = count()
        # Ids of generators on the ranks that are no longer needed: the next call drops them first.
        self._unwanted: set[int] = set()
        try:
            self.group.call(_start_engine, config, locate)
        except BaseException:
            self.close()
            raise

    @property
    def group(self) -> RankGroup:
        """The ranks. Raises EngineError after `close`."""
        return self._lease.group

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        session: SessionParams | Sequence[SessionParams | None] | None = None,
    ) -> list[Output]:
        """As LLM.generate."""
        outputs: list[Output]
        with self.group.exclusive():
            *_, outputs = self._run(_generation, prompts, params, session)
        return outputs

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, session: SessionParams | None = None
    ) -> Iterator[str]:
        """As LLM.stream."""
        return self._run(LLM.stream, prompt, params, session)

    def open_session(
        self,
        capacity_of_str_len: int,
        session_id: str | None = None,
        streaming: bool = False,
        timeout: float | None = None,
    ) -> str:
        """As LLM.open_session."""
        return str(self.call_ranks(_method, "open_session", capacity_of_str_len, session_id, streaming, timeout))

    def close_session(self, session_id: str) -> None:
        """As LLM.close_session."""
        self.call_ranks(_method, "close_session", session_id)

    def release_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """As LLM.release_memory_occupation, on every rank."""
        self.call_ranks(_method, "release_memory_occupation", tags)

    def resume_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """As LLM.resume_memory_occupation, on every rank."""
        self.call_ranks(_method, "resume_memory_occupation", tags)

    def update_weights_from_disk(self, model_path: str, draft_model_path: str | None = None) -> None:
        """As LLM.update_weights_from_disk, on every rank."""
        self.call_ranks(_method, "update_weights_from_disk", model_path, draft_model_path)
        self.resolved = self.call_ranks(_attribute, "resolved")

    def readback(self) -> dict[str, Any]:
        """As LLM.readback, of rank 0."""
        found: dict[str, Any] = self.call_ranks(_method, "readback")
        return found

    @property
    def counters(self) -> dict[str, int]:
        """As LLM.counters, of rank 0."""
        found: dict[str, int] = self.call_ranks(_attribute, "counters")
        return found

    @property
    def health(self) -> str:
        """As LLM.health, of rank 0; or why the ranks have ended."""
        ended = self.group.ended
        return str(self.call_ranks(_attribute, "health")) if ended is None else f"broken: {ended}"

    @property
    def drafter_error(self) -> str | None:
        """As LLM.drafter_error, of rank 0."""
        found: str | None = self.call_ranks(_attribute, "drafter_error")
        return found

    def close(self) -> None:
        """Release the ranks for reuse. Every later call except this one raises EngineError."""
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, start: Callable[..., Iterator[Any]], *arguments: object) -> Iterator[Any]:
        """Yield what start(llm, *arguments) yields on the ranks; closing this drops the generator on the ranks."""
        number = next(self._numbers)
        try:
            self.call_ranks(_start, number, start, *arguments)
            while found := self.call_ranks(_next, number):
                yield found[0]
        finally:
            # No call here: this may run during another call's garbage collection, or after an interrupt.
            self._unwanted.add(number)

    def call_ranks(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as the function
        unwanted = tuple(self._unwanted)
        found = self.group.call(_drop_and_call, unwanted, function, *arguments)
        self._unwanted.difference_update(unwanted)
        return found


@dataclass(slots=True)
class _Share:
    """A rank's part of an engine. running: generators that `RankedLLM._run` started, by id."""

    llm: LLM
    running: dict[int, Iterator[Any]] = field(default_factory=dict)


def _start_engine(rank: Rank, config: EngineConfig, locate: Locate) -> None:
    # The caller's clock is sent with each call, so the seconds are equal on all ranks.
    ranks = rank.ranks(config.enable_deterministic_inference)
    rank.held = _Share(LLM(config, locate, lambda: rank.now, ranks, rank.publish))


def _drop_and_call(rank: Rank, unwanted: Sequence[int], function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as the function
    for number in unwanted:
        rank.held.running.pop(number, None)
    return function(rank, *arguments)


def _llm(rank: Rank) -> LLM:
    share: _Share = rank.held
    return share.llm


def _start(rank: Rank, number: int, start: Callable[..., Iterator[Any]], *arguments: object) -> None:
    rank.held.running[number] = start(_llm(rank), *arguments)


def _next(rank: Rank, number: int) -> list[Any]:
    """[next item], or [] after the last. All ranks run the same number of steps, because they have the same tokens."""
    return list(islice(rank.held.running[number], 1))


def _generation(llm: LLM, *arguments: Any) -> Iterator[list[Output]]:  # noqa: ANN401 - those of LLM.generate
    """LLM.generation, yielding an empty list only once every few steps."""
    for number, outputs in enumerate(llm.generation(*arguments), 1):
        if outputs or number % STEPS == 0:
            yield outputs


def _method(rank: Rank, name: str, *arguments: object) -> Any:  # noqa: ANN401 - as the method
    return getattr(_llm(rank), name)(*arguments)


def _attribute(rank: Rank, name: str) -> Any:  # noqa: ANN401 - as the attribute
    return getattr(_llm(rank), name)
