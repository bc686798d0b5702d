"""The reference engine in this process as a subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from specmatrix import __version__
from specmatrix.engine.api import LLM, Output
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.memory.ledger import Entry
from specmatrix.engine.core.observe.rank_agreement import Agreement
from specmatrix.engine.core.schedule.request import SamplingParams, readable
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.errors import RequestError
from specmatrix.matrix.subjects.observations import Observation, Resources, Trace, WorkLog
from specmatrix.matrix.subjects.protocol import (
    Answer,
    Capability,
    EngineCommand,
    Journal,
    Memory,
    Profile,
    RunningEngine,
    Served,
    Stalled,
    Subject,
    Unsupported,
)
from specmatrix.matrix.subjects.resource_log import PageCanary, ResourceRecorder, device_bytes
from specmatrix.matrix.subjects.work_log import WorkRecorder
from specmatrix.matrix.workloads.request import Continuation, Refusal, RequestSpec
from specmatrix.matrix.zoo.registry import resolve_path

if TYPE_CHECKING:
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell


# The oldest request always proceeds, so concurrent requests take fewer steps than sequential ones, although younger
# ones are prefilled again after a retraction; a single request without drafts takes all of its steps.
SPARE: Final = 2


class Progress:
    """Counts an engine's steps, and the tokens of every request. chunk: tokens of a prefill step, None for whole
    prompts; lag: steps that may be unread.

    limit: maximum steps of the requests sent so far. patience: maximum steps without a token for any of them, as all
    may be in prefill.
    """

    def __init__(self, chunk: int | None, lag: int) -> None:
        self._chunk, self._lag = chunk, lag
        self.steps = self.limit = self.patience = 0
        self._latest = 0  # the last step after which some request had another number of tokens
        self._seen: dict[str, tuple[int, int]] = {}  # by name: number of tokens, and the step at which it last changed

    def sent(self, prompt: int, new_tokens: int) -> None:
        """A request was sent, or one of several completions."""
        chunks = 1 if self._chunk is None else -(-(prompt + new_tokens) // self._chunk)
        self.patience += SPARE * (chunks + self._lag + 1)
        self.limit += SPARE * (chunks + self._lag + 1 + new_tokens)

    def step(self, tokens: Mapping[str, int]) -> None:
        """Count a step that is about to run. tokens: of the unfinished requests. Stalled if there were too many
        steps."""
        self.steps += 1
        for name, count in tokens.items():
            if name not in self._seen or self._seen[name][0] != count:
                self._seen[name] = count, self.steps
                self._latest = self.steps
        idle = self.steps - self._latest
        if self.steps > self.limit or idle > self.patience:
            stuck = min(tokens, key=lambda name: self._seen[name][1], default="")
            count, since = self._seen.get(stuck, (0, 0))
            raise Stalled(self.steps, self.limit, idle, stuck, count, since)


def _names(kind: type[Any]) -> set[str]:
    return {each.name for each in fields(kind)}


# Fields that mean the same in the engine and in the matrix.
SAMPLED: Final = _names(SamplingParams) & _names(RequestSpec) - {"logit_bias"}
ANSWERED: Final = _names(Output) & _names(Answer) - {"finish"}


class ManualClock:
    """A clock that advances only explicitly."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class ReferenceSubject(Subject):
    """Starts the engine in this process, with every capability. locate: model name to checkpoint folder."""

    name = "reference"
    profile = Profile(frozenset(Capability), in_process=True)

    def __init__(self, locate: Callable[[str], Path] = resolve_path) -> None:
        self.locate = locate

    def version(self) -> str:
        return __version__

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Every cell, as the axes are this engine's own and it takes the requests as they are."""
        return EngineCommand(asdict(prepared.configuration), {}, prepared.requests)

    def start(self, command: EngineCommand) -> RunningEngine:
        """`start_engine` with the configuration fields in `flags`."""
        return self.start_engine(EngineConfig(**command.flags))

    def start_engine(self, config: EngineConfig) -> ReferenceEngine:
        """Load the models and build the engine. ConfigError if the configuration cannot run."""
        clock, gpu = ManualClock(), config.device == "cuda" and config.kv_stamps
        before = device_bytes(config.device) if gpu else 0
        llm = LLM(config, self.locate, clock)
        return ReferenceEngine(llm, clock, ResourceRecorder(llm, config, self.locate, before) if gpu else None)


