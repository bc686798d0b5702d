"""Sessions: requests that continue one another.

An ordinary session is a tree of finished requests and only builds prompts; its KV is reused through the prefix cache.
A streaming session is a linear sequence of turns, one at a time, with an account that outlives each of them
(`session_kv.py`). Nothing here reads a clock: the caller passes times, in seconds of any clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from sys import float_info
from typing import Final

from specmatrix.engine.core.schedule.request import Finish, Phase, Request, is_text
from specmatrix.engine.core.schedule.scheduler import Scheduler
from specmatrix.errors import RequestError, shown

MAX_TIMEOUT: Final = float_info.max  # seconds
MAX_ID: Final = 1000  # characters
KINDS: Final = (
    ("id", (str,), "a text"),
    ("rid", (int, type(None)), "the id of a request of the session, or None"),
    ("offset", (int,), "an integer"),
    ("replace", (bool,), "true or false"),
    ("drop_previous_output", (bool,), "true or false"),
)


@dataclass(frozen=True, slots=True)
class SessionParams:
    """How a request continues session `id`; names and meanings follow SGLang's session parameters.

    rid: the request to continue, None for a fresh start (a streaming session always continues its last successful
    turn). offset: number of history tokens to keep, 0 for all. drop_previous_output: continue the prompt of `rid`
    without its output. replace: end and forget the requests that continue `rid` (all requests, if None).
    """

    id: str
    rid: int | None = None
    offset: int = 0
    replace: bool = False
    drop_previous_output: bool = False

    def validate(self) -> None:
        """Raise RequestError on a value of the wrong type."""
        for name, kinds, allowed in KINDS:
            value = getattr(self, name)
            if type(value) not in kinds:
                raise RequestError(f"session {name} is {shown(value)}; allowed: {allowed}")


@dataclass(eq=False, slots=True)
class Branch:
    """A request of an ordinary session: its text is its parent's first `kept` tokens followed by its own tokens.

    request: None once it is released. prompt: number of tokens in its whole prompt.
    """

    request: Request | None
    parent: int | None
    kept: int
    prompt: int
    tokens: tuple[int, ...] = ()  # its own tokens, once it is released
    children: list[int] = field(default_factory=list)  # the requests that continue it

    @property
    def own(self) -> tuple[int, ...]:
        return self.tokens if self.request is None else tuple(self.request.tokens[self.kept :])


@dataclass(eq=False, slots=True)
class Session:
    """One open session. Only `Sessions` writes it. Of a released request only the tokens are kept."""

    id: str
    streaming: bool
    capacity: int
    timeout: float | None
    used: float
    tree: dict[int, Branch] = field(default_factory=dict)  # ordinary: by the id of the request
    turn: Request | None = None  # streaming: the latest turn, until it is released
    history: tuple[int, ...] = ()  # streaming: every token shown up to the last good turn
    account: int = 0  # streaming: the account that holds the history's KV
    live: list[Request] = field(default_factory=list)

    def busy(self) -> bool:
        """Whether a request of the session is not yet released. Drops references to released requests."""
        for request in self.live:
            if request.phase is Phase.DONE:
                if request is self.turn:
                    self.history, self.turn = self.shown(), None
                elif request.rid in self.tree:
                    branch = self.tree[request.rid]
                    branch.tokens, branch.request = branch.own, None
        self.live = [request for request in self.live if request.phase is not Phase.DONE]
        return bool(self.live)

    def shown(self) -> tuple[int, ...]:
        """Every token that the user saw in a streaming session; aborted turns do not count."""
        turn = self.turn
        if turn is None or turn.finish is None or turn.finish == Finish("abort"):
            return self.history
        return tuple(turn.tokens)

    def text(self, rid: int, end: int | None = None) -> tuple[int, ...]:
        """The tokens of an ordinary session's request, at most the first `end`."""
        branch = self.tree[rid]
        left = branch.kept + len(branch.own) if end is None else end
        parts = [branch.own[: left - branch.kept]]
        while branch.parent is not None:
            left, branch = min(left, branch.kept), self.tree[branch.parent]
            parts.append(branch.own[: left - branch.kept])  # never empty, see `enter`
        return tuple(chain.from_iterable(reversed(parts)))

    def enter(self, request: Request, parent: int | None, kept: int) -> None:
        """Add a request that continues the first `kept` tokens of `parent`."""
        if parent is not None:
            branch = self.tree[parent]
            branch.children.append(request.rid)
            # If it keeps none of the parent's own tokens, its text continues an earlier ancestor.
            while branch.parent is not None and branch.kept >= kept:
                parent, branch = branch.parent, self.tree[branch.parent]
        self.tree[request.rid] = Branch(request, parent, kept, len(request.prompt))

    def cut(self, rid: int | None) -> list[int]:
        """Forget the requests that continue `rid`, directly or indirectly; all requests for None. Returns their ids."""
        if rid is None:
            found = list(self.tree)
        else:
            found, self.tree[rid].children = self.tree[rid].children, []
            for child in found:  # `found` grows during the loop
                found += self.tree[child].children
        for child in found:
            del self.tree[child]
        return found


