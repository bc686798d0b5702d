"""The application, and the process that serves it until a signal.

Client connections: limited in number, with a timeout for each part of a request.

Prometheus metrics, with SGLang's names where they exist.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Final

import h11
import uvicorn
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from uvicorn.protocols.http.h11_impl import H11Protocol

from specmatrix.engine.api import LLM
from specmatrix.engine.server import limits
from specmatrix.engine.server.chat_template import ChatTemplate
from specmatrix.engine.server.engine_thread import EngineThread, Ticket
from specmatrix.engine.server.limits import Application, Limits, install
from specmatrix.engine.server.native import NATIVE_BODIES, native_router
from specmatrix.engine.server.openai_bodies import OPENAI_BODIES
from specmatrix.engine.server.openai_routes import openai_router
from specmatrix.errors import ConfigError, shown

SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """Statistics of ended requests, and the engine's state at each scrape."""

    def __init__(self, engine: EngineThread, model: str) -> None:
        self.registry, self._engine = CollectorRegistry(), engine
        self._label = {"model_name": model}
        texts = {
            "prompt_tokens": "Prompt tokens of ended requests.",
            "generation_tokens": "Output tokens of ended requests.",
            "cached_tokens": "Prompt tokens that needed no computation.",
            "num_requests": "Requests that have ended.",
            "num_aborted_requests": "Requests that were aborted, by a call or because the client left.",
        }
        self._counts = {name: self._of(Counter, name, text) for name, text in texts.items()}
        self._first = self._of(Histogram, "time_to_first_token_seconds", "Seconds to the first token.", buckets=SECONDS)
        self._whole = self._of(Histogram, "e2e_request_latency_seconds", "Seconds of a request.", buckets=SECONDS)
        engine.on_end = self.ended

    def _of(self, kind: Any, name: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - a Counter or a Histogram
        return kind(f"sglang:{name}", text, [*self._label], registry=self.registry, **more).labels(**self._label)

    def ended(self, ticket: Ticket) -> None:
        """Count an ended request. Must be called in the event loop."""
        output = ticket.output
        assert output is not None
        self._counts["num_requests"].inc()
        self._counts["prompt_tokens"].inc(output.prompt_tokens)
        self._counts["generation_tokens"].inc(len(output.output_ids))
        self._counts["cached_tokens"].inc(output.cached_tokens)
        if output.finish.reason == "abort":
            self._counts["num_aborted_requests"].inc()
        if ticket.first is not None:
            self._first.observe(ticket.first - ticket.began)
        self._whole.observe(ticket.ended - ticket.began)

    async def text(self) -> bytes:
        """The exposition text."""
        snapshot = CollectorRegistry()
        snapshot.register(_Snapshot(self._label, await self._engine.state()))
        return generate_latest(self.registry) + generate_latest(snapshot)


class _Snapshot:
    """A Prometheus collector of the engine's state at one time."""

    def __init__(self, label: dict[str, str], state: dict[str, Any]) -> None:
        self._label, self._state = label, state

    def collect(self) -> Iterator[Metric]:
        counters, pages = self._state["counters"], self._state["pages"]
        used, rounds = pages["held"] * self._state["readback"]["page_size"], counters["spec.drafted"]
        gauges = (
            ("num_running_reqs", "Requests that run.", self._state["running"]),
            ("num_queue_reqs", "Requests that wait.", self._state["queued"]),
            ("num_used_tokens", "KV slots of requests and sessions.", used),
            ("token_usage", "Share of the KV pages that requests and sessions hold.", pages["held"] / pages["pages"]),
            ("spec_accept_rate", "Accepted share of the draft tokens.", counters["spec.accepted"] / max(1, rounds)),
        )
        for name, text, value in gauges:
            yield self._gauge(f"sglang:{name}", text, value)
        yield self._gauge("specmatrix:kv_pages", "KV pages in all.", pages["pages"])
        yield self._gauge("specmatrix:kv_pages_free", "KV pages that are free.", pages["free"])
        yield self._gauge("specmatrix:kv_pages_cached", "KV pages of the prefix cache.", pages["cached"])
        yield self._gauge("specmatrix:sessions", "Open sessions.", self._state["sessions"])
        events = CounterMetricFamily("specmatrix:engine_events", "The engine's counters.", labels=["event"])
        for name, count in counters.items():
            events.add_metric([name], count)
        yield events

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=[*self._label])
        family.add_metric([*self._label.values()], value)
        return family


