"""A run of asks on an engine that steps in this process. Imports the standard library only, as `protocol`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

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


@dataclass(eq=False)
class SentText(SentAsk):
    """An ask of one text, whose rounds are seen. cached: prompt tokens whose KV was there. rounds: emitted tokens
    and nodes of each. rows: of each token, its log-probability and alternatives. pieces: the text after each token."""

    cached: int = 0
    ids: list[int] = field(default_factory=list)
    rounds: list[list[int]] = field(default_factory=list)
    rows: list[tuple[float, tuple[tuple[int, float], ...]]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def score(self, row: Any, token: int, alternatives: int) -> None:  # noqa: ANN401 - an array without its library
        """Note a token's log-probability, of those of all tokens, and its likeliest alternatives."""
        best = row.argsort()[::-1][:alternatives].tolist()
        self.rows.append((float(row[token]), tuple((one, float(row[one])) for one in best)))

    def answer(self, text: str, matched: int | str | None) -> Answer:
        """The answer, whose first round emitted the first token."""
        return Answer(
            self.ask.id,
            self.ask.input_ids,
            tuple(self.ids),
            text,
            self.finish,
            matched,
            self.cached,
            tuple(tokens for tokens, _ in self.rounds),
            logprobs=tuple(chosen for chosen, _ in self.rows),
            top_logprobs=tuple(top for _, top in self.rows if top),
            round_widths=tuple(width for _, width in self.rounds),
            pieces=tuple(dict.fromkeys(self.pieces)),
            drafts_first=bool(self.rounds),
        )


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
