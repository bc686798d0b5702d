"""What every HTTP request must pass before a route sees it: the key, the number of requests, and the body's size."""

from __future__ import annotations

import asyncio
import hmac
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specmatrix.engine.server.refusals import Busy, Refused, TooLarge, TooSlow, Unauthorized, answer

# Probes and scrapes carry no key and must be answered under load, as on SGLang's server.
OPEN: Final = ("/health", "/health_generate", "/metrics")
BODY_SECONDS: Final = 30.0


class Limits:
    """ASGI middleware. key: asked of every request but those to OPEN, None for none. most_bytes: of a body.
    most_requests: at once."""

    def __init__(self, app: ASGIApp, key: str | None, most_bytes: int, most_requests: int) -> None:
        self.app = app
        self._key = None if key is None else key.encode()
        self._most_bytes, self._most_requests = most_bytes, most_requests
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        self._running += 1
        try:
            first = await self._checked(scope, receive)
        except Refused as error:
            self._running -= 1
            return await answer(scope["path"], error)(scope, receive, send)
        try:
            await self.app(scope, _replayed(first, receive), send)
        finally:
            self._running -= 1

    async def _checked(self, scope: Scope, receive: Receive) -> Message:
        """The request's whole body as one message. Refused if the request may not pass."""
        headers = dict(scope["headers"])
        if scope["path"] in OPEN:
            return await self._body(headers, receive)
        if self._key is not None and not _matches(headers.get(b"authorization", b""), self._key):
            raise Unauthorized("the key is missing or wrong; send the header Authorization: Bearer KEY")
        if self._running > self._most_requests:
            raise Busy(f"too many requests: {self._running - 1} being served; allowed: {self._most_requests}")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._body(headers, receive)
        except TimeoutError:
            raise TooSlow(f"the body did not arrive within {BODY_SECONDS:g} s") from None

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> Message:
        allowed = f"allowed: {self._most_bytes:,} (--max-body-bytes)"
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._most_bytes:
            raise TooLarge(f"the body has {int(declared):,} bytes; {allowed}")
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most_bytes:
                raise TooLarge(f"the body has more than {self._most_bytes:,} bytes; {allowed}")
            if not message.get("more_body", False):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def _matches(header: bytes, key: bytes) -> bool:
    """Whether a header holds the key, in a time that does not depend on how much of it is right."""
    scheme, _, given = header.partition(b" ")
    return hmac.compare_digest(given.strip(), key) and scheme.lower() == b"bearer"


def _replayed(first: Message, receive: Receive) -> Receive:
    """A `receive` that returns a message before the others."""
    waiting = [first]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
