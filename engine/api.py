"""The in-process API: `LLM`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specmatrix.engine.build import EngineSetup, Locate, build, known_facts, located
from specmatrix.engine.core.config.asked import EngineConfig, Resolved
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.memory.ledger import Entry
from specmatrix.engine.core.observe.rank_agreement import StepDigest
from specmatrix.engine.core.schedule.request import Finish, Phase, Request, SamplingParams, readable
from specmatrix.engine.core.schedule.session import SessionParams, Sessions, Turn
from specmatrix.engine.device.collectives import ALONE, Ranks
from specmatrix.engine.grammar_compiler import GrammarCompiler
from specmatrix.engine.life_cycle import LifeCycle
from specmatrix.engine.models.tokenizer import Tokenizer
from specmatrix.engine.readback import running
from specmatrix.errors import ConfigError, EngineError, RequestError, shown

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Output:
    """One finished generation.

    `cached_tokens`: prompt positions that needed no computation when the request was first admitted; less than
    `prompt_tokens`, and unchanged by later retractions.
    Per verify round, `accept_lengths` holds the accepted tokens, bonus included, and `round_widths` the tree's nodes,
    root included; `outside_rounds` are the indices of the tokens that no round emitted. `prompt_logprobs` and
    `prompt_top_logprobs`: of the prompt's tokens from `logprob_start_len` on; None and no alternatives for the first
    token of all.
    """

    text: str
    output_ids: tuple[int, ...]
    finish: Finish
    prompt_tokens: int
    cached_tokens: int
    retractions: int
    accept_lengths: tuple[int, ...]
    round_widths: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...]
    meta_info: Mapping[str, Any]
    prompt_logprobs: tuple[float | None, ...] = ()
    prompt_top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    outside_rounds: tuple[int, ...] = ()


class LLM:
    """An engine with its models loaded.

    Only one thread at a time may call it; a call from another thread raises EngineError, except `abort`. Within a
    thread, streams, `step` and `generate` may be interleaved. After an engine or device bug, live requests end with an
    error, `health` reports the cause, and calls that would run something raise EngineError. Ctrl-C, and what the
    handler of any other signal raises, such as a timeout, ends the call and rolls back the steps in flight.

    `locate` maps a model name to a directory; by default the name is a path. `clock` returns seconds and is used for
    session timeouts only. ranks: the ranks that share the target, this process being one of them; publish: receives
    this rank's step digests (engine.parallel.group starts ranks). Raises ConfigError for a configuration or checkpoint
    that cannot run.
    """

    def __init__(
        self,
        config: EngineConfig,
        locate: Locate = Path,
        clock: Callable[[], float] = time.monotonic,
        ranks: Ranks = ALONE,
        publish: Callable[[StepDigest], None] | None = None,
    ) -> None:
        locate = located(locate)
        known = known_facts(config, locate)
        resolved = resolve(config, known)
        if resolved.tp_size != ranks.size:
            raise ConfigError(
                f"tp_size {resolved.tp_size} needs one process per rank, and LLM runs in one process; use "
                "RankedLLM from specmatrix.engine.parallel.client"
            )
        self.tokenizer = tokenizer = Tokenizer(locate(config.model_path))
        self.grammars = GrammarCompiler(tokenizer, known.vocab_size, ranks)
        setup = EngineSetup(tokenizer, locate, ranks, publish, self.grammars.live)
        self.loop = build(resolved, known, setup)
        self._life = LifeCycle(self.loop, config, known, resolved, setup)
        self._last: dict[str, Any] = {}  # the readback from before the memory was released
        self.sessions = Sessions(
            self.loop.scheduler,
            streaming=resolved.enable_streaming_session,
            bos_id=self.tokenizer.bos_id,
            # A reference to `self` here would keep a dropped engine with its models and KV pools alive until a full GC.
            text_length=lambda tokens: len(tokenizer.decode(tokens)),
        )
        self.vocab_size = known.vocab_size
        self.clock = clock
        self._next_rid = 1
        self._owned: set[int] = set()  # requests that belong to a generate or stream call
        self._lock = threading.RLock()
        self._editing = False  # a call is changing the scheduler's and ledger's state
        self._deferred: deque[tuple[Callable[[int], object], int]] = deque()  # calls that arrived meanwhile

    @property
    def resolved(self) -> Resolved:
        """The resolved configuration; `update_weights_from_disk` changes its paths."""
        return self._life.resolved

    @contextmanager
    def _inside(self, serves: bool = True, edits: bool = True) -> Iterator[None]:
        """Guard one call. serves: it needs an engine that is not broken. edits: it changes scheduler and ledger state,
        which a nested call (from a signal handler or a finalizer) would see half changed."""
        with self.loop.interrupts:
            if not self._lock.acquire(blocking=False):
                raise EngineError(
                    "another thread is calling this engine; only abort may be called from several threads"
                )
            outer = self._editing
            try:
                if outer and edits:
                    raise EngineError(
                        "this thread is already in a call of this engine; only abort may be called within it"
                    )
                self._run_deferred()
                if serves:
                    self.loop.check()
                self._editing = outer or edits
                yield
            finally:
                self._editing = outer
                self._run_deferred()
                self._lock.release()

    def _run_or_defer(self, call: Callable[[int], object], rid: int) -> None:
        """Call now, or as soon as the call that is changing the engine's state has finished."""
        with self.loop.interrupts:
            self._deferred.append((call, rid))
            if self._lock.acquire(blocking=False):
                try:
                    self._run_deferred()
                finally:
                    self._lock.release()

    def _run_deferred(self) -> None:
        while self._deferred and not self._editing:
            call, rid = self._deferred.popleft()
            self._editing = True
            try:
                call(rid)
            finally:
                self._editing = False

    def open_session(
        self,
        capacity_of_str_len: int,
        session_id: str | None = None,
        streaming: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Open a session and return its id.

        capacity_of_str_len: maximum length of a request's prompt text in characters, history included. streaming: a
        linear sequence of turns that keeps its KV; needs --enable-streaming-session. timeout: seconds after which an
        idle session is closed. Raises RequestError if the id is taken or a value is invalid.
        """
        with self._inside():
            now = self.clock()
            self.sessions.reap(now)
            return self.sessions.open(capacity_of_str_len, session_id, streaming, timeout, now)

    def close_session(self, session_id: str) -> None:
        """Close a session; its KV is freed once its turn in flight has ended. RequestError if it is not open."""
        with self._inside():
            self.sessions.reap(self.clock())
            self.sessions.close(session_id)

    def add(self, prompt: Prompt, params: SamplingParams | None = None, session: SessionParams | None = None) -> int:
        """Queue one request and return its id. RequestError on bad parameters; other requests are not affected."""
        with self._inside():
            return self._add(prompt, params, session).rid

    def _add(self, prompt: Prompt, params: SamplingParams | None, session: SessionParams | None) -> Request:
        self.sessions.reap(self.clock())
        request, turn = self._judge(self._next_rid, prompt, params, session)
        self._queue(request, turn)
        return request

    def _judge(
        self, rid: int, prompt: Prompt, params: SamplingParams | None, session: SessionParams | None
    ) -> tuple[Request, Turn | None]:
        """Build the request without queueing it. Changes nothing; raises RequestError if the request is invalid."""
        if self.released:
            raise RequestError("the engine's memory is released; allowed first: resume_memory_occupation")
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params is {shown(params)}; allowed: SamplingParams")
        grammar = self.compiled(params)
        if params.n > 1:
            raise RequestError(f"n is {params.n}; allowed: 1 for a single request or a session's turn; use generate")
        tokens = self.tokenizer.prompt_ids(prompt, self.vocab_size)
        if params.logprob_start_len > len(tokens) or (params.logprob_start_len >= 0 and session is not None):
            most = "-1 in a session" if session is not None else f"at most the prompt's length, {len(tokens)}"
            raise RequestError(f"logprob_start_len is {params.logprob_start_len}; allowed: {most}")
        seed = self.resolved.random_seed if params.seed is None else params.seed
        scheduler = self.loop.scheduler
        if session is None:
            request = Request(rid, tokens, params, seed, grammar=grammar)
            scheduler.admission.check(request)
            return request, None
        if not isinstance(session, SessionParams):
            raise RequestError(f"session is {shown(session)}; allowed: SessionParams")
        try:
            turn = self.sessions.judge(session, tokens)
            request = Request(rid, turn.prompt, params, seed, grammar=grammar)
            scheduler.admission.check(request)
        except RequestError:
            scheduler.counters.hit("session.refused")
            raise
        return request, turn

    def compiled(self, params: SamplingParams, quick: bool = False) -> object:
        """The compiled grammar of the parameters, None without one. RequestError on invalid parameters.

        May be called from any thread. While the result is held, adding a request with this grammar takes no time.
        quick: None too if a first, short attempt does not suffice.
        """
        params.validate(self.vocab_size, self.tokenizer.eos_ids)
        return None if params.constraint is None else self.grammars.compile(params.constraint, quick)

    def _queue(self, request: Request, turn: Turn | None) -> int:
        if turn is not None:
            self.sessions.begin(turn, request, self.clock())
        self.loop.add(request)
        self._next_rid = request.rid + 1
        return request.rid

    def abort(self, rid: int) -> bool:
        """Stop a request, from any thread or signal handler; False if it has already ended.

        A running step is not interrupted; a request that the step finishes is not counted as aborted.
        """
        if type(rid) is not int:
            raise RequestError(f"request id is {shown(rid)}; allowed: an integer")
        request = self.loop.scheduler.requests.get(rid)
        running = request is not None and request.finish is None
        self._run_or_defer(self.loop.abort, rid)
        return running

    def step(self) -> bool:
        """Run one iteration of the loop. False when there is nothing left to do."""
        with self._inside():
            self.sessions.reap(self.clock())
            if self.loop.busy:
                self.loop.step()
                self.sessions.reap(self.clock())
            return self.loop.busy

    def request(self, rid: int) -> Request:
        """The live request, for reading its progress. Raises RequestError if there is none."""
        request = self.loop.scheduler.requests.get(rid) if type(rid) is int else None
        if request is None:
            raise RequestError(
                f"request {shown(rid)} is unknown; allowed: the id of a request whose result was not taken yet"
            )
        return request

    def take(self, rid: int) -> Output:
        """Return and forget an ended request's result. RequestError while it runs, or if another call owns it."""
        with self._inside(serves=False):
            request = self.request(rid)
            if rid in self._owned:
                raise RequestError(
                    f"request {rid} belongs to a stream or generate call, which returns its result itself"
                )
            return self._take(request)

    def _take(self, request: Request) -> Output:
        rid = request.rid
        if request.phase is not Phase.DONE or request.finish is None:
            raise RequestError(f"request {rid} is {request.phase.value}; its result is available once it is done")
        self.loop.forget(rid)
        info: dict[str, Any] = {
            "id": rid,
            "finish_reason": _reason(request.finish),
            "prompt_tokens": len(request.prompt),
            "completion_tokens": len(request.output),
            "cached_tokens": request.cached_tokens,
            **request.metrics.meta_info(len(request.output)),
            **({"drafter_error": self.drafter_error} if self.drafter_error else {}),
        }
        return Output(
            request.text,
            tuple(request.output),
            request.finish,
            len(request.prompt),
            request.cached_tokens,
            request.retractions,
            tuple(request.metrics.lengths),
            tuple(request.metrics.widths),
            tuple(request.logprobs),
            tuple(map(tuple, request.top_logprobs)),
            info,
            tuple(request.prompt_logprobs),
            tuple(map(tuple, request.prompt_top_logprobs)),
            tuple(request.metrics.outside),
        )

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        session: SessionParams | Sequence[SessionParams | None] | None = None,
    ) -> list[Output]:
        """Run prompts to completion and return outputs in order, the n of a prompt one after another.

        RequestError if any is invalid; then none is run.
        """
        with self._inside(edits=False):
            *_, outputs = self.generation(prompts, params, session)
        return outputs

    def generation(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        session: SessionParams | Sequence[SessionParams | None] | None = None,
    ) -> Iterator[list[Output]]:
        """`generate` step by step: yields an empty list per step, then the outputs. Closing it aborts the requests."""
        if isinstance(prompts, str):
            raise RequestError("prompts is one string; allowed: a list of strings or of token id lists")
        if not isinstance(prompts, Sequence):
            raise RequestError(f"prompts is {shown(prompts)}; allowed: a list of strings or of token id lists")
        if not isinstance(params, SamplingParams | Sequence | None):
            raise RequestError(f"params is {shown(params)}; allowed: SamplingParams, or a list with one per prompt")
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(
                f"{len(each)} sampling parameters for {len(prompts)} prompts; allowed: one, or one per prompt"
            )
        if session is None:
            pairs = [(prompt, one) for prompt, p in zip(prompts, each, strict=True) for one in self._completions(p)]
            prompts, each = [prompt for prompt, _ in pairs], [one for _, one in pairs]
        turns = self._turns(session, len(prompts))
        requests: list[Request] = []
        try:
            with self._inside():
                self.sessions.reap(self.clock())
                judged = [
                    self._judge(self._next_rid + index, prompt, p, turn)
                    for index, (prompt, p, turn) in enumerate(zip(prompts, each, turns, strict=True))
                ]
                requests += [request for request, _ in judged]
                self._owned.update(self._queue(*one) for one in judged)
            while any(request.phase is not Phase.DONE for request in requests):
                self.step()
                yield []
            with self._inside(serves=False):
                outputs = [self._take(request) for request in requests]
            yield outputs
        finally:
            for request in requests:
                self._run_or_defer(self._release_owned, request.rid)

    def _completions(self, asked: SamplingParams | None) -> list[SamplingParams | None]:
        """The parameters of each completion that a prompt's parameters ask for."""
        if not isinstance(asked, SamplingParams):
            return [asked]
        asked.validate(self.vocab_size, self.tokenizer.eos_ids)
        return [*asked.completions(self.resolved.random_seed)]

    def _turns(
        self, session: SessionParams | Sequence[SessionParams | None] | None, count: int
    ) -> list[SessionParams | None]:
        """The session parameters of each prompt. RequestError if the prompts would interfere with each other."""
        if session is None or isinstance(session, SessionParams):
            turns: list[SessionParams | None] = [session] * count
        else:
            turns = list(session) if isinstance(session, list | tuple) else [session]
        for turn in turns:
            if not isinstance(turn, SessionParams | None):
                raise RequestError(
                    f"session is {shown(turn)}; allowed: SessionParams or None, or a list with one per prompt"
                )
        if len(turns) != count:
            raise RequestError(f"{len(turns)} session parameters for {count} prompts; allowed: one, or one per prompt")
        named = [turn for turn in turns if turn is not None]
        for turn in named:
            turn.validate()
            known = self.sessions.sessions.get(turn.id)
            alone = turn.replace or (known is not None and known.streaming)
            if alone and sum(other.id == turn.id for other in named) > 1:
                raise RequestError(
                    f"several prompts of one call belong to session {turn.id!r}, which is streaming or uses replace; "
                    "send them one after another"
                )
        return turns

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, session: SessionParams | None = None
    ) -> Iterator[str]:
        """Yield the new text of one request as it grows. Text that a stop string may still remove is held back.

        Closing or dropping the iterator early aborts the request. Raises EngineError after the last text of a request
        that ended with an error.
        """
        owned: list[int] = []
        shown = 0
        try:
            with self._inside():
                request = self._add(prompt, params, session)
                owned.append(request.rid)
                self._owned.update(owned)
            while True:
                text = readable(request)
                if len(text) > shown:
                    yield text[shown:]
                    shown = len(text)
                elif request.phase is Phase.DONE:
                    break
                else:
                    self.step()
        finally:
            for rid in owned:
                self._run_or_defer(self._release_owned, rid)
        if request.finish is not None and request.finish.reason == "error":
            raise EngineError(f"request {request.rid} ended with an error after this text: {request.finish.message}")

    def _release_owned(self, rid: int) -> None:
        """The call that owns a request ends: abort and forget the request if it is still there."""
        self._owned.discard(rid)
        if rid in self.loop.scheduler.requests:
            self.loop.abandon(rid)

    def flush_cache(self) -> int:
        """Evict all cached pages that no request or session uses. Returns the number of freed pages."""
        with self._inside():
            cache = self.loop.scheduler.cache
            return cache.evict(len(cache.nodes))

    def release_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Free the weights, KV and graphs of an idle engine, and empty its prefix cache, until
        `resume_memory_occupation`; requests are refused meanwhile.

        tags: SGLang's `kv_cache`, `weights` and `cuda_graph` together, or None. RequestError if requests run, sessions
        hold KV, or it is released already.
        """
        with self._inside():
            last = self._running()
            self._life.release(tags)
            self._last = last

    def resume_memory_occupation(self, tags: Sequence[str] | None = None) -> None:
        """Load the weights again from their folder and allocate what was freed.

        RequestError if nothing was released. ConfigError if the checkpoint or the memory is gone; it stays released.
        """
        with self._inside():
            self._life.resume(tags)

    def update_weights_from_disk(self, model_path: str, draft_model_path: str | None = None) -> None:
        """Load other weights of the same shape and tokenizer into an idle engine, and empty its prefix cache.

        draft_model_path: the draft's checkpoint, by default the one it was loaded from. RequestError as for
        `release_memory_occupation`; ConfigError if the weights cannot run, and the engine keeps its own.
        """
        with self._inside():
            self._life.update(model_path, draft_model_path)

    @property
    def released(self) -> bool:
        """Whether the engine's memory is released; it accepts no requests then."""
        return self._life.released

    @property
    def health(self) -> str:
        """Why the engine accepts no more calls; "ok" while it does."""
        return "ok" if self.loop.broken is None else f"broken: {self.loop.broken}"

    @property
    def drafter_error(self) -> str | None:
        """Why the drafter is in quarantine; None if it is not."""
        guard = self.loop.executor.guard
        return None if guard is None else guard.error

    @property
    def counters(self) -> dict[str, int]:
        """Counters of what the engine has done so far, by counter name."""
        return dict(self.loop.counters.counts)

    @property
    def journal(self) -> list[Entry]:
        """Every ledger operation so far. EngineError once old entries were discarded: it keeps a few thousand."""
        return self.loop.scheduler.ledger.journal

    def subscribe_journal(self, subscriber: Callable[[Entry], None]) -> None:
        """Call `subscriber` with every ledger operation, past ones first. EngineError once old ones were discarded."""
        self.loop.scheduler.ledger.subscribe(subscriber)

    def readback(self) -> dict[str, Any]:
        """The running configuration, read from the running components and not from the resolved configuration.

        With adaptive steps, `adaptive` holds the current depth and the controller's activations, observations and
        decisions. With CUDA graphs, `graphs` is their number, `graph_widths` their number by verify width, and
        `graph_bytes` their memory; `suffix_bytes` is what suffix decoding's trees may take. `drafter_error` is present
        only if the drafter is in quarantine, `released` only while the engine's memory is released: the rest is then
        what ran before. `alive` counts what is held for requests and sessions: all zero once every result was taken
        and every session has ended.
        """
        with self._inside(serves=False):
            return self._running()

    def _running(self) -> dict[str, Any]:
        if self.released:
            return {**self._last, "released": True}
        error = {"drafter_error": self.drafter_error} if self.drafter_error else {}
        return {**running(self.loop, self.sessions, len(self._owned)), **error}


def _reason(finish: Finish) -> dict[str, object]:
    """SGLang's finish_reason; `message` only on an error."""
    message = {} if finish.message is None else {"message": finish.message}
    return {"type": finish.reason, "matched": finish.matched, **message}
