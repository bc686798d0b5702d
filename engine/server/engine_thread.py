"""Runs an engine in its own thread, for requests from an asyncio event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Final, TypeVar
from uuid import uuid4

from specmatrix.engine.api import LLM, Output, Prompt
from specmatrix.engine.core.config.asked import Resolved
from specmatrix.engine.core.schedule.grammar import UNSATISFIABLE
from specmatrix.engine.core.schedule.request import Phase, Request, SamplingParams, readable
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.engine.server import limits
from specmatrix.engine.server.limits import Refused
from specmatrix.errors import ConfigError, EngineError, RequestError, described, shown

log = logging.getLogger("specmatrix.server")

# How often an idle engine closes sessions that exceeded their timeout.
IDLE_SECONDS: Final = 1.0
# Each open session keeps its tokens, so their number is limited.
MAX_SESSIONS: Final = 1024
# Threads for grammars that compile quickly, and for those that do not.
_COMPILERS: Final = (ThreadPoolExecutor(64, "grammar"), ThreadPoolExecutor(4, "slow-grammar"))
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """Session parameters as HTTP clients send them; `rid` is a request name, not an engine id."""

    id: str
    rid: str | None = None
    offset: int = 0
    replace: bool = False
    drop_previous_output: bool = False


@dataclass(frozen=True, slots=True)
class Submission:
    """One completion of one prompt.

    name: the request's name (SGLang's rid), None to generate one. drops: the output is discarded, as with SGLang's
    max_new_tokens 0.
    """

    prompt: Prompt
    params: SamplingParams
    name: str | None = None
    session: SessionTurn | None = None
    streams: bool = False
    drops: bool = False
    grammar: object = None  # keeps the compiled grammar of `params` alive


@dataclass(eq=False, slots=True)
class Ticket:
    """A queued request, read by the event loop.

    name: "" if another request of its batch was refused. text, tokens: the output so far, updated only if `streams`.
    output: the result, None until it has ended. began, first, ended: times of queueing, first token and end, in
    seconds of the monotonic clock.
    """

    name: str
    rid: int
    request: Request
    streams: bool
    text: str = ""
    tokens: int = 0
    output: Output | None = None
    began: float = field(default_factory=monotonic)
    first: float | None = None
    ended: float = 0.0
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Wake the reader. Must be called in the event loop."""
        self._moved.set()

    async def moved(self) -> None:
        """Wait for new output; updates since the last call are combined."""
        await self._moved.wait()
        self._moved.clear()

    async def done(self) -> Output:
        """Wait until the request has ended and return its result."""
        while self.output is None:
            await self.moved()
        return self.output


