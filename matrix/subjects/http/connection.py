"""Requests to a server, and servers that are started here."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from json import JSONDecodeError, loads
from time import monotonic
from typing import Any, Final, Self

import httpx

from specmatrix.child_process import ChildProcess, users_environment
from specmatrix.errors import ConfigError, shown, text_of
from specmatrix.matrix.subjects.http.endpoint import FLAGS, SPEC_VERSION, Endpoint
from specmatrix.matrix.subjects.protocol import Answer, SubjectRequest

# A server without an answer for this long counts as hung.
SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.2
OUTPUT_TAIL: Final = 2000
# Ends the server's process group once this process, which alone holds the other end of its standard input, is gone.
GUARD: Final = 'exec 3<&0; "$@" 3<&- </dev/null & { read -r _ <&3; kill -KILL 0; } & wait %1'
# Stands for the port in a command, and needs no quotes.
PORT: Final = "@port@"
REFUSED: Final = range(400, 500)
KEYED: Final = (401, 403)


class RefusedAsk(Exception):
    """The server refused one request."""


class NotThere(ConfigError):
    """None of the requested paths exists on the server."""


class Connection:
    """One server. Every method may be called by several threads."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url.rstrip("/")
        self._unauthorized = "needs a key; give --api-key" if key is None else "refuses the key of --api-key"
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=SECONDS, limits=limits, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, *paths: str) -> dict[str, Any]:
        """The object at the first of these paths that exists. NotThere if none does, ConfigError without an answer."""
        why = ""
        for path in paths:
            try:
                response = self._client.get(path)
            except httpx.HTTPError as error:
                raise ConfigError(f"{self.url} cannot be reached: {text_of(error)}") from None
            if response.status_code == 200:
                found = response.json()
                if isinstance(found, dict):
                    return found
            if response.status_code in KEYED:
                raise ConfigError(f"{self.url} {self._unauthorized} (status {response.status_code})")
            why = f"{path} answers with status {response.status_code}"
        raise NotThere(f"{self.url} does not say what it runs: {why}")

    def text(self, path: str) -> str:
        """The body of a GET response, "" unless its status is 200."""
        try:
            response = self._client.get(path)
        except httpx.HTTPError:
            return ""
        return response.text if response.status_code == 200 else ""

    def find(self, *paths: str) -> dict[str, Any]:
        """As `get`, but empty if none of the paths exists."""
        try:
            return self.get(*paths)
        except NotThere:
            return {}

    def post(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as the server answers
        """The JSON answer, None if the response is not JSON. RefusedAsk for a status of 400 to 499; other errors are
        raised."""
        response = self._client.post(path, json=body)
        if response.status_code in REFUSED:
            raise RefusedAsk(_message(response.text))
        response.raise_for_status()
        return response.json() if "json" in response.headers.get("content-type", "") else None

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects of a stream of server-sent events. Raises as `post`."""
        # llama.cpp closes a connection behind some streams without saying so.
        headers = {"Connection": "close"}
        with self._client.stream("POST", path, json={**body, "stream": True}, headers=headers) as response:
            if response.status_code in REFUSED:
                response.read()
                raise RefusedAsk(_message(response.text))
            response.raise_for_status()
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip()
                if line.startswith("data:") and data != "[DONE]":
                    yield loads(data)

    def healthy(self) -> bool:
        """Whether /health answers with status 200."""
        try:
            return self._client.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _message(text: str) -> str:
    """Extract the message from an error body, in any of the formats that servers use."""
    try:
        found = loads(text)
    except JSONDecodeError:
        return text_of(text)
    inner = found.get("error", found) if isinstance(found, dict) else found
    return text_of(inner.get("message", inner) if isinstance(inner, dict) else inner)


def launched(endpoint: Endpoint, flags: Mapping[str, Any], seconds: float) -> tuple[Connection, ChildProcess]:
    """Start the server of --launch with these flags. ConfigError as `started`."""
    assert endpoint.launch is not None
    text = endpoint.launch.replace(FLAGS, shlex.join([*flag_words(flags), "--host=127.0.0.1", f"--port={PORT}"]))
    command = shlex.split(text.replace(SPEC_VERSION, spec_version(flags)))
    return started(command, seconds, f"--launch {shown(endpoint.launch)}", endpoint.key)


def started(
    command: Sequence[str], seconds: float, name: str, key: str | None = None
) -> tuple[Connection, ChildProcess]:
    """Start a server, its command with PORT where the port goes, and wait until it is healthy. name: for messages.
    ConfigError if it ends first or is not healthy in time."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [word.replace(PORT, f"{port}") for word in command]
    process = ChildProcess(["/bin/sh", "-c", GUARD, "sh", *words], environment=users_environment())
    connection, end = Connection(f"http://127.0.0.1:{port}", key), monotonic() + seconds
    while not connection.healthy():
        code = process.wait(POLL_SECONDS)
        if code is not None or monotonic() > end:
            process.stop()
            connection.close()
            what = f"was not healthy within {seconds:g} s" if code is None else f"ended with status {code} at its start"
            said = process.output_end(OUTPUT_TAIL)
            printed = f"end of its output:\n{said}" if said else "it printed nothing"
            raise ConfigError(f"the server of {name} {what}; {printed}")
    return connection, process


def spec_version(flags: Mapping[str, Any]) -> str:
    """The spec version of a command's flags, for servers that choose it by its own option."""
    return {True: "v1", False: "v2", None: "auto"}[flags.get("disable_overlap_schedule")]


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """Flags as command-line words, without those that are off or unset."""
    given = [(name.replace("_", "-"), value) for name, value in flags.items() if value not in (None, False)]
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in given]


# Requests at once: more than any cell runs together, and fewer than servers queue by default.
MAX_THREADS: Final = 64


def ask_all(
    asks: Sequence[SubjectRequest],
    send: Callable[[SubjectRequest], Answer],
    on_answer: Callable[[SubjectRequest, Answer], None],
) -> list[Answer]:
    """The answers in order. Each ask is sent once those that it waits for have ended; on_answer: called in this thread
    for each. ValueError if one waits for an ask that is not in `asks`."""
    waiting, running, done = list(asks), dict[Future[Answer], SubjectRequest](), dict[str, Answer]()
    with ThreadPoolExecutor(max_workers=MAX_THREADS) as pool:
        while waiting or running:
            due = [ask for ask in waiting if all(name in done for name in ask.after)]
            waiting = [ask for ask in waiting if ask not in due]
            running |= {pool.submit(send, ask): ask for ask in due}
            if not running:
                raise ValueError(f"{waiting[0].id} waits for {waiting[0].after}, which are not all among the asks")
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ask = running.pop(future)
                done[ask.id] = future.result()
                on_answer(ask, done[ask.id])
    return [done[ask.id] for ask in asks]
