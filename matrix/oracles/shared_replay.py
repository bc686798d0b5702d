"""Replays the verify rounds of a drafter that all requests share, from the journal and the answers.

All requests of an engine share one n-gram index, or one suffix tree of their outputs, so what a round accepts depends
on all rounds before it, including earlier workloads. The journal gives the order of rounds, the answers give the
tokens; nothing else comes from the engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

from specmatrix.matrix.oracles.ngram import Grams, Suffixes
from specmatrix.matrix.subjects.protocol import Answer, Journal, Served
from specmatrix.matrix.workloads.questions import tokenizer
from specmatrix.matrix.zoo.registry import CORPUS, CORPUS_FILE


class ReplayError(Exception):
    """The journal and the answers disagree; the message says where."""


@dataclass(frozen=True, slots=True)
class Round:
    """One verify round of a request: its expected number of tokens, bonus included.

    least: the answer ends inside the accepted path, so `length` is a lower bound. width: the nodes that are verified,
    0 if every round verifies as many.
    """

    length: int
    least: bool
    width: int = 0

    def allows(self, accepted: int, width: int) -> bool:
        """Whether a round of `width` nodes, 0 if unknown, that accepts `accepted` tokens matches."""
        fits = accepted >= self.length if self.least else accepted == self.length
        return fits and (not width or self.width in (0, width))


@dataclass(slots=True)
class _Running:
    """A request while it holds an account: positions with KV, known tokens, and whether it is prefilling."""

    served: Served
    text: str
    committed: int
    known: int
    reads: bool = True  # prefilling: the prompt, and after a retraction also its output
    drafted: bool = False  # its last round is not settled

    @property
    def ahead(self) -> str:
        """The tokens after the known ones."""
        return self.text[self.known :]


@cache
def corpus() -> tuple[str, ...]:
    """The documents of the zoo's corpus, one character per token."""
    lines = CORPUS_FILE.read_text(encoding="utf-8").splitlines()
    found = (tokenizer().encode(json.loads(line), add_special_tokens=False).ids for line in lines)
    return tuple("".join(map(chr, ids)) for ids in found)


