"""The front door to an engine over several ranks: `RankedLLM`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from engine.api import LLM, Output, Prompt, known_facts
from engine.build import Locate
from engine.core.config import EngineConfig
from engine.core.request import SamplingParams
from engine.core.resolve import resolve
from engine.core.session import SessionParams
from engine.ranks.group import PATIENCE
from engine.ranks.process import Rank
from engine.ranks.spare import give_back, lend


class RankedLLM:
    """`LLM` over config.tp_size processes of this machine, from its front door to its last collective.

    locate: as for LLM, and known by name to a fresh process. ConfigError as for LLM; RankLost and RanksDiverged as in
    RankGroup. `close` keeps the processes for the next engine; without it they end when this is dropped.
    """

    def __init__(self, config: EngineConfig, locate: Locate = Path, patience: float = PATIENCE) -> None:
        self.resolved = resolve(config, known_facts(config, locate))
        self.group = lend(self.resolved.tp_size, self.resolved.device, patience)
        self.group.call(_launch, config, locate)
        self._streams = count()

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        session: SessionParams | Sequence[SessionParams | None] | None = None,
    ) -> list[Output]:
        """As LLM.generate."""
        found: list[Output] = self.group.call(_generate, prompts, params, session)
        return found

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, session: SessionParams | None = None
    ) -> Iterator[str]:
        """As LLM.stream."""
        number = next(self._streams)
        self.group.call(_open_stream, number, prompt, params, session)
        try:
            while (text := self.group.call(_next_text, number)) is not None:
                yield text
        except GeneratorExit:
            self.group.call(_close_stream, number)
            raise

    def open_session(
        self,
        capacity_of_str_len: int,
        session_id: str | None = None,
        streaming: bool = False,
        timeout: float | None = None,
    ) -> str:
        """As LLM.open_session."""
        return str(self.group.call(_open_session, capacity_of_str_len, session_id, streaming, timeout))

    def close_session(self, session_id: str) -> None:
        """As LLM.close_session."""
        self.group.call(_close_session, session_id)

    def readback(self) -> dict[str, Any]:
        """As LLM.readback, of rank 0."""
        found: dict[str, Any] = self.group.call(_readback)
        return found

    @property
    def probes(self) -> dict[str, int]:
        """As LLM.probes, of rank 0."""
        found: dict[str, int] = self.group.call(_probes)
        return found

    @property
    def drafter_error(self) -> str | None:
        """As LLM.drafter_error, of rank 0."""
        found: str | None = self.group.call(_drafter_error)
        return found

    def close(self) -> None:
        """Let the engine go; its ranks are spare then."""
        give_back(self.group)


@dataclass(slots=True)
class _Share:
    """What a rank holds of an engine. streams: the texts that are still growing, by number."""

    llm: LLM
    streams: dict[int, Iterator[str]] = field(default_factory=dict)


def _launch(rank: Rank, config: EngineConfig, locate: Locate) -> None:
    # The seconds that the caller sends are the same on every rank.
    ranks = rank.ranks(config.enable_deterministic_inference)
    rank.held = _Share(LLM(config, locate, lambda: rank.now, ranks, rank.tell))


def _llm(rank: Rank) -> LLM:
    share: _Share = rank.held
    return share.llm


def _generate(rank: Rank, *arguments: Any) -> list[Output]:  # noqa: ANN401 - those of LLM.generate
    return _llm(rank).generate(*arguments)


def _open_stream(rank: Rank, number: int, *arguments: Any) -> None:  # noqa: ANN401 - those of LLM.stream
    rank.held.streams[number] = _llm(rank).stream(*arguments)


def _next_text(rank: Rank, number: int) -> str | None:
    """None behind the last one. All ranks go on for as many steps, as they have the same tokens."""
    text: str | None = next(rank.held.streams[number], None)
    if text is None:
        del rank.held.streams[number]
    return text


def _close_stream(rank: Rank, number: int) -> None:
    rank.held.streams.pop(number).close()


def _open_session(rank: Rank, *arguments: Any) -> str:  # noqa: ANN401 - those of LLM.open_session
    return _llm(rank).open_session(*arguments)


def _close_session(rank: Rank, session_id: str) -> None:
    _llm(rank).close_session(session_id)


def _readback(rank: Rank) -> dict[str, Any]:
    return _llm(rank).readback()


def _probes(rank: Rank) -> dict[str, int]:
    return _llm(rank).probes


def _drafter_error(rank: Rank) -> str | None:
    return _llm(rank).drafter_error