class EngineThread:
    """Runs an engine's steps while requests are open.

    All methods must be called in one event loop; only the thread calls the engine. max_queued: maximum number of
    queued requests in addition to the running ones; further ones are Refused (429).
    """

    def __init__(self, llm: LLM, max_queued: int) -> None:
        self.tokenizer, self.vocab_size = llm.tokenizer, llm.vocab_size
        self.token_text = lru_cache(llm.vocab_size)(lambda token: llm.tokenizer.decode([token]))
        self.max_queued = max_queued
        self.most = llm.resolved.max_running_requests + max_queued
        self.stopping = False
        self.open: dict[str, Ticket] = {}  # by name
        self.on_end: Callable[[Ticket], None] = lambda ticket: None
        self._reserved = 0  # requests posted to the thread but not yet queued
        self._names: set[str] = set()
        self._llm = llm
        self._tickets: dict[int, Ticket] = {}  # used by the thread only
        self._turns: dict[str, dict[str, int]] = {}  # used by the thread only: session -> request name -> rid
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread. Must be called in the event loop that calls the other methods."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self, waits: bool = True) -> None:
        """Abort open requests, close the sessions and end the thread. waits: if false, only signal it to end."""
        self.stopping = True
        if not waits:
            self._calls.put(None)
            return
        self.abort([*self.open.values()])
        while self.open:
            await next(iter(self.open.values())).done()
        if self.health == "ok":
            await self.call(_close_sessions)
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    @property
    def resolved(self) -> Resolved:
        """The resolved configuration."""
        return self._llm.resolved

    @property
    def load(self) -> int:
        """Number of requests that have not ended."""
        return len(self.open) + self._reserved

    @property
    def health(self) -> str:
        """Why the engine accepts no more calls; "ok" while it does."""
        return self._llm.health if self._thread.is_alive() else "the engine's thread has ended"

    async def call(self, function: Callable[[LLM], Result]) -> Result:
        """Call a function of the engine in its thread, between two steps, and return its result."""
        return await asyncio.wrap_future(self._post(lambda: function(self._llm)))

    def check_room(self, count: int) -> None:
        """Raise Refused unless `count` more requests are accepted."""
        if self.stopping:
            raise Refused(503, "the server is shutting down and accepts no more requests")
        if self.load + count > self.most:
            raise Refused(
                429,
                f"too many requests: {self.load} running or queued, {count} more asked for; allowed: {self.most} "
                "(max_running_requests + --max-queued-requests)",
            )

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt. RequestError, before tokenization, if it is too long for any context."""
        most = self.resolved.context_length * self.tokenizer.longest
        if len(prompt) > most:
            raise RequestError(
                f"the prompt has {len(prompt)} {'characters' if isinstance(prompt, str) else 'tokens'}; allowed: at "
                f"most {most}, the context length times the characters of the longest token"
            )
        return self.tokenizer.prompt_ids(prompt, self.vocab_size)

    def _tokenized(self, asked: Sequence[Submission]) -> list[Submission]:
        """Tokenize the prompts. RequestError if the requests together ask for too many log-probabilities."""
        ids = {id(one.prompt): one.prompt for one in asked}  # completions of one prompt share it
        ids = {key: self.prompt_ids(prompt) for key, prompt in ids.items()}
        found, cells = [replace(one, prompt=ids[id(one.prompt)]) for one in asked], 0
        for one in found:
            params, context = one.params, self.resolved.context_length
            scored = 0 if params.logprob_start_len < 0 else max(0, len(one.prompt) - params.logprob_start_len)
            rows = scored + min(params.max_new_tokens, context)
            cells += rows * (1 + params.top_logprobs_num) if params.wants_logprobs else 0
        if cells > limits.LOGPROB_CELLS:
            raise RequestError(
                f"the request asks for {cells} log-probabilities (of scored and new tokens, with their alternatives); "
                f"allowed: at most {limits.LOGPROB_CELLS}"
            )
        return found

    async def submit(self, asked: Sequence[Submission]) -> list[Ticket]:
        """Queue all requests or none. RequestError if one cannot run, Refused if the server accepts none.

        The requests are aborted if the caller is cancelled.
        """
        self.check_room(len(asked))
        asked = await asyncio.to_thread(self._tokenized, asked)
        if (found := len({one.params.constraint for one in asked} - {None})) > limits.GRAMMARS:
            raise RequestError(f"the request has {found} grammars; allowed: at most {limits.GRAMMARS}")
        asked = [await self._with_grammar(one) for one in asked]
        self.check_room(len(asked))
        names = [one.name or uuid4().hex for one in asked]
        taken = next((name for i, name in enumerate(names) if name in self._names or name in names[:i]), None)
        if taken is not None:
            raise RequestError(f"rid {shown(taken)} belongs to a request that has not ended; choose another one")
        self._names.update(names)
        self._reserved += len(asked)
        future = self._post(lambda: self._add(names, asked))
        future.add_done_callback(lambda done: self._send(self._accept, names, done))
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(self._abandon)
            raise

    async def _with_grammar(self, asked: Submission) -> Submission:
        """Compile the request's grammar, if any, in another thread; a slow one only in the second attempt."""
        params, llm = asked.params, self._llm
        if params.constraint is None:
            return asked
        found: object = llm.grammars.live.get(params.constraint)
        for threads, quick in zip(_COMPILERS, (True, False), strict=True):
            if found is None:
                found = await asyncio.get_running_loop().run_in_executor(threads, llm.compiled, params, quick)
        return replace(asked, grammar=found)

    def _abandon(self, added: asyncio.Future[list[Ticket]]) -> None:
        if added.exception() is None:
            self.abort(added.result())

    def _accept(self, names: Sequence[str], added: Future[list[Ticket]]) -> None:
        self._reserved -= len(names)
        if added.exception() is not None:
            self._names.difference_update(names)
        else:
            self.open.update((ticket.name, ticket) for ticket in added.result())

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """Stop requests that still run; each ends with its output so far."""
        for rid in [ticket.rid for ticket in tickets if ticket.output is None]:
            self._post(partial(self._llm.abort, rid))

    async def abort_all(self) -> int:
        """Stop all requests, including those just submitted. Returns their number."""
        await self.call(lambda llm: None)  # runs after every submission made before it
        self.abort([*self.open.values()])
        return len(self.open)

    def _post(self, function: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()

        def answer() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(answer)
        return future

    def _send(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in the event loop, unless the loop is closed."""
        with suppress(RuntimeError):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        """The thread's main loop: alternates calls and engine steps."""
        busy = False
        while True:
            try:
                while (call := self._calls.get(block=not busy, timeout=IDLE_SECONDS)) is not None:
                    call()
                    busy = busy or bool(self._tickets)
                return
            except Empty:
                pass
            busy = self._step()
            self._publish()

    def _step(self) -> bool:
        if self._llm.health != "ok":
            return False
        try:
            return self._llm.step()
        except Exception as error:  # the engine is broken, and its requests have ended with an error
            log.error("the engine broke: %s", described(error), exc_info=error)
            return False

    def _publish(self) -> None:
        """Publish new output of the requests to the event loop."""
        moved, ended, now = [], [], monotonic()
        for rid, ticket in list(self._tickets.items()):
            request = ticket.request
            count = len(request.output)
            if count and ticket.first is None:
                ticket.first = now
            if request.phase is Phase.DONE:
                ticket.ended = now
                ticket.output = self._llm.take(rid)
                del self._tickets[rid]
                if ticket.name:
                    ended.append(ticket)
            elif ticket.streams and count > ticket.tokens:
                ticket.text, ticket.tokens = readable(request), count
                moved.append(ticket)
        if moved or ended:
            self._send(self._wake, moved, ended)

    def _wake(self, moved: list[Ticket], ended: list[Ticket]) -> None:
        for ticket in ended:
            self._names.remove(ticket.name)
            del self.open[ticket.name]
            self.on_end(ticket)
        for ticket in (*moved, *ended):
            ticket.wake()

    def _add(self, names: Sequence[str], asked: Sequence[Submission]) -> list[Ticket]:
        tickets: list[Ticket] = []
        if self._llm.released:
            raise Refused(503, "the engine's memory is released; send /resume_memory_occupation first")
        try:
            for name, one in zip(names, asked, strict=True):
                turn = None if one.session is None else self._turn(one.session)
                rid = self._llm.add(one.prompt, one.params, turn)
                if one.session is not None:
                    self._turns.setdefault(one.session.id, {})[name] = rid
                tickets.append(Ticket(name, rid, self._llm.request(rid), one.streams))
        except BaseException:
            for ticket in tickets:
                self._llm.abort(ticket.rid)
                ticket.name = ""  # no caller waits for it
                self._tickets[ticket.rid] = ticket
            raise
        self._tickets.update((ticket.rid, ticket) for ticket in tickets)
        return tickets

    def _turn(self, turn: SessionTurn) -> SessionParams:
        """Convert to the engine's parameters. RequestError if `rid` names no request of the session."""
        session = self._llm.sessions.sessions.get(turn.id)
        rid = None
        if turn.rid is not None and session is not None and not session.streaming:
            rid = self._turns.get(turn.id, {}).get(turn.rid)
            if rid not in session.tree:
                raise RequestError(
                    f"session {shown(turn.id)} has no request {shown(turn.rid)}; allowed: the rid of one of its "
                    "requests, or null for a fresh start"
                )
        return SessionParams(turn.id, rid, turn.offset, turn.replace, turn.drop_previous_output)

    async def open_session(self, capacity: int, name: str | None, streaming: bool, timeout: float | None) -> str:
        """As LLM.open_session. Refused (429) if too many are open."""

        def opened(llm: LLM) -> str:
            known = llm.sessions.sessions
            if len(known) >= MAX_SESSIONS:
                raise Refused(429, f"too many sessions: {len(known)} open; allowed: {MAX_SESSIONS}, so close one first")
            self._turns = {session: turns for session, turns in self._turns.items() if session in known}
            return llm.open_session(capacity, name, streaming, timeout)

        return await self.call(opened)

    async def close_session(self, name: str) -> None:
        """As LLM.close_session."""

        def closed(llm: LLM) -> None:
            llm.close_session(name)
            self._turns.pop(name, None)

        await self.call(closed)

    async def flush_cache(self) -> int:
        """Empty the prefix cache and return the number of freed pages. RequestError while requests are open."""
        if self.load:
            raise RequestError(
                f"the cache cannot be flushed while requests are running or queued ({self.load}); wait for their end"
            )
        return await self.call(lambda llm: llm.flush_cache())

    async def update_weights(self, model_path: str) -> None:
        """As LLM.update_weights_from_disk, with RequestError for ConfigError, because the client chose the path."""
        try:
            await self.call(lambda llm: llm.update_weights_from_disk(model_path))
        except ConfigError as error:
            raise RequestError(str(error)) from error

    async def state(self) -> dict[str, Any]:
        """The running configuration, the counters, and numbers of requests, sessions and KV pages.

        pages: of layers without a window: total, free, cached, and held by accounts (requests and sessions).
        """

        def read(llm: LLM) -> dict[str, Any]:
            pages = llm.loop.scheduler.ledger.groups[0].counts
            return {
                "pages": {**pages._asdict(), "held": pages.held},
                "readback": llm.readback(),
                "counters": llm.counters,
                "running": len(llm.loop.scheduler.active),
                "queued": len(llm.loop.scheduler.waiting),
                "sessions": len(llm.sessions.sessions),
            }

        return await self.call(read)


def _close_sessions(llm: LLM) -> None:
    for name in [*llm.sessions.sessions]:
        llm.close_session(name)


def failure(output: Output) -> EngineError | None:
    """The error that ended a request, None if it ended without one; a RequestError if it asked for the impossible."""
    kind = RequestError if output.finish.matched == UNSATISFIABLE else EngineError
    return kind(output.finish.message or "") if output.finish.reason == "error" else None
