"""The contract that every subject must satisfy, independent of the gates' verdicts.

Translations are pure data and cover every request field; answers carry their ask's id and do not depend on the rest of
the batch; a refusal is an answer; an abort ends a request; flags are read back; an engine can be closed twice and is
killed after its time limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from traceback import extract_tb
from typing import Any, Final, NamedTuple

from specmatrix.errors import ConfigError, described, shown
from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import stage_cells, subject_cells
from specmatrix.matrix.subjects.engine_process import EngineFailed, EngineProcess
from specmatrix.matrix.subjects.protocol import Answer, Capability, EngineCommand, Subject, SubjectRequest, Unsupported
from specmatrix.matrix.subjects.translations import translated
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec

# The first of these that the subject supports; two asks also show whether they depend on each other. A running server
# may support none without a drafter.
PLAIN: Final = (Cell(batch="pair"), Cell())
HEADS: Final = {"dspark": "vanilla"}  # how the drafts are computed of an algorithm whose cells must say it
DRAFTED: Final = tuple(
    Cell(algorithm=name, batch="pair", drafting=HEADS.get(name, "stepwise")) for name in axis("algorithm").names[1:]
)
# More tokens than any zoo model's context.
TOO_MANY: Final = 20_000
ABORT_AFTER: Final = 5
STAGE: Final = "pr"
# A different value for each request field that affects the output; sampling fields need a temperature.
REQUESTED: Final[Mapping[str, Any]] = {
    "max_new_tokens": 7, "temperature": 0.5, "top_k": 5, "top_p": 0.5, "seed": 11, "stop": ("x",),
    "stop_token_ids": (9,), "ignore_eos": True, "top_logprobs": 3, "abort_after": 2, "logprobs": True,
    "min_new_tokens": 3, "min_p": 0.5, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5,
    "logit_bias": ((9, 2.0),), "bad_words_ids": ((9,),), "allowed_token_ids": (8, 9), "no_stop_trim": True,
    "n": 2, "prompt_logprobs": 0, "json_schema": "{}", "regex": "x", "ebnf": 'root ::= "x"',
    "structural_tag": '{"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}',
    "reasoning_end_ids": (9,),
}  # fmt: skip
SAMPLED: Final = ("top_k", "top_p", "seed", "min_p")
# Fields that a subject may leave out unless it claims them.
CLAIMED: Final = {"top_logprobs": Capability.LOGPROBS, "logprobs": Capability.LOGPROBS, "abort_after": Capability.ABORT}


class Broken(NamedTuple):
    """How a subject broke a law, each a phrase."""

    asked: str
    expected: str
    got: str


class Law(NamedTuple):
    """One part of the contract. check: runs it, which may take minutes; None if it holds."""

    name: str
    check: Callable[[], Broken | None]


def check_contract(subject: Subject) -> Generator[Law]:
    """Yield the laws for a subject; check each one before taking the next. ConfigError if it runs in this process or
    supports no cell."""
    if subject.profile.in_process:
        raise ConfigError(
            f"subject {subject.name!r} runs in this process, without asks; only others have this contract"
        )
    yield Law("translations are pure data", lambda: _raised(lambda: _translated(subject)))
    yield Law("no request field is ignored", lambda: _raised(lambda: _ignored(subject)))
    try:
        commands = [subject.translate(prepare(cell, subject=subject.name)) for cell in (*PLAIN, *DRAFTED)]
    except Exception as error:
        raise ConfigError(_raise_of(error)) from error
    command = next((found for found in commands if isinstance(found, EngineCommand)), None)
    if command is None:
        raise ConfigError(f"subject {subject.name!r} supports neither {' nor '.join(cell.id for cell in PLAIN)}")
    session = _Checks(subject, command)
    try:
        for name, check in session.checks().items():
            yield Law(name, partial(session.outcome, check))
            if session.engine is None:  # no engine starts, so there is nothing else to check
                return
    finally:
        session.stop()


def _raised(check: Callable[[], Broken | None]) -> Broken | None:
    """The result of a check, or what `translate` raised, and where."""
    try:
        return check()
    except Exception as error:
        return Broken("a translation", "a command or Unsupported", _raise_of(error))


def _raise_of(error: Exception) -> str:
    last = extract_tb(error.__traceback__)[-1]
    return f"translate raised {described(error)} ({last.filename}, line {last.lineno})"


def _translated(subject: Subject) -> Broken | None:
    """Return the first translation that is not deterministic JSON data with an ask for each request."""
    for cell in dict.fromkeys([*stage_cells(STAGE), *subject_cells(STAGE, subject.name)]):
        prepared = prepare(cell, workload=subject.requests, subject=subject.name)
        asked, found = f"the translation of {cell.id}", translated(subject, prepared)
        if found != translated(subject, prepared):
            return Broken(asked, "the same each time", "two")
        if isinstance(found, Unsupported):
            if not found.reason.strip():
                return Broken(asked, "a reason if it is unsupported", shown(found.reason))
            continue
        try:
            json.dumps([dict(found.flags), dict(found.checkpoints), dict(found.environment)])
            json.dumps([dict(ask.fields) for ask in found.asks if isinstance(ask, SubjectRequest)])
        except TypeError as error:
            return Broken(asked, "flags, checkpoints, environment and fields of asks as JSON", str(error))
        ids = [ask.id for ask in found.asks if isinstance(ask, SubjectRequest) and ask.input_ids]
        if ids != (due := [request.name for request in prepared.requests]):
            return Broken(asked, f"an ask with token ids for each request, in order: {shown(due)}", shown(ids))
    return None


def _ignored(subject: Subject) -> Broken | None:
    """Return the first request field that does not affect a plain cell's translation."""
    for name, value in REQUESTED.items():
        if CLAIMED.get(name, Capability.TOKEN_IDS) not in subject.profile.capabilities:
            continue
        plain = RequestSpec("q0", "Question:", 5, temperature=0.7 if name in SAMPLED else 0.0)
        before, after = (
            subject.translate(prepare(Cell(), workload=lambda *_, one=one: (one,), subject=subject.name))
            for one in (plain, replace(plain, **{name: value}))
        )
        if before == after and isinstance(after, EngineCommand):
            return Broken(
                f"the translation of a request with {name} {shown(value)}",
                "another command than without it, or Unsupported",
                "the same command",
            )
    return None