def metrics_router(metrics: ServerMetrics) -> APIRouter:
    """GET /metrics."""
    router = APIRouter()

    @router.get("/metrics", response_class=Response)
    async def scrape() -> Response:
        """Counters, gauges and histograms in Prometheus' text format."""
        return Response(await metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router


def max_connections(max_requests: int) -> int:
    """The maximum number of open connections, bounded by the file descriptor limit."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(max_requests + limits.SPARE_CONNECTIONS, max(8, descriptors - limits.SPARE_CONNECTIONS))


class Connection(H11Protocol):
    """A connection that closes if its next request's head does not arrive in time, or if its client stops reading.

    When the number of connections reaches uvicorn's `limit_concurrency`, the one without an admitted request that has
    waited longest is closed.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._since = 0.0

    @property
    def idle(self) -> bool:
        """Whether no request is being served."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def admitted(self) -> bool:
        """Whether the request being served holds one of the slots of `Limits`."""
        return not self.idle and "admitted" in self.cycle.scope["state"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.max_size = limits.READ_BYTES  # type: ignore[attr-defined]  # asyncio's, 256 KiB
        self._wait()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
            min((one for one in others if not one.admitted), key=lambda one: one._since, default=self).close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in filter(None, (self._timer, self._stalled)):
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        # One-byte chunks cost more to parse than to send: the rest of an answered request's chunked body is skipped.
        answered = self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY
        if not answered or b"transfer-encoding" not in dict(self.headers):
            super().data_received(data)
        elif data.endswith(b"0\r\n\r\n"):
            self.transport.close()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(limits.READ_SECONDS, self.close)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def close(self) -> None:
        """Drop the client."""
        self.connections.discard(self)
        self.transport.abort()

    def _wait(self) -> None:
        """Start the timeout for the head of the next request."""
        if self._timer is not None:
            self._timer.cancel()
        self._since = self.loop.time()
        self._timer = self.loop.call_later(limits.HEAD_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        if self.idle:
            self.close()


MEBIBYTE: Final = 2**20
# Time that clients get to read their responses after the drain timeout.
READ_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Address and limits of a server.

    port: 0 selects a free one. key: API key that clients must send, None for none. model: the served model name.
    max_queued_requests: in addition to the running ones. max_connections: concurrent HTTP requests. drain_seconds:
    how long requests may run after a signal before they are aborted.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    key: str | None = None
    model: str | None = None
    max_queued_requests: int = 128
    max_connections: int = 512
    max_body_bytes: int = 4 * MEBIBYTE
    drain_seconds: float = 60.0

    def check(self) -> None:
        """Raise ConfigError on a value outside its range."""
        for name, value, least, most in (
            ("port", self.port, 0, 65535),
            ("max-queued-requests", self.max_queued_requests, 0, 10**6),
            ("max-connections", self.max_connections, 1, 10**6),
            ("max-body-bytes", self.max_body_bytes, 1, 2**40),
            ("drain-seconds", self.drain_seconds, 0, 10**6),
        ):
            if not least <= value <= most:
                raise ConfigError(f"--{name} is {shown(value)}; allowed: {least} to {most}")
        if self.key == "":
            raise ConfigError("--api-key is empty; give a key, or leave the option out")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and " " not in self.key):
            raise ConfigError("--api-key has characters that a header cannot hold; allowed: printable ASCII, no blanks")


def application(llm: LLM, folder: Path, options: ServerOptions) -> tuple[Application, EngineThread]:
    """Create the application for a loaded engine, and its engine thread, which `Server` starts and stops."""
    model = options.model or llm.resolved.model_path
    engine = EngineThread(llm, options.max_queued_requests)
    template = ChatTemplate(folder)
    app = Application((*NATIVE_BODIES, *OPENAI_BODIES), template.close)
    install(app)
    app.include_router(native_router(engine, llm.resolved.model_path))
    app.include_router(openai_router(engine, model, template))
    app.include_router(metrics_router(ServerMetrics(engine, model)))
    app.add_middleware(
        Limits,
        key=options.key,
        host=options.host,
        max_bytes=options.max_body_bytes,
        max_requests=options.max_connections,
    )
    return app, engine


class Server(uvicorn.Server):
    """A server that drains at the first SIGINT or SIGTERM and stops at once at the second.

    While it drains it accepts no requests; it ends once every response is sent. drain_seconds: when requests that still
    run are aborted. force: the number of the second signal. cut_off: number of aborted requests.
    """

    def __init__(self, config: uvicorn.Config, app: Application, engine: EngineThread, drain_seconds: float) -> None:
        super().__init__(config)
        self._app, self._engine, self._drain_seconds = app, engine, drain_seconds
        self.force: int | None = None
        self.cut_off = 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `stop`, then end the engine thread and close the application."""
        self._engine.start()
        try:
            await super().serve(sockets)
        finally:
            await self._engine.stop(waits=self.force is None)
            self._app.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait until every response is sent or the drain timeout has passed."""
        async with asyncio.TaskGroup() as group:
            limit = group.create_task(self._limit_drain())
            await super().shutdown(sockets)
            limit.cancel()

    async def _limit_drain(self) -> None:
        """Abort running requests, which ends each client's response, then close unread streams."""
        await asyncio.sleep(self._drain_seconds)
        self.cut_off = await self._engine.abort_all()
        await asyncio.sleep(READ_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if current_thread() is not main_thread():  # only the main thread receives signals
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            loop.add_signal_handler(number, self.stop, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Start draining; a second call stops at once."""
        if self.should_exit:
            self.force_exit, self.force = True, number
            return
        self.should_exit = self._engine.stopping = True
        load = self._engine.load
        text = f"draining {load} request{'s' * (load != 1)}; a second signal stops at once"
        print(text, file=sys.stderr, flush=True)


def bind(options: ServerOptions) -> socket.socket:
    """Open a listening socket. ConfigError if the address cannot be used."""
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        bound = socket.create_server((options.host, options.port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        why = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot listen on {shown(options.host)}, port {options.port}: {why}") from None
    bound.setblocking(False)
    return bound


def server(app: Application, engine: EngineThread, options: ServerOptions) -> Server:
    """Create a server without starting it."""
    config = uvicorn.Config(
        app,
        http=Connection,  # h11; httptools does not limit the number of headers
        ws="none",
        limit_concurrency=max_connections(options.max_connections),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
    )
    return Server(config, app, engine, options.drain_seconds)