@dataclass(frozen=True, slots=True)
class Turn:
    """A checked request of a session: its whole prompt, whose first `kept` tokens are history."""

    session: Session
    params: SessionParams
    prompt: tuple[int, ...]
    kept: int


@dataclass(eq=False)
class Sessions:
    """The open sessions of one engine.

    streaming: streaming sessions are allowed. bos_id: removed from the start of a continuation. text_length: function
    from tokens to the length of their text in characters, which `capacity_of_str_len` limits.
    """

    scheduler: Scheduler
    streaming: bool
    bos_id: int | None
    text_length: Callable[[Sequence[int]], int]

    def __post_init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.closing: list[Session] = []
        self._busy: list[Session] = []  # open or not
        self._named = 0

    def open(self, capacity: int, session_id: str | None, streaming: bool, timeout: float | None, now: float) -> str:
        """Open a session and return its id. Raises RequestError if the id is taken or a value is invalid."""
        if type(capacity) is not int or capacity < 1:
            raise RequestError(f"capacity_of_str_len is {shown(capacity)}; allowed: an integer of at least 1")
        if timeout is not None and (type(timeout) not in (int, float) or not 0 < timeout <= MAX_TIMEOUT):
            raise RequestError(f"timeout is {shown(timeout)}; allowed: None, or a finite number of seconds above 0")
        if type(streaming) is not bool:
            raise RequestError(f"streaming is {shown(streaming)}; allowed: true or false")
        if streaming and not self.streaming:
            raise RequestError("streaming sessions are disabled; start the engine with --enable-streaming-session")
        if session_id is None:
            session_id = self._new_name()
        if type(session_id) is not str or not is_text(session_id) or not 1 <= len(session_id) <= MAX_ID:
            raise RequestError(
                f"session_id is {shown(session_id)}; allowed: a text of 1 to {MAX_ID} characters, without half of "
                "a surrogate pair"
            )
        if session_id in self.sessions:
            raise RequestError(f"session {shown(session_id)} is already open; close it first or choose another id")
        self.sessions[session_id] = Session(session_id, streaming, capacity, timeout, now)
        self.scheduler.counters.hit("session.opened")
        return session_id

    def close(self, session_id: str) -> None:
        """Close a session; its KV is freed once its turn in flight, if any, has ended."""
        self.closing.append(self._open(session_id))
        del self.sessions[session_id]
        self._sweep()

    def reap(self, now: float) -> None:
        """Close sessions that exceeded their idle timeout, and free closed sessions whose last turn has ended."""
        self._busy = [session for session in self._busy if session.busy()]
        for session in list(self.sessions.values()):
            if session.timeout is None:
                continue
            if session.live:
                session.used = now
            elif now - session.used > session.timeout:
                self.scheduler.counters.hit("session.timed_out")
                self.close(session.id)
        if self.closing:
            self._sweep()

    def alive(self) -> dict[str, int]:
        """Numbers of sessions that are open, closing, and busy with a request."""
        return {"sessions": len(self.sessions), "closing": len(self.closing), "busy_sessions": len(self._busy)}

    def judge(self, params: SessionParams, tokens: Sequence[int]) -> Turn:
        """Build the turn for these new tokens. Raises RequestError if the session does not allow it.

        Changes nothing.
        """
        params.validate()
        session = self._open(params.id)
        history = self._line(session, params) if session.streaming else self._branch(session, params)
        new = tuple(tokens)
        if history:
            if self.bos_id is not None and new[:1] == (self.bos_id,):
                new = new[1:]
            if not new:
                raise RequestError(f"the turn of session {shown(session.id)} has no new tokens; allowed: at least one")
        prompt = history + new
        length = self.text_length(prompt)
        if length > session.capacity:
            raise RequestError(
                f"the history and new text of session {shown(session.id)} are {length} characters; allowed: at most "
                f"its capacity_of_str_len, {session.capacity}"
            )
        return Turn(session, params, prompt, len(history))

    def begin(self, turn: Turn, request: Request, now: float) -> None:
        """Add a checked request, which is about to be queued, to its session."""
        session = turn.session
        session.used = now
        if not session.busy():
            self._busy.append(session)
        session.live.append(request)
        if session.streaming:
            session.history = session.shown()
            session.account = session.account or request.rid
            session.turn = request
            request.account, request.holds = session.account, True
            return
        if turn.params.replace:
            for rid in session.cut(turn.params.rid):
                self.scheduler.abort(rid)
        session.enter(request, turn.params.rid, turn.kept)

    def _line(self, session: Session, params: SessionParams) -> tuple[int, ...]:
        for name, value, allowed in (
            ("replace", params.replace, False),
            ("offset", params.offset, 0),
            ("drop_previous_output", params.drop_previous_output, False),
        ):
            if value != allowed:
                raise RequestError(
                    f"session {shown(session.id)} is streaming and {name} is {shown(value)}; allowed: {allowed!r}"
                )
        if session.turn is not None and session.turn.finish is None:
            raise RequestError(
                f"session {shown(session.id)} has request {session.turn.rid} in flight; a streaming session runs one "
                "request at a time"
            )
        return session.shown()

    def _branch(self, session: Session, params: SessionParams) -> tuple[int, ...]:
        if params.rid is None:
            if params.offset or params.drop_previous_output:
                raise RequestError(
                    "offset and drop_previous_output change a history, but rid is None; set rid to a request "
                    f"of session {shown(session.id)}"
                )
            return ()
        if params.rid not in session.tree:
            allowed = shown(sorted(session.tree)) if session.tree else "None, as it has none yet"
            raise RequestError(f"session {shown(session.id)} has no request {shown(params.rid)}; allowed: {allowed}")
        before = session.tree[params.rid]
        if before.request is not None and before.request.finish is None:
            raise RequestError(f"request {params.rid} has not finished; a session continues finished requests only")
        history = session.text(params.rid, before.prompt if params.drop_previous_output else None)
        if not 0 <= params.offset <= len(history):
            raise RequestError(f"offset is {shown(params.offset)}; allowed: 0 to the history's {len(history)} tokens")
        return history[: params.offset] if params.offset else history

    def _open(self, session_id: str) -> Session:
        if type(session_id) is not str or session_id not in self.sessions:
            raise RequestError(f"session {shown(session_id)} is not open; open it with open_session")
        return self.sessions[session_id]

    def _new_name(self) -> str:
        while True:
            self._named += 1
            name = f"session-{self._named}"
            if name not in self.sessions:
                return name

    def _sweep(self) -> None:
        for session in list(self.closing):
            if session.streaming and session.busy():
                continue
            self.closing.remove(session)
            if session.account in self.scheduler.held:
                self.scheduler.held.close(session.account)