@dataclass
class _Checks:
    """Checks on engines of one command, started on demand. asked: description of the last request."""

    subject: Subject
    command: EngineCommand
    engine: EngineProcess | None = None
    answers: tuple[Answer, ...] = ()
    asked: str = ""

    def checks(self) -> dict[str, Callable[[], Broken | None]]:
        """The checks by name, in order."""
        claims = self.subject.profile.capabilities
        return {
            "ids come back": self.ids,
            "answers depend on no other ask": self.alone,
            "refusals are answers": self.refusal,
            **({"an abort ends a request": self.abort} if Capability.ABORT in claims else {}),
            **({"flags are read back": self.read_back} if Capability.READBACK in claims else {}),
            "an engine can be closed twice": self.closed_twice,
            "an engine that exceeds its limit is killed": self.limit,
        }

    def outcome(self, check: Callable[[], Broken | None]) -> Broken | None:
        """The result of a check, or how the engine failed."""
        try:
            return check()
        except (EngineFailed, ConfigError) as error:
            return Broken(self.asked, "an engine that goes on", str(error))

    def running(self) -> EngineProcess:
        """The engine, a new one if the last has ended."""
        if self.engine is None or self.engine.ended:
            self.asked = f"a start with {shown(dict(self.command.flags))}"
            self.engine = EngineProcess(self.subject, self.command)
        return self.engine

    def asks(self) -> list[SubjectRequest]:
        """The command's asks."""
        return [ask for ask in self.command.asks if isinstance(ask, SubjectRequest)]

    def answered(self, asked: str, *asks: SubjectRequest) -> list[Answer]:
        """The answers of the running engine to what `asked` describes."""
        engine = self.running()
        self.asked = asked
        return engine.generate(asks)

    def ids(self) -> Broken | None:
        self.answers = tuple(self.answered(f"{', '.join(ask.id for ask in self.asks())} at once", *self.asks()))
        for ask, answer in zip(self.asks(), self.answers, strict=True):
            if tuple(answer.prompt_ids) != tuple(ask.input_ids):
                return Broken(
                    f"{ask.id} with input_ids {shown(ask.input_ids)}",
                    "them as its prompt_ids",
                    shown(answer.prompt_ids),
                )
            if answer.finish not in ("stop", "length"):
                return Broken(f"{ask.id} {shown(dict(ask.fields))}", "finish 'stop' or 'length'", _finish(answer))
        return None

    def alone(self) -> Broken | None:
        self.answers = self.answers or tuple(self.answered("all asks at once", *self.asks()))
        for ask, before in zip(self.asks(), self.answers, strict=True):
            (answer,) = self.answered(f"{ask.id} alone", ask)
            if (answer.output_ids, answer.text) != (before.output_ids, before.text):
                due = f"its answer among the other asks, {shown(before.output_ids)} {shown(before.text)}"
                return Broken(self.asked, due, f"{shown(answer.output_ids)} {shown(answer.text)}")
        return None

    def refusal(self) -> Broken | None:
        ask = self.asks()[0]
        long = replace(ask, input_ids=(ask.input_ids * TOO_MANY)[:TOO_MANY])
        (answer,) = self.answered(f"a prompt of {TOO_MANY:,} tokens", long)
        if answer.finish != "refused" or not answer.refusal:
            return Broken(self.asked, "finish 'refused', and a message as `refusal`", _finish(answer))
        return self.alone()

    def abort(self) -> Broken | None:
        (answer,) = self.answered(
            f"an abort after {ABORT_AFTER} tokens", replace(self.asks()[0], abort_after=ABORT_AFTER)
        )
        if answer.finish != "abort" or len(answer.output_ids) < ABORT_AFTER:
            got = f"{_finish(answer)} and {len(answer.output_ids)} tokens"
            return Broken(self.asked, f"finish 'abort' and at least {ABORT_AFTER} tokens", got)
        return None

    def read_back(self) -> Broken | None:
        read = self.running().readback()
        unread = [flag for flag in self.command.flags if flag not in read]
        return Broken("what runs", f"the flag {unread[0]} among it", shown(dict(read))) if unread else None

    def closed_twice(self) -> Broken | None:
        engine = self.running()
        self.asked = "two calls of close"
        engine.close()
        engine.close()
        return None if engine.ended else Broken(self.asked, "a process that has ended", "the process still runs")

    def limit(self) -> Broken | None:
        engine = self.running()
        self.asked = "an answer within 0.1 s while it is suspended"
        engine.answer_seconds = 0.1
        engine.pause()
        with suppress(EngineFailed):
            engine.generate(self.asks())
            return Broken(self.asked, "no answer", "it answered")
        return None if engine.ended else Broken(self.asked, "a process that is killed", "the process still runs")

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.stop()


def _finish(answer: Answer) -> str:
    return f"finish {shown(answer.finish)}" + f" ({answer.refusal})" * bool(answer.refusal)