class SharedReplay:
    """Replays a journal for the served requests; `rounds`: request id to the expected rounds; `mixed`: rounds in which
    some requests have drafts and others have none.

    resolved: the running configuration, with the drafter's options under `ngram` or `suffix`; max_round: the most
    tokens of a request in a step, 0 for any. limits: request id to the most tokens of its prompt and output, if a draft
    ends before its first node that they have no room for.
    """

    def __init__(
        self, resolved: Mapping[str, Any], served: Iterable[Served], limits: Mapping[int, int] | None = None
    ) -> None:
        self.rounds: dict[int, list[Round]] = {}
        self.mixed = 0
        self._resolved, self._limits = resolved, limits or {}
        ngram, suffix = resolved["ngram"], resolved["suffix"]
        self.grams = Grams(ngram or {}, corpus() if ngram and ngram["external_corpus_path"] == CORPUS else ())
        self.suffixes = None if suffix is None else Suffixes(suffix, resolved["max_running_requests"])
        self._queues: dict[int, list[Served]] = {}
        for one in served:
            self._queues.setdefault(one.account, []).append(one)
        self._left: dict[int, int] = {}  # remaining stays of a request, by id
        self._known: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._running: dict[int, _Running] = {}
        self._batch: list[_Running] = []  # the round that is launched, but not settled
        self._read: dict[int, int] = {}  # request id to inserted tokens, least recent first

    def walk(self, journal: Journal) -> None:
        """ReplayError if an account has no request, or a round starts before the previous one was read."""
        for operation, account, number, _ in journal:
            if operation == "forget":
                self._forget(account)
            elif operation == "open":
                self._begin(account, number)
            elif operation == "resume":
                self._begin(account, self._held.pop(account) - number)
            elif operation == "launch" and not self._running[account].reads:
                self._launch(self._running[account])
            elif operation == "settle":
                self._settle(self._running[account], number)
            elif operation == "hold":
                self._end(account)
                self._held[account] = number
            elif operation == "close":
                self._end(account)

    def _begin(self, account: int, committed: int) -> None:
        queue = self._queues.get(account, [])
        while queue and not self._left.setdefault(queue[0].id, queue[0].retractions + 1):
            queue.pop(0)
        if not queue:
            raise ReplayError(f"account {account} of the journal belongs to no answered request")
        served = queue[0]
        self._left[served.id] -= 1
        known = self._known.setdefault(served.id, served.prompt)
        self._running[account] = _Running(served, "".join(map(chr, served.tokens)), committed, known)

    def _end(self, account: int) -> None:
        self._held.pop(account, None)
        request = self._running.pop(account, None)
        if request is None:
            return
        if request in self._batch:
            self._drafted()
        self._known[request.served.id] = request.known
        if request.drafted:  # for nothing, as the request has ended
            self.rounds[request.served.id].pop()
        if not self._left[request.served.id]:  # of what a request is read by only its outputs stay
            self._read.pop(request.served.id, None)
            if self.suffixes is not None:
                self.suffixes.own.pop(request.served.id, None)

    def _forget(self, account: int) -> None:
        """A drafter of suffixes that reads a request anew reads its prompt, and its output from here on."""
        assert self.suffixes is not None
        served = self._queues[account][0]
        self._end(account)
        self.suffixes.forget(served.id, self._known[served.id])

    def _launch(self, request: _Running) -> None:
        if request.committed != request.known - 1:
            text = (
                f"a round of {request.served.name} starts at position {request.committed}, but {request.known} tokens "
                "are known"
            )
            raise ReplayError(text)
        self._batch.append(request)

    def _settle(self, request: _Running, accepted: int) -> None:
        if self._batch:
            self._drafted()
        request.committed += accepted
        request.drafted = False
        if not request.reads:
            request.known = min(len(request.text), request.known + accepted)
        elif request.committed >= request.known:
            request.reads = False
            request.known = min(len(request.text), request.known + 1)

    def _drafted(self) -> None:
        """Draft for every row of the round; an n-gram index reads all rows' texts first."""
        matched = set[bool]()
        drafts = self._by_grams() if self.suffixes is None else self._by_suffixes(self.suffixes)
        for request, paths in zip(self._batch, drafts, strict=True):
            matched.add(self.grams.matched if self.suffixes is None else len(paths) > 1)
            room = self._resolved.get("max_round") or math.inf
            if request.served.id in self._limits:
                room = min(room, self._limits[request.served.id] - request.known)
            paths = [*takewhile(lambda path, room=room: len(path) < room, paths)]  # type: ignore[misc]  # a default
            fits = next(length for length in range(len(request.ahead), -1, -1) if request.ahead[:length] in paths)
            width = len(paths) if self.suffixes is not None or request.served.id in self._limits else 0
            found = Round(fits + 1, fits == len(request.ahead), width)
            self.rounds.setdefault(request.served.id, []).append(found)
            request.drafted = True
        self.mixed += len(matched) == 2
        self._batch = []

    def _by_grams(self) -> Iterator[Collection[str]]:
        for request in self._batch:
            known = self._read.pop(request.served.id, 0)
            self.grams.show(request.text[: request.known], known)
            self._read[request.served.id] = request.known
            if len(self._read) > self._resolved["max_running_requests"]:
                del self._read[next(iter(self._read))]
        sizes = [self._resolved[size] for size in ("num_draft_tokens", "topk", "num_steps")]
        for request in self._batch:
            yield self.grams.draft(request.text[: request.known], *sizes)

    def _by_suffixes(self, suffixes: Suffixes) -> Iterator[Collection[str]]:
        for request in self._batch:
            served, text = request.served, request.text[: request.known]
            draft = suffixes.draft(served.id, text, served.prompt, self._resolved["num_steps"])
            yield [draft[:length] for length in range(len(draft) + 1)]


def rounds_read(answer: Answer) -> Sequence[int]:
    """The rounds of an answer, as a shared drafter read them if the subject shows that."""
    found: Sequence[int] = answer.meta_info.get("rounds", answer.accept_lengths)
    return found


def first_replay_mismatch(answer: Answer, due: Sequence[Round]) -> int | None:
    """Index of the first round that the replay does not allow or that one side lacks; None if none."""
    mine = rounds_read(answer)
    widths = answer.round_widths or (0,) * len(mine)
    for index, (accepted, width, one) in enumerate(zip(mine, widths, due, strict=False)):
        if not one.allows(accepted, width):
            return index
    return None if len(mine) == len(due) else min(len(mine), len(due))
