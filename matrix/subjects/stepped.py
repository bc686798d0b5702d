"""A run of asks on an engine that steps in this process. Imports the standard library only, as `protocol`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from specmatrix.matrix.subjects.protocol import RunningEngine, SubjectRequest


class SentAsk(Protocol):
    """An ask that was sent."""

    @property
    def ended(self) -> bool:
        """Whether all of its completions have ended."""
        ...


Sent = TypeVar("Sent", bound=SentAsk)


class SteppedEngine(RunningEngine, Generic[Sent]):
    """An engine whose steps are called here. title: the engine's name."""

    title: str

    def send(self, ask: SubjectRequest) -> Sent:
        """Add an ask to the engine. What the engine refuses has ended."""
        raise NotImplementedError

    def abort(self, sent: Sent) -> None:
        """Abort what has as many tokens as its ask allows before an abort."""
        raise NotImplementedError

    def busy(self) -> bool:
        """Whether a request runs or waits."""
        raise NotImplementedError

    def step(self, sent: Mapping[str, Sent]) -> None:
        """One step of the engine."""
        raise NotImplementedError

    def run(self, asks: Sequence[SubjectRequest]) -> dict[str, Sent]:
        """Run the asks to their end, each once those that it waits for have ended."""
        waiting, sent = list(asks), dict[str, Sent]()
        while waiting or not all(one.ended for one in sent.values()):
            ended = {name for name, one in sent.items() if one.ended}
            due = [ask for ask in waiting if ended.issuperset(ask.after)]
            waiting = [ask for ask in waiting if ask not in due]
            sent |= {ask.id: self.send(ask) for ask in due}
            for one in sent.values():
                self.abort(one)
            if self.busy():
                self.step(sent)
            elif not due and ended.issuperset(name for name, one in sent.items() if one.ended):
                stuck = [ask.id for ask in waiting] or [name for name, one in sent.items() if not one.ended]
                raise RuntimeError(f"{self.title} has no unfinished request, but {stuck[0]} has not ended")
        return sent
