"""Checks that run before every route, and the limits of requests and connections (docs/engine.md, "Limits")."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specmatrix.engine.server.refusals import (
    Busy,
    Disconnected,
    Forbidden,
    Refused,
    Stopping,
    TooLarge,
    TooSlow,
    Unauthorized,
    answer,
)
from specmatrix.errors import shown

# Limits of one request.
PROMPTS: Final = 4096
COMPLETIONS: Final = 128  # per prompt
STOPS: Final = 64  # stop strings, and as many stop tokens
STOP_CHARACTERS: Final = 256
BIASES: Final = 4096
BAD_WORDS: Final = 256
BAD_WORD_TOKENS: Final = 32
ALLOWED_TOKENS: Final = 2**18
GRAMMARS: Final = 16
LOGPROB_CELLS: Final = 2**19  # positions times (1 + alternatives)
NAME_CHARACTERS: Final = 1000
MESSAGES: Final = 4096
METADATA: Final = 16
TAGS: Final = 16
TEMPLATE_SECONDS: Final = 5.0
# Limits of connections.
HEAD_SECONDS: Final = 10.0
BODY_SECONDS: Final = 30.0
READ_SECONDS: Final = 60.0  # without the client reading its response
READ_BYTES: Final = 8192  # per read; as one-byte chunks they block the event loop for 50 ms
SPARE_CONNECTIONS: Final = 128  # beyond --max-connections, for probes and connections without a request
# Paths of probes and scrapes, which send no key and must be answered under load, as on SGLang's server.
OPEN: Final = ("/health", "/health_generate", "/metrics")
OPEN_REQUESTS: Final = 16  # concurrently, per path
OPEN_SECONDS: Final = 60.0
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE: Final = ("GET", "HEAD", "OPTIONS")


@dataclass
class Slots:
    """A counter that limits concurrent requests of one kind."""

    most: int
    taken: int = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a slot within the context. Busy if all are taken."""
        if self.taken >= self.most:
            raise Busy(f"too many requests: {self.taken} being served; allowed: {self.most}")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class Limits:
    """ASGI middleware that applies the limits.

    key: API key that all paths but OPEN require, None for none. host: where the server listens; on a loopback address
    only loopback host names are accepted. max_bytes: per body. max_requests: concurrent requests.
    """

    def __init__(self, app: ASGIApp, key: str | None, host: str, max_bytes: int, max_requests: int) -> None:
        self.app = app
        self._key = None if key is None else key.encode()
        self._names = LOOPBACK | {host.lower()} if _is_loopback(host) else None
        self._max_bytes = max_bytes
        self._slots = Slots(max_requests)
        self._probes = {(path, keyed): Slots(OPEN_REQUESTS) for path in OPEN for keyed in (False, True)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        keyed = self._key is not None and _matches(headers.get(b"authorization", b""), self._key)
        probe = self._probes.get((scope["path"], keyed))
        try:
            self._check(scope, headers)
            if self._key is not None and not keyed and probe is None:
                raise Unauthorized("the key is missing or wrong; send the header Authorization: Bearer KEY")
            if probe is not None and b"transfer-encoding" in headers:
                raise Refused("a probe has a body in chunks; allowed: none")
            with (probe or self._slots).one():
                if probe is None:
                    scope.setdefault("state", {})["admitted"] = True  # the connection is not closed for others
                    receive = _replayed(await self._body(headers, receive), receive)
                async with asyncio.timeout(OPEN_SECONDS) if probe else nullcontext():
                    await self.app(scope, receive, send)
        except Refused as error:
            await answer(scope["path"], error)(scope, receive, send)
        except TimeoutError:
            if probe is None:
                raise
            await answer(scope["path"], Stopping(f"no answer within {OPEN_SECONDS:g} s"))(scope, receive, send)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise Forbidden for a browser's cross-site request, or a host name that is not allowed (DNS rebinding)."""
        host = headers.get(b"host", b"localhost").decode("latin-1")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self._names is not None and name.strip("[]").lower() not in self._names:
            names = ", ".join(sorted(self._names))
            raise Forbidden(f"Host is {shown(name)}; allowed: {names}, or any name with --host 0.0.0.0")
        origin = headers.get(b"origin", b"").decode("latin-1")
        site = headers.get(b"sec-fetch-site", b"none").decode("latin-1")
        foreign = origin.rpartition("//")[2] not in ("", host) or site in ("cross-site", "same-site")
        if self._key is None and foreign and scope["method"] not in SAFE:
            raise Forbidden(f"Origin is {shown(origin)}; allowed: the server's own, or any with --api-key")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> Message:
        """Read the whole body as one message. Raises Refused if it is too large or does not arrive."""
        allowed = f"allowed: {self._max_bytes:,} (--max-body-bytes)"
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise TooLarge(f"the body has {int(declared):,} bytes; {allowed}")
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while (message := await receive())["type"] == "http.request":
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._max_bytes:
                        raise TooLarge(f"the body has more than {self._max_bytes:,} bytes; {allowed}")
                    if not message.get("more_body", False):
                        return {"type": "http.request", "body": b"".join(parts), "more_body": False}
        except TimeoutError:
            raise TooSlow(f"the body did not arrive within {BODY_SECONDS:g} s") from None
        raise Disconnected("the client left before its body was complete")


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _matches(header: bytes, key: bytes) -> bool:
    """Compare the key in a header in constant time."""
    scheme, _, given = header.partition(b" ")
    return hmac.compare_digest(given.strip(), key) and scheme.lower() == b"bearer"


def _replayed(first: Message, receive: Receive) -> Receive:
    """A `receive` that returns `first` before further messages."""
    waiting = [first]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
