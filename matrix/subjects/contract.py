"""The contract that every subject must satisfy, whatever the gates say of its engine.

Translations are data, pure and complete, of every request field; ids come back; answers depend on no other ask of the
batch; refusals are answers; an abort ends a request; a flag is read back; an engine can be closed twice and is killed
after its limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from traceback import extract_tb
from typing import Any, Final, NamedTuple

from specmatrix.errors import ConfigError
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
DRAFTED: Final = tuple(Cell(algorithm=name, batch="pair") for name in axis("algorithm").names[1:])
# More tokens than any zoo model's context.
TOO_MANY: Final = 20_000
ABORT_AFTER: Final = 5
STAGE: Final = "pr"
# Another value of each request field that changes what an engine must do; the sampling fields count at a temperature.
REQUESTED: Final[Mapping[str, Any]] = {
    "max_new_tokens": 7, "temperature": 0.5, "top_k": 5, "top_p": 0.5, "seed": 11, "stop": ("x",),
    "stop_token_ids": (9,), "ignore_eos": True, "top_logprobs": 3, "abort_after": 2, "logprobs": True,
    "min_new_tokens": 3, "min_p": 0.5, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5,
    "logit_bias": ((9, 2.0),), "bad_words_ids": ((9,),), "allowed_token_ids": (8, 9), "no_stop_trim": True,
    "n": 2, "prompt_logprobs": 0,
}  # fmt: skip
SAMPLED: Final = ("top_k", "top_p", "seed", "min_p")
# Fields that a subject may leave out unless it claims them.
CLAIMED: Final = {"top_logprobs": Capability.LOGPROBS, "logprobs": Capability.LOGPROBS, "abort_after": Capability.ABORT}


class ContractCheck(NamedTuple):
    """One part of the contract. fault: a sentence on what is wrong, "" if nothing is."""

    name: str
    fault: str


def check_contract(subject: Subject) -> Iterator[ContractCheck]:
    """Check a subject part by part. ConfigError if it runs in this process or supports no plain cell."""
    if subject.profile.in_process:
        raise ConfigError(
            f"subject {subject.name!r} runs in this process, without asks; only others have this contract"
        )
    yield ContractCheck("translations are pure data", _raised(lambda: _translated(subject)))
    yield ContractCheck("no request field is ignored", _raised(lambda: _ignored(subject)))
    commands = (subject.translate(prepare(cell, subject=subject.name)) for cell in (*PLAIN, *DRAFTED))
    command = next((found for found in commands if isinstance(found, EngineCommand)), None)
    if command is None:
        raise ConfigError(f"subject {subject.name!r} supports neither {' nor '.join(cell.id for cell in PLAIN)}")
    session = _Checks(subject, command)
    try:
        for name, check in session.checks().items():
            yield ContractCheck(name, _fault(check))
    finally:
        session.stop()


def _fault(check: Callable[[], str]) -> str:
    try:
        return check()
    except (EngineFailed, ConfigError) as error:
        return str(error)


def _raised(check: Callable[[], str]) -> str:
    """The fault that a check finds, or what `translate` raised, and where."""
    try:
        return check()
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        return f"translate raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def _translated(subject: Subject) -> str:
    """What is wrong with the first translation that is not pure JSON data with an ask for each request."""
    for cell in dict.fromkeys([*stage_cells(STAGE), *subject_cells(STAGE, subject.name)]):
        prepared = prepare(cell, workload=subject.requests, subject=subject.name)
        found = translated(subject, prepared)
        if found != translated(subject, prepared):
            return f"{cell.id} has two translations"
        if isinstance(found, Unsupported):
            if not found.reason.strip():
                return f"{cell.id} is unsupported without a reason"
            continue
        try:
            json.dumps([dict(found.flags), dict(found.checkpoints), dict(found.environment)])
            json.dumps([dict(ask.fields) for ask in found.asks if isinstance(ask, SubjectRequest)])
        except TypeError as error:
            return f"the command of {cell.id} is not JSON: {error}"
        ids = [ask.id for ask in found.asks if isinstance(ask, SubjectRequest) and ask.input_ids]
        if ids != [request.name for request in prepared.requests]:
            return f"the asks of {cell.id} must be its requests, in order and with token ids, got {ids!r:.60}"
    return ""


def _ignored(subject: Subject) -> str:
    """What the first request field is that changes nothing in a plain cell's translation."""
    for name, value in REQUESTED.items():
        if CLAIMED.get(name, Capability.TOKEN_IDS) not in subject.profile.capabilities:
            continue
        plain = RequestSpec("q0", "Question:", 5, temperature=0.7 if name in SAMPLED else 0.0)
        before, after = (
            subject.translate(prepare(Cell(), workload=lambda *_, one=one: (one,), subject=subject.name))
            for one in (plain, replace(plain, **{name: value}))
        )
        if before == after and isinstance(after, EngineCommand):
            return f"{name} changes nothing in the translation; translate it, or answer Unsupported"
    return ""


