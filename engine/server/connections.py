"""Client connections: limited in number, with a timeout for each part of a request."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from specmatrix.engine.server import limits


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
