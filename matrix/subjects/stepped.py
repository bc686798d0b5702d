"""A run of asks on an engine that steps in this process. Imports the standard library only, as `protocol`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from specmatrix.matrix.subjects.protocol import Answer, RunningEngine, SubjectRequest


@dataclass(eq=False)
class SentAsk:
    """An ask that was sent. finish: how it ended as a whole, "" if it runs. message: of a refusal or an error."""

    ask: SubjectRequest
    finish: str = ""
    message: str = ""

    @property
    def ended(self) -> bool:
        """Whether all of its completions have ended."""
        return bool(self.finish)


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

    def answer(self, sent: Sent) -> Answer:
        """The answer to an ask that has ended and was not refused."""
        raise NotImplementedError

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        """Run the asks. A refusal is an answer; what the engine raises in a step is raised."""
        sent = self.run(asks)
        return [
            Answer(ask.id, ask.input_ids, (), "", "refused", None, 0, (), refusal=one.message)
            if (one := sent[ask.id]).finish == "refused"
            else self.answer(one)
            for ask in asks
        ]

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
