"""The front door to an engine over several ranks: `RankedLLM`."""

from __future__ import annotations

from collections.abc import Sequence
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
    RankGroup.
    """

    def __init__(self, config: EngineConfig, locate: Locate = Path, patience: float = PATIENCE) -> None:
        self.resolved = resolve(config, known_facts(config, locate))
        self.group = lend(self.resolved.tp_size, self.resolved.device, patience)
        self.group.call(_launch, config, locate)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        session: SessionParams | Sequence[SessionParams | None] | None = None,
    ) -> list[Output]:
        """As LLM.generate."""
        found: list[Output] = self.group.call(_generate, prompts, params, session)
        return found

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

    def close(self) -> None:
        """Let the engine go; its ranks are spare then."""
        give_back(self.group)


def _launch(rank: Rank, config: EngineConfig, locate: Locate) -> None:
    # The seconds that the caller sends are the same on every rank.
    rank.held = LLM(config, locate, lambda: rank.now, rank.ranks(config.enable_deterministic_inference), rank.tell)


def _generate(rank: Rank, *arguments: Any) -> list[Output]:  # noqa: ANN401 - those of LLM.generate
    found: list[Output] = rank.held.generate(*arguments)
    return found


def _open_session(rank: Rank, *arguments: Any) -> str:  # noqa: ANN401 - those of LLM.open_session
    return str(rank.held.open_session(*arguments))


def _close_session(rank: Rank, session_id: str) -> None:
    rank.held.close_session(session_id)


def _readback(rank: Rank) -> dict[str, Any]:
    found: dict[str, Any] = rank.held.readback()
    return found


def _probes(rank: Rank) -> dict[str, int]:
    found: dict[str, int] = rank.held.probes
    return found
