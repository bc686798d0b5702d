"""A server that speaks SGLang's native API, as a running engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Final
from uuid import uuid4

from specmatrix.child_process import ChildProcess
from specmatrix.engine.core.config.defaults import SHAPE
from specmatrix.matrix.subjects.http.connection import Connection, RefusedAsk, ask_all, launched
from specmatrix.matrix.subjects.http.endpoint import BASELINE, INFO, Endpoint, same
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, RunningEngine, SubjectRequest
from specmatrix.matrix.workloads.predicted import RESOLVED_SHAPE
from specmatrix.matrix.workloads.request import Continuation
from specmatrix.matrix.zoo.registry import resolve_path

# Current key of meta_info to the keys of earlier versions.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "spec_num_correct_drafts": ("spec_accepted_drafts", "spec_accept_token_num"),
    "spec_num_proposed_drafts": ("spec_proposed_drafts", "spec_draft_token_num"),
    "spec_correct_drafts_histogram": ("spec_accept_histogram",),
    "total_retractions": ("num_retractions", "retraction_count"),
}
# The log-probability of a token that a mask forbids, as SGLang writes it from 0.5.13 on; 0.5.12 writes null.
FORBIDDEN: Final = -3.4028234663852886e38
RESOLVED: Final = dict(zip(RESOLVED_SHAPE, SHAPE, strict=True))


class SglangEngine(RunningEngine):
    """A running server, or one that is started here and ends with `close`."""

    def __init__(self, endpoint: Endpoint, command: EngineCommand, seconds: float) -> None:
        self._command = command
        self._process: ChildProcess | None = None
        if endpoint.launch is not None:
            paths = {"model_path": command.checkpoints["target"]}
            if "draft" in command.checkpoints:
                paths["speculative_draft_model_path"] = command.checkpoints["draft"]
            flags = {**{flag: str(resolve_path(name)) for flag, name in paths.items()}, **command.flags}
            self._server, self._process = launched(endpoint, flags, seconds)
        else:
            url = endpoint.baseline_url if command.variant == BASELINE else endpoint.url
            assert url is not None
            self._server = Connection(url, endpoint.key)
        self._running = self._server.get(*INFO)
        self._counts: Counter[str] = Counter()
        self._lock = Lock()
        self._prefix = ""
        self._open: Counter[str] = Counter()  # sessions, and the asks that they still wait for
        self._texts: dict[str, tuple[tuple[int, ...], int]] = {}  # by ask: all its tokens, and those of its prompt
        self._lines: dict[str, tuple[int, ...]] = {}  # by streaming session: the tokens of its history

    @property
    def url(self) -> str:
        """The server's address."""
        return self._server.url

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The draft's shape as the server reports it."""
        found = {name: self._running.get(flag) for name, flag in RESOLVED.items()}
        return {name: value for name, value in found.items() if value is not None}

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        """Send all asks on an empty prefix cache, concurrently where they do not wait for each other."""
        self._texts.clear()
        # Names of requests and sessions differ from other clients' and from those that this one has aborted.
        self._prefix = uuid4().hex[:8]
        with suppress(RefusedAsk):  # while another client's requests run, or if the server has no such endpoint
            self._server.post("/flush_cache", {})
        turns = [ask.session for ask in asks if ask.session and not ask.session.resend]
        self._open.update(here.id for here in turns)
        for here in {here.id: here for here in turns}.values():
            # Without its idle timeout: none is due here, and a turn that waits for kernels to compile counts as idle.
            body = {"capacity_of_str_len": here.capacity, "session_id": self._named(here.id)}
            self._server.post("/open_session", {**body, "streaming": here.streaming})
        return ask_all(asks, self._send, self._ended)

    def readback(self) -> Mapping[str, Any]:
        """The configuration that the server reports now, by flag name, and its `version`."""
        self._running = self._server.get(*INFO)
        flags = self._command.flags
        return {"version": self._running.get("version")} | {
            flag: asked if same(flag, asked, self._running[flag]) else self._running[flag]
            for flag, asked in flags.items()
            if flag in self._running
        }

    def counters(self) -> Mapping[str, int]:
        """spec.drafted and spec.accepted, summed over the answers."""
        return dict(self._counts)

    def close(self) -> None:
        """Close the connection, and end a server that was started here."""
        self._server.close()
        if self._process is not None:
            self._process.stop()

    def _named(self, name: str) -> str:
        """The name for the server. No name begins with another, as SGLang aborts all requests that begin with one."""
        return f"{self._prefix}-{name};"

    def _send(self, ask: SubjectRequest) -> Answer:
        body, ids, tokens = dict(ask.fields), tuple(ask.input_ids), tuple(ask.input_ids)
        here = ask.session
        if not body.get("sent", True):
            return Answer(ask.id, ids, (), "", "refused", None, 0, (), refusal="it is not sent over HTTP")
        if here is not None:
            history = self._history(here)
            ids = ids[1:] if history and ids[:1] == history[:1] else ids  # one BOS
            tokens = history + ids
            if here.resend:
                ids = tokens
            else:
                body["session_params"] = self._session(here)
        body |= {"input_ids": list(ids), "rid": self._named(ask.id)}
        pieces: list[str] = []
        try:
            read = body["stream"] or ask.abort_after or "closes_after" in body
            found = self._streamed(ask, body, pieces) if read else self._whole(body)
        except RefusedAsk as refused:
            return Answer(ask.id, ask.input_ids, (), "", "refused", None, 0, (), refusal=str(refused))
        return self._answer(ask, tokens, found, tuple(dict.fromkeys(pieces)))

    def _whole(self, body: Mapping[str, Any]) -> dict[str, Any]:
        found = self._server.post("/generate", body)
        return dict(found[0] if isinstance(found, list) else found)

    def _streamed(self, ask: SubjectRequest, body: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
        """The last object of a stream; aborts it or closes its session after the ask's number of tokens."""
        last: dict[str, Any] = {}
        left, closes = ask.abort_after, body.pop("closes_after", None)
        for last in self._server.stream("/generate", body):
            if "meta_info" not in last:
                raise RuntimeError(f"the server failed in a stream: {last}")
            if body["stream"]:
                pieces.append(last["text"])
            if left is not None and last["meta_info"]["completion_tokens"] >= left:
                left = None
                self._server.post("/abort_request", {"rid": body["rid"]})
            if closes is not None and ask.session and last["meta_info"]["completion_tokens"] >= closes:
                closes = None
                self._close(ask.session)
        return last

    def _history(self, here: Continuation) -> tuple[int, ...]:
        """The tokens that a turn continues."""
        if here.streaming and not here.resend:
            return self._lines.get(here.id, ())
        if here.follows is None:
            return ()
        whole, prompt = self._texts[here.follows]
        kept = whole[:prompt] if here.drop_previous_output else whole
        return kept[: here.offset] if here.offset else kept

    def _session(self, here: Continuation) -> dict[str, Any]:
        follows = None if here.streaming or here.follows is None else self._named(here.follows)
        return {
            "id": self._named(here.id),
            "rid": follows,
            "offset": here.offset,
            "replace": here.replace,
            "drop_previous_output": here.drop_previous_output,
        }

    def _ended(self, ask: SubjectRequest, answer: Answer) -> None:
        """Keep an answer's tokens for requests that continue it; close its session after the last request."""
        whole = (*answer.prompt_ids, *answer.output_ids)
        self._texts[ask.id] = whole, len(answer.prompt_ids)
        here = ask.session
        if here is None or here.resend:
            return
        if here.id not in self._open:  # closed while the turn ran
            return
        if here.streaming and answer.finish in ("stop", "length"):
            self._lines[here.id] = whole
        self._open[here.id] -= 1
        if not self._open[here.id]:
            self._close(here)

    def _close(self, here: Continuation) -> None:
        """Close a session."""
        del self._open[here.id]
        self._lines.pop(here.id, None)
        self._server.post("/close_session", {"session_id": self._named(here.id)})

    def _answer(
        self, ask: SubjectRequest, tokens: tuple[int, ...], found: Mapping[str, Any], pieces: tuple[str, ...]
    ) -> Answer:
        info = canonical(found["meta_info"])
        reason = info["finish_reason"]
        with self._lock:
            self._counts["spec.drafted"] += int(info.get("spec_num_proposed_drafts", 0))
            self._counts["spec.accepted"] += int(info.get("spec_num_correct_drafts", 0))
        scores = info.get("output_token_logprobs") or []
        ids = found["output_ids"] if "output_ids" in found else [token for _, token, *_ in scores]
        prompt = info.get("input_token_logprobs") or []
        scored = ask.fields["return_logprob"]
        return Answer(
            ask.id,
            tokens,
            tuple(ids),
            found["text"],
            reason["type"],
            reason.get("matched"),
            int(info.get("cached_tokens") or 0),
            (),
            logprobs=tuple(value for _, value in by_token(scores)) if scored else (),
            top_logprobs=tuple(map(by_token, info.get("output_top_logprobs") or ())),
            meta_info=info,
            retractions=int(info.get("total_retractions") or 0),
            pieces=pieces,
            prompt_logprobs=tuple(value for value, *_ in prompt),
            prompt_top_logprobs=tuple(map(by_token, info.get("input_top_logprobs") or ())) or ((),) * len(prompt),
        )


def canonical(info: Mapping[str, Any]) -> dict[str, Any]:
    """meta_info with today's keys, whatever version wrote it."""
    found = dict(info)
    for key, earlier in ALIASES.items():
        known = next((name for name in (key, *earlier) if name in info), None)
        if known is not None:
            found[key] = info[known]
    return found


def by_token(scores: Sequence[Sequence[Any]] | None) -> tuple[tuple[int, float], ...]:
    """(token, its log-probability in nats) of SGLang's (log-probability, token, text)."""
    return tuple((int(token), FORBIDDEN if value is None else float(value)) for value, token, *_ in scores or ())