class ReferenceEngine:
    """One in-process engine, driven step by step so that a request can be aborted after a given token.

    Without `kv_stamps` nothing is recorded, as the engine is being timed.
    """

    def __init__(self, llm: LLM, clock: ManualClock, resources: ResourceRecorder | None = None) -> None:
        self.llm, self._resources = llm, resources
        self.clock = clock
        watched = llm.resolved.kv_stamps
        self._journal: list[Entry] = []
        if watched:
            llm.subscribe_journal(self._journal.append)
        self._work = WorkRecorder(llm, self._journal) if watched else None
        self._canary = PageCanary(llm) if watched else None
        self._talk: Conversation | None = None

    @property
    def resolved(self) -> Mapping[str, Any]:
        return self.llm.resolved.as_dict()

    @property
    def start_hash(self) -> str:
        return self.llm.resolved.start_hash()

    def generate(self, requests: Sequence[RequestSpec]) -> list[Answer]:
        """Run the requests to their end. RequestError if a request outside sessions can never run, Stalled if they take
        more steps than they can need."""
        self._talk = Conversation(self.llm, self.clock, requests, self.renew, self.retract)
        answers = self._talk.answers()
        self.llm.step()  # releases what belonged to ended sessions
        self._talk = None
        return answers

    def unfinished(self) -> tuple[Served, ...]:
        """Those of its requests that have one completion."""
        found = {} if self._talk is None else {name: self.llm.request(rid) for name, rid in self._talk.rids.items()}
        return tuple(
            Served(name, one.rid, one.account, tuple(one.tokens), len(one.prompt), one.retractions)
            for name, one in found.items()
        )

    def retract(self, rid: int) -> bool:
        """Retract a request as if memory were short. False if no round of it can be planned now."""
        request = self.llm.request(rid)
        if not request.decoding:
            return False
        if self._work is not None:
            self._work.retracted(rid)
        self.llm.loop.scheduler.retract(request)
        return True

    def renew(self, what: str) -> None:
        """Release and reallocate the engine's memory, or reload its weights; all device state is renewed."""
        if self._work is not None and self._canary is not None:
            self._work.flushed()
            self._canary.release()
        if what == "memory":
            self.llm.release_memory_occupation()
            self.llm.resume_memory_occupation()
        else:
            self.llm.update_weights_from_disk(self.llm.resolved.model_path)
        if self._work is not None and self._canary is not None:
            self._work.attach(self.llm.loop.executor)
            self._canary.attach(self.llm.loop.executor)
            if self._resources is not None:
                self._resources.attach(self.llm.loop.executor)

    def readback(self) -> Mapping[str, Any]:
        """The engine's readback; `alive` also counts live request objects and replaced executors, and `pages_lost` are
        neither free nor cached."""
        own = self.llm.readback()
        if self._work is not None:
            own["alive"] |= {"request_objects": self._work.alive, "executors": self._work.executors}
        if self._canary is not None:
            found = self._canary.overwritten
            own |= {"pages_watched": self._canary.watched, "pages_overwritten": len(found), "overwritten_of": found[:1]}
            pages = self.llm.loop.scheduler.ledger.groups[0]
            own["pages_lost"] = sorted({*range(1, pages.num_pages + 1)} - {*pages.free} - {*pages.pins})
        return own

    def counters(self) -> Mapping[str, int]:
        return self.llm.counters

    def journal(self) -> Journal:
        return list(self._journal)

    def work(self) -> WorkLog | None:
        return None if self._work is None else self._work.log()

    def resources(self) -> Resources | None:
        return None if self._resources is None else self._resources.read()

    def trace(self) -> Trace | None:
        seen = self.llm.readback().get("adaptive")
        return None if seen is None else _trace(seen)

    def memory(self) -> Memory:
        ledger = self.llm.loop.scheduler.ledger
        return Memory(*ledger.counts, len(ledger.accounts))

    def ranks(self) -> Agreement | None:
        """None: a single rank."""
        return None

    def close(self) -> None:
        """Do nothing: the engine is freed with its last reference."""


