"""The tensor-parallel reference engine as a subject: every rank runs the same requests, rank 0 answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, distributed

from specmatrix.engine.api import LLM
from specmatrix.engine.build import known_facts
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.parallel.group import PATIENCE, GroupLease, RankGroup, RanksDiverged
from specmatrix.engine.parallel.worker import Rank
from specmatrix.matrix.subjects.engine_process import RemoteEngine
from specmatrix.matrix.subjects.in_process import ManualClock, ReferenceEngine, ReferenceSubject
from specmatrix.matrix.subjects.protocol import Answer, Diverged, RunningEngine
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import resolve_path


class UnequalRanks(Ranks):
    """Ranks whose numbers differ, as those of different GPUs may: a rank other than 0 rounds logits, and `_start` those
    of its draft, and has other confidences. Rank 0 decides, so nothing that the ranks compare may change."""

    def joined(self, part: Tensor, dim: int = -1) -> Tensor:
        whole = super().joined(part, dim)
        return whole.round_() if self.rank and dim == -1 else whole


class RankedSubject(ReferenceSubject):
    """Starts the engine in this process, or in one process per rank.

    patience: seconds without a message after which a rank counts as lost (engine.parallel.group.RankLost).
    """

    def __init__(self, locate: Callable[[str], Path] = resolve_path, patience: float = PATIENCE) -> None:
        super().__init__(locate)
        self.patience = patience

    def start_engine(self, config: EngineConfig) -> RunningEngine:  # type: ignore[override]  # wider than one process
        """Start the engine. ConfigError before any process starts if the configuration cannot run."""
        if config.tp_size == 1:
            return super().start_engine(config)
        return RankedEngine(config, self.locate, self.patience)


class RankedEngine(RemoteEngine):
    """One engine with one process per rank."""

    def __init__(self, config: EngineConfig, locate: Callable[[str], Path], patience: float = PATIENCE) -> None:
        self._resolved = resolve(config, known_facts(config, locate))
        self._lease = GroupLease(self._resolved.tp_size, self._resolved.device, patience)
        try:
            self.call_ranks(_start, config, locate)
        except BaseException:
            self.close()
            raise

    @property
    def group(self) -> RankGroup:
        """The ranks. EngineError after close."""
        return self._lease.group

    @property
    def resolved(self) -> Mapping[str, Any]:
        return self._resolved.as_dict()

    @property
    def start_hash(self) -> str:
        return self._resolved.start_hash()

    def generate(self, requests: Sequence[RequestSpec]) -> list[Answer]:
        """As ReferenceEngine.generate, on every rank."""
        found: list[Answer] = self.call_ranks(_generate, requests)
        return found

    def readback(self) -> Mapping[str, Any]:
        """Rank 0's readback, with each rank's as `ranks`."""
        found: list[Mapping[str, Any]] = self.call_ranks(_read_each, "readback")
        return {**found[0], "ranks": found}

    def resources(self) -> None:
        """None: GPU resources are recorded for single-rank engines only."""

    def ranks(self) -> Agreement | None:
        return self.group.agreement

    def close(self) -> None:
        """Release the engine; its processes stay ready for another one."""
        self._lease.close()

    def call(self, method: str) -> Any:  # noqa: ANN401 - as the method
        return self.call_ranks(_read, method)

    def call_ranks(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as the function
        try:
            return self.group.call(function, *arguments)
        except RanksDiverged as found:
            raise Diverged(found.agreement) from None


def _start(rank: Rank, config: EngineConfig, locate: Callable[[str], Path]) -> None:
    clock = ManualClock()
    kind = UnequalRanks if config.strict_memory else Ranks  # what is timed does no more than it must
    ranks = kind(rank.place.rank, rank.place.size, config.enable_deterministic_inference)
    llm = LLM(config, locate, clock, ranks, rank.publish)
    drafter: Any = getattr(llm.loop.executor, "drafter", None)
    drafts = getattr(drafter, "layers", None) or filter(None, [getattr(drafter, "model", None)])
    for draft in drafts if kind is UnequalRanks and ranks.rank else ():
        draft.logits = lambda hidden, exact=draft.logits: exact(hidden).round()
        if hasattr(draft, "confidences"):
            draft.confidences = lambda *given, exact=draft.confidences: _doubted(exact(*given))
    rank.held = ReferenceEngine(llm, clock)


def _doubted(sure: Tensor | None) -> Tensor | None:
    return None if sure is None else 1 - sure


def _generate(rank: Rank, requests: Sequence[RequestSpec]) -> list[Answer]:
    engine: ReferenceEngine = rank.held
    return engine.generate(requests)


def _read(rank: Rank, name: str) -> Any:  # noqa: ANN401 - as the engine's method of that name
    return getattr(rank.held, name)()


def _read_each(rank: Rank, name: str) -> list[Any]:
    """`_read` of every rank, on every rank."""
    found: list[Any] = [None] * rank.place.size
    distributed.all_gather_object(found, _read(rank, name))
    return found