@dataclass
class _Checks:
    """Engines of one command, started as checks need them."""

    subject: Subject
    command: EngineCommand
    engine: EngineProcess | None = None
    answers: tuple[Answer, ...] = ()

    def checks(self) -> dict[str, Callable[[], str]]:
        """The checks by name, in order; each returns a fault or ""."""
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

    def running(self) -> EngineProcess:
        """The engine, a new one if the last has ended."""
        if self.engine is None or self.engine.ended:
            self.engine = EngineProcess(self.subject, self.command)
        return self.engine

    def asks(self) -> list[SubjectRequest]:
        """The command's asks."""
        return [ask for ask in self.command.asks if isinstance(ask, SubjectRequest)]

    def ids(self) -> str:
        self.answers = tuple(self.running().generate(self.asks()))
        for ask, answer in zip(self.asks(), self.answers, strict=True):
            if tuple(answer.prompt_ids) != tuple(ask.input_ids):
                return f"the prompt_ids of {ask.id} are not its input_ids"
            if answer.finish not in ("stop", "length"):
                return f"{ask.id} must finish by stop or length, got {answer.finish!r} ({answer.refusal})"
        return ""

    def alone(self) -> str:
        for ask, before in zip(self.asks(), self.answers, strict=False):
            (answer,) = self.running().generate([ask])
            if (answer.output_ids, answer.text) != (before.output_ids, before.text):
                return f"{ask.id} has another answer alone than with the other asks"
        return ""

    def refusal(self) -> str:
        ask = self.asks()[0]
        (answer,) = self.running().generate([replace(ask, input_ids=(ask.input_ids * TOO_MANY)[:TOO_MANY])])
        if answer.finish != "refused" or not answer.refusal:
            return f"a prompt of {TOO_MANY} tokens must be refused with a message, got finish {answer.finish!r}"
        return self.alone()

    def abort(self) -> str:
        (answer,) = self.running().generate([replace(self.asks()[0], abort_after=ABORT_AFTER)])
        if answer.finish != "abort" or len(answer.output_ids) < ABORT_AFTER:
            tokens = len(answer.output_ids)
            return f"an abort after {ABORT_AFTER} tokens must end it, got finish {answer.finish!r} and {tokens} tokens"
        return ""

    def read_back(self) -> str:
        unread = [flag for flag in self.command.flags if flag not in self.running().readback()]
        return f"{unread[0]} is a flag, and is not read back" if unread else ""

    def closed_twice(self) -> str:
        engine = self.running()
        engine.close()
        engine.close()
        return "" if engine.ended else "the process still runs"

    def limit(self) -> str:
        engine = self.running()
        engine.answer_seconds = 0.1
        engine.pause()
        with suppress(EngineFailed):
            engine.generate(self.asks())
            return "it answered while it was suspended"
        return "" if engine.ended else "the process still runs"

    def stop(self) -> None:
        if self.engine is not None:
            self.engine.stop()
