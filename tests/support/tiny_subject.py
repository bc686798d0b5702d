"""Subjects in one file, as a user would write them: an engine with a small interface of its own, and one that replays
what the oracle says and misbehaves on demand."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from threading import Event
from typing import TYPE_CHECKING, Any

from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES
from specmatrix.matrix.subjects.protocol import (
    Answer,
    Capability,
    Diverged,
    EngineCommand,
    Profile,
    RunningEngine,
    Subject,
    SubjectRequest,
    Unsupported,
)
from specmatrix.matrix.workloads.finish import Ending, ending, text_of
from specmatrix.matrix.workloads.questions import prompt_ids, questions
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_of
from specmatrix.matrix.zoo.gsm_mini import prompt_of
from specmatrix.matrix.zoo.registry import eos_ids, resolve_path

if TYPE_CHECKING:
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# Axes that mean something here; a cell with another value than the default on any other axis is unsupported.
TAKEN = ("algorithm", "model", "steps", "topk", "batch", "sampling", "finish", "abort")
VALUES = {"algorithm": ("none", "eagle3"), "batch": ("single", "pair"), "abort": ("none", "running")}
LONGEST = 512


def translate(prepared: PreparedCell) -> EngineCommand | Unsupported:
    """The cell's drafter, depth and requests in this engine's words."""
    cell = prepared.cell
    for one in AXES:
        value = cell.values[one.name]
        if one.name in VALUES and value not in VALUES[one.name]:
            return Unsupported(f"it has no {one.name} {value}")
        if one.name not in TAKEN and value != one.default:
            return Unsupported(f"it has no {one.name}")
    shape = prepared.predicted
    if isinstance(shape, ConfigError) or shape.topk > 1:
        return Unsupported("its drafts are chains")
    if any(request.ruled or request.no_stop_trim for request in prepared.requests):
        return Unsupported("it has no logit rules and cuts every stop string")
    if any(request.n > 1 or request.prompt_logprobs >= 0 for request in prepared.requests):
        return Unsupported("it completes a prompt once, without its log-probabilities")
    flags = {"drafter": cell.algorithm, "depth": shape.num_steps}
    models = {"target": cell.target} | ({"draft": cell.draft} if cell.draft else {})
    asks = tuple(SubjectRequest(r.name, prompt_ids(r), fields(r), r.after, r.abort_after) for r in prepared.requests)
    return EngineCommand(flags, models, asks)


def fields(request: RequestSpec) -> dict[str, Any]:
    """A request's limits, sampling and stopping rules under this engine's names."""
    given = {"tokens": request.max_new_tokens, "heat": request.temperature, "seed": request.seed}
    ends = {"stop": list(request.stop), "stop_ids": list(request.stop_token_ids), "endless": request.ignore_eos}
    more = {"best": request.top_logprobs, "scores": request.logprobs, "top_k": request.top_k, "top_p": request.top_p}
    return {**given, **ends, **more}


DIVERGED = Agreement(2, 3, 3, ("a", "b"), "step 1: the plan of rank 1 and of rank 0 differ")


class TinySubject(Subject):
    """The reference engine behind another interface: no journal, no sessions, no counters but totals."""

    name = "tiny"
    profile = Profile(
        frozenset(
            {Capability.TOKEN_IDS, Capability.LOGPROBS, Capability.ROUNDS, Capability.TOTALS, Capability.READBACK}
            | {Capability.ABORT, Capability.SAMPLED_IDENTITY}
        ),
        cannot={Capability.JOURNAL: "its pages have no journal"},
    )

    def version(self) -> str:
        return "1.2.3"

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        return translate(prepared)

    def start(self, command: EngineCommand) -> RunningEngine:
        return TinyEngine(command)


class TinyEngine(RunningEngine):
    def __init__(self, command: EngineCommand) -> None:
        import torch

        from specmatrix.engine.api import LLM
        from specmatrix.engine.core.config.asked import EngineConfig

        torch.set_num_threads(1)
        shape = {"speculative_num_steps": command.flags["depth"], "speculative_eagle_topk": 1}
        given = {} if command.flags["drafter"] == "none" else shape
        self.flags = dict(command.flags)
        drafter = command.flags["drafter"].upper(), command.checkpoints.get("draft")
        given |= {"enable_deterministic_inference": True}
        self.llm = LLM(EngineConfig(command.checkpoints["target"], *drafter, **given), resolve_path)

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        found = {ask.id: self._refused(ask) for ask in asks if len(ask.input_ids) > LONGEST}
        rids = {ask.id: self._add(ask) for ask in asks if ask.id not in found}
        aborts = {rids[ask.id]: ask.abort_after for ask in asks if ask.abort_after is not None}
        while self.llm.loop.busy:
            self.llm.step()
            for rid in [rid for rid, after in aborts.items() if len(self.llm.request(rid).output) >= after]:
                del aborts[rid]
                self.llm.abort(rid)
        return [found.get(ask.id) or self._answer(ask, rids[ask.id]) for ask in asks]

    def readback(self) -> Mapping[str, Any]:
        resolved = self.llm.readback()
        return {"drafter": resolved["algorithm"].lower(), "depth": self.flags["depth"] and resolved["num_steps"]}

    def counters(self) -> Mapping[str, int]:
        return {name: self.llm.counters[name] for name in ("spec.drafted", "spec.accepted")}

    def _add(self, ask: SubjectRequest) -> int:
        from specmatrix.engine.core.schedule.request import SamplingParams

        given = ask.fields
        params = SamplingParams(
            given["tokens"],
            temperature=given["heat"],
            top_k=given["top_k"],
            top_p=given["top_p"],
            seed=given["seed"],
            stop=tuple(given["stop"]),
            stop_token_ids=tuple(given["stop_ids"]),
            ignore_eos=given["endless"],
            return_logprob=given["scores"],
            top_logprobs_num=given["best"],
        )
        return self.llm.add(ask.input_ids, params)

    def _refused(self, ask: SubjectRequest) -> Answer:
        text = f"the prompt has {len(ask.input_ids)} tokens; allowed: {LONGEST}"
        return Answer(ask.id, ask.input_ids, (), "", "refused", None, 0, (), refusal=text)

    def _answer(self, ask: SubjectRequest, rid: int) -> Answer:
        done = self.llm.take(rid)
        end = done.finish
        return Answer(
            ask.id, ask.input_ids, done.output_ids, done.text, end.reason, end.matched, 0, done.accept_lengths,
            done.logprobs, done.top_logprobs,
        )  # fmt: skip


REPLAYS = Profile(
    frozenset({Capability.TOKEN_IDS, Capability.ROUNDS, Capability.READBACK, Capability.ABORT}),
    start_seconds=60,
    answer_seconds=60,
)


@dataclass
class ReplaySubject(Subject):
    """Answers with the oracle's continuations in the oracle's rounds, without a model. fault: what it does wrong with a
    drafter, always (`plain ...`), or without one (`baseline ...`).

    profile: with limits that a test can wait for.
    """

    fault: str = ""
    name: str = "replay"
    profile: Profile = REPLAYS

    def version(self) -> str:
        return "1.0"

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        if prepared.cell.sampling != "greedy":
            return Unsupported("it only replays")
        return translate(prepared)

    def start(self, command: EngineCommand) -> RunningEngine:
        drafts = command.flags["drafter"] != "none"
        if drafts and self.fault == "refuse":
            raise ConfigError("drafter eagle3 is not available; use none")
        wanted = {"plain": True, "baseline": not drafts}.get(self.fault.partition(" ")[0], drafts)
        return ReplayEngine(command, self.fault if wanted else "")


class ReplayEngine(RunningEngine):
    def __init__(self, command: EngineCommand, fault: str) -> None:
        self.command, self.fault = command, fault
        self.target = command.checkpoints["target"]
        oracle = oracle_of(self.target)
        assert oracle is not None
        self.depth = int(command.flags["depth"])
        rounds = oracle.rounds.get((command.flags["drafter"], self.depth, 1, self.depth + 1), ((),) * len(questions()))
        self.known = {
            prompt_ids(RequestSpec("", prompt_of(question), 1)): (ids, lengths)
            for (question, _), ids, lengths in zip(questions(), oracle.continuations, rounds, strict=False)
        }
        self.last = 0  # the bonus token of the round before, of whichever request

    def readback(self) -> Mapping[str, Any]:
        return {**self.command.flags, **({"depth": 9} if self.fault == "rewrite" else {})}

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        if self.fault.endswith("crash"):
            print("about to fall over", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            Event().wait()
        if self.fault == "raise":
            raise RuntimeError("a wire came loose")
        if self.fault == "diverge":
            raise Diverged(DIVERGED)
        answers = [self._answer(ask) for ask in asks]
        if self.fault == "answers from a cache":
            first = answers[0]
            answers = [replace(first, name=one.name, prompt_ids=one.prompt_ids) for one in answers]
        return answers[::-1] if self.fault == "order" else answers

    def _answer(self, ask: SubjectRequest) -> Answer:
        base = next(ids for ids in self.known if ask.input_ids[: len(ids)] == ids)
        given, (text, rounds) = len(ask.input_ids) - len(base), self.known[base]
        ids = list(text[given:])
        if self.fault in ("plain differs", "baseline differs") and not given and len(ids) > 4:
            ids[4] += 1
        ids += [eos + 1 for eos in eos_ids(self.target)] * 400
        spec = RequestSpec(
            ask.id, "", ask.fields["tokens"], stop=tuple(ask.fields["stop"]),
            stop_token_ids=tuple(ask.fields["stop_ids"]), ignore_eos=ask.fields["endless"],
        )  # fmt: skip
        drafted = self.command.flags["drafter"] != "none"
        found = self._decoded(ask, spec, ids, rounds if drafted else ())
        if not drafted:
            found = replace(found, accept_lengths=())
        if self.fault == "refusal":
            return replace(found, finish="refused", output_ids=(), accept_lengths=(), refusal="too busy")
        return found

    def _decoded(self, ask: SubjectRequest, spec: RequestSpec, ids: list[int], rounds: Sequence[int]) -> Answer:
        """Emit the text round by round until it ends; a round that no oracle knows has one token."""
        out, lengths, due = [ids[0]], list[int](), list(rounds)
        abort = None if self.fault == "ignores aborts" else ask.abort_after
        while (end := self._end(spec, out, lengths)).reason == "open" and (abort is None or len(out) < abort):
            length = self._accepted(due.pop(0) if due else 1, len(lengths))
            out += self._emitted(ids[len(out) :], length)
            lengths.append(length)
        reason = "abort" if end.reason == "open" else end.reason
        reason = "length" if self.fault == "calls a stop length" and reason == "stop" else reason
        kept = tuple(out[: end.tokens])
        return Answer(ask.id, ask.input_ids, kept, end.text, reason, end.matched, 0, tuple(lengths))

    def _accepted(self, due: int, place: int) -> int:
        """Tokens of the round at a place."""
        ruined = self.fault == "never accepts" or (self.fault == "ruins drafts after 4 rounds" and place >= 4)
        return 1 if ruined else self.depth + 1 if self.fault == "knows the text" else due

    def _emitted(self, ids: list[int], length: int) -> list[int]:
        """The tokens of a round, the next ones of the text."""
        found, last, full = ids[:length], self.last, length == self.depth + 1
        self.last = found[-1]
        if self.fault == "keeps the rejected draft" and not full:
            found[-1] += 1
        if self.fault == "repeats the root" and full:
            found[0] = last
        if self.fault == "swaps the last two" and full:
            found[-2:] = found[:-3:-1]
        if self.fault == "takes the neighbour's bonus" and full and last:
            found[-1] = last
        return found

    def _end(self, spec: RequestSpec, out: list[int], lengths: list[int]) -> Ending:
        """How a request ends with its last round."""
        end = ending(spec, tuple(out), self.target)
        late = {
            "checks stop strings at a round's end": isinstance(end.matched, str),
            "checks stop tokens at a round's end": end.reason == "stop" and not isinstance(end.matched, str),
            "checks the limit at a round's end": end.reason == "length",
        }
        if late.get(self.fault):
            return end._replace(tokens=len(out))
        if self.fault == "forgets stop strings over two rounds" and isinstance(end.matched, str):
            own = text_of(tuple(out[-lengths[-1] :])) if lengths else ""
            return end if end.matched in own else ending(replace(spec, stop=()), tuple(out), self.target)
        if self.fault == "decodes each round alone":
            ends = list(accumulate(lengths, initial=1))
            parts = zip([0, *ends], ends, strict=False)
            return end._replace(text="".join(text_of(tuple(out[at:to][: end.tokens - at])).strip() for at, to in parts))
        return end