class Conversation:
    """Sends requests to one engine when they are due, aborts them, and collects the answers in order."""

    def __init__(
        self,
        llm: LLM,
        clock: ManualClock,
        requests: Sequence[RequestSpec],
        renew: Callable[[str], None],
        retract: Callable[[int], bool],
    ) -> None:
        """renew: performs a `RequestSpec.renewal`; retract: a request's, False if it must be tried again."""
        self.llm, self.renew, self.retract = llm, renew, retract
        self.retracts: dict[int, int] = {}
        self.renewed: set[str] = set()
        self.clock = clock
        self.requests = requests
        self.progress = Progress(llm.resolved.chunked_prefill_size, llm.resolved.lag)
        self.refusals: dict[str, str] = {}
        self.rids: dict[str, int] = {}
        self.stops: dict[int, int] = {}
        self.pieces: dict[str, list[str]] = {request.name: [] for request in requests if request.stream}
        self.completing: dict[str, Iterator[list[Output]]] = {}  # requests with several completions
        self.completed: dict[str, list[Output]] = {}
        self.closes: dict[int, tuple[int, str]] = {}  # rid to (output tokens after which to close, session)
        # Sessions that must already be closed when a request arrives are not closed here.
        gone = {
            request.session.id
            for request in requests
            if request.session is not None and request.refused is Refusal.CLOSED
        }
        sessions = (request.session for request in requests if request.session is not None)
        # By session, its unfinished requests.
        self.open = Counter(here.id for here in sessions if not here.resend and here.id not in gone)

    def answers(self) -> list[Answer]:
        """Run all requests. RequestError if one can never run or never becomes due, Stalled after too many steps."""
        waiting = list(self.requests)
        running: list[RequestSpec] = []
        while waiting or running or self.llm.loop.busy:
            due = [request for request in waiting if self._due(request)]
            for request in due:
                self._send(request)
            waiting = [request for request in waiting if request not in due]
            running += due
            if waiting and not running and not self.llm.loop.busy:
                raise RequestError(f"request {waiting[0].name} waits for {waiting[0].after}, which did not all end")
            self._step([request.name for request in running])
            self._stop()
            running = self._settle(running)
        return [self._answer(request) for request in self.requests]

    def _due(self, request: RequestSpec) -> bool:
        if request.beside is not None:
            return request.beside in self.rids and not self._ended(request.beside)
        # A finished request may still have a step in flight, so its session is not idle yet.
        renews = request.renewal and request.renewal not in self.renewed
        if (request.clock or renews) and self.llm.loop.busy:
            return False
        return all(self._ended(name) for name in request.after)

    def _send(self, request: RequestSpec) -> None:
        here = request.session
        self.clock.seconds += request.clock
        if request.renewal and request.renewal not in self.renewed:
            self.renew(request.renewal)
            self.renewed.add(request.renewal)
        if request.n > 1:
            for _ in range(request.n):
                self.progress.sent(len(self._encoded(request)), request.max_new_tokens)
            self.completing[request.name] = self.llm.generation([request.prompt], sampling(request))
            return
        try:
            if here is None:
                rid = self.llm.add(request.prompt, sampling(request))
            elif here.resend:
                rid = self.llm.add(self._history(here) + self._encoded(request), sampling(request))
            else:
                rid = self._turn(request, here)
        except RequestError as refusal:  # a gate checks whether the refusal is right
            self.refusals[request.name] = str(refusal)
            return
        self.rids[request.name] = rid
        self.progress.sent(len(self.llm.request(rid).prompt), request.max_new_tokens)
        if request.abort_after is not None:
            self.stops[rid] = request.abort_after
        if request.retract_after is not None:
            self.retracts[rid] = request.retract_after
        if request.closes_after is not None and here is not None:
            self.closes[rid] = request.closes_after, here.id

    def _turn(self, request: RequestSpec, here: Continuation) -> int:
        if request.refused is not Refusal.CLOSED and here.id not in self.llm.sessions.sessions:
            self.llm.open_session(here.capacity, here.id, here.streaming, here.timeout)
        follows = None if here.streaming or here.follows is None else self.rids[here.follows]
        turn = SessionParams(here.id, follows, here.offset, here.replace, here.drop_previous_output)
        return self.llm.add(request.prompt, sampling(request), turn)

    def _history(self, here: Continuation) -> tuple[int, ...]:
        if here.follows is None:
            return ()
        before = self.llm.request(self.rids[here.follows])
        whole = tuple(before.prompt) if here.drop_previous_output else tuple(before.tokens)
        return whole[: here.offset] if here.offset else whole

    def _encoded(self, request: RequestSpec) -> tuple[int, ...]:
        """The prompt's tokens; the BOS token is kept in a first turn only."""
        tokens = tuple(self.llm.tokenizer.encode(request.prompt))
        begins = request.session is None or request.session.follows is None
        return tokens if begins or tokens[:1] != (self.llm.tokenizer.bos_id,) else tokens[1:]

    def _stop(self) -> None:
        for rid, after in list(self.retracts.items()):
            if self.llm.request(rid).finish or (len(self.llm.request(rid).output) >= after and self.retract(rid)):
                del self.retracts[rid]
        for rid in [rid for rid, after in self.stops.items() if len(self.llm.request(rid).output) >= after]:
            del self.stops[rid]
            self.llm.abort(rid)
        for rid in [rid for rid, (after, _) in self.closes.items() if len(self.llm.request(rid).output) >= after]:
            _, session = self.closes.pop(rid)
            self.llm.close_session(session)

    def _step(self, running: Sequence[str]) -> None:
        """Run one engine step, and advance each multi-completion call, which also queues its requests."""
        tokens = self._tokens(running)
        # A request that the engine lost counts as running although the engine is idle.
        if self.llm.loop.busy or tokens:
            self.progress.step(tokens)
        if not self.completing:
            self.llm.step()
            self._read()
        for name, steps in list(self.completing.items()):
            if outputs := next(steps):
                self.completed[name] = outputs
                del self.completing[name]
            self._read()

    def _tokens(self, running: Sequence[str]) -> dict[str, int]:
        """Output tokens of the unfinished requests, summed over a request's completions."""
        single = {self.rids[name]: name for name in running if self._runs(name)}
        tokens = dict.fromkeys([*single.values(), *self.completing], 0)
        for rid, request in self.llm.loop.scheduler.requests.items():
            for name in [single[rid]] if rid in single else self.completing if request.finish is None else ():
                tokens[name] += len(request.output)
        return tokens

    def _read(self) -> None:
        """Read the texts of streamed requests."""
        for name, pieces in self.pieces.items():
            if name in self.rids:
                pieces.append(readable(self.llm.request(self.rids[name])))

    def _settle(self, running: list[RequestSpec]) -> list[RequestSpec]:
        """The requests still running; closes each session after its last request."""
        still = []
        for request in running:
            if not self._ended(request.name):
                still.append(request)
            elif request.session is not None and request.session.id in self.open:
                self.open[request.session.id] -= 1
                if not self.open[request.session.id]:
                    self.llm.close_session(request.session.id)
        return still

    def _runs(self, name: str) -> bool:
        """Whether the request was sent as a single one and has not ended."""
        return name in self.rids and not self._ended(name)

    def _ended(self, name: str) -> bool:
        if name in self.refusals or name in self.completed:
            return True
        return name in self.rids and self.llm.request(self.rids[name]).finish is not None

    def _answer(self, request: RequestSpec) -> Answer:
        if request.name in self.refusals:
            return Answer(request.name, (), (), "", "refused", None, 0, (), refusal=self.refusals[request.name])
        if request.name in self.completed:
            pairs = zip(request.completions(), self.completed[request.name], strict=False)
            first, *further = [answer(one, self._encoded(request), output) for one, output in pairs]
            return replace(first, further=tuple(further))
        rid = self.rids[request.name]
        prompt = tuple(self.llm.request(rid).prompt)
        return replace(
            answer(request, prompt, self.llm.take(rid)), pieces=tuple(dict.fromkeys(self.pieces.get(request.name, ())))
        )


def sampling(request: RequestSpec) -> SamplingParams:
    """The engine's sampling parameters for a request."""
    same: dict[str, Any] = {name: getattr(request, name) for name in SAMPLED}
    return SamplingParams(
        **same,
        logit_bias=dict(request.logit_bias) or None,
        return_logprob=request.logprobs,
        top_logprobs_num=request.top_logprobs,
        logprob_start_len=request.prompt_logprobs,
    )


def answer(request: RequestSpec, prompt_ids: tuple[int, ...], output: Output) -> Answer:
    """Convert an engine's output to the protocol's Answer."""
    finish, same = output.finish, {name: getattr(output, name) for name in ANSWERED}
    matched = finish.message if finish.reason == "error" else finish.matched
    return Answer(name=request.name, prompt_ids=prompt_ids, finish=finish.reason, matched=matched, **same)


def _trace(seen: Mapping[str, Any]) -> Trace:
    rounds = tuple((each["batch_size"], each["width"]) for each in seen["rounds"])
    names = [each.name for each in fields(Observation)]
    observations = tuple(Observation(**{name: record[name] for name in names}) for record in seen["trace"])
    return Trace(rounds, observations, seen["activated"] - len(rounds))
