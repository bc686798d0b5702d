"""The HTTP server: tokens per second by number of clients, also against another server, and a soak."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import cycle, islice
from json import dumps, loads
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx

from specmatrix.benchmarks.metric import Metric, of, red, spread_of, unmeasured
from specmatrix.benchmarks.pairs import interleave, seconds
from specmatrix.benchmarks.subjects import questions
from specmatrix.errors import ConfigError, text_of
from specmatrix.matrix.subjects.http.connection import launched
from specmatrix.matrix.subjects.http.endpoint import FLAGS, Endpoint
from specmatrix.matrix.subjects.vllm import environment
from specmatrix.matrix.subjects.vllm.subject import OFFLINE, ONE_THREAD, VllmSubject
from specmatrix.matrix.zoo.registry import resolve_path

CLIENTS: Final = (1, 8, 32)
REQUESTS: Final = 64
NEW_TOKENS: Final = 64
RUNS: Final = 5
SERVE: Final = (
    *("serve", "--port", "0", "--speculative-algorithm", "EAGLE3", "--page-size", "4"),
    *("--max-total-tokens", "16384", "--enable-streaming-session"),
)
VLLM: Final = "vllm"
# The depth that our server chooses for this draft.
DEPTH: Final = 5
SAID: Final = re.compile(r"serving .* on (http://\S+)\n")
# Soak: clients at once, kinds of requests with their weights, and the most by which memory may grow once warm.
SOAKING: Final = 24
WARM: Final = 0.2
MOST_GROWTH: Final = 0.05
SECONDS: Final = 300.0


@contextmanager
def server() -> Iterator[tuple[str, int]]:
    """URL and process id of `specmatrix serve` in a process of its own, which drains at the end."""
    command = [sys.executable, "-m", "specmatrix", *SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None and process.stderr is not None
        found = SAID.fullmatch(process.stdout.readline())
        if found is None:
            raise ConfigError(f"the server did not start: {text_of(process.stderr.read())}")
        try:
            yield found[1], process.pid
        finally:
            process.terminate()
            process.stderr.read()


@contextmanager
def vllm_server() -> Iterator[str]:
    """URL of vLLM's server on the same target and draft, from the environment of the subject. ConfigError if it is not
    installed or does not start."""
    if environment.version() is None:
        raise ConfigError("vLLM is not installed; `specmatrix subjects install vllm` installs it")
    draft = {"method": "eagle3", "model": str(resolve_path("llama-mini-eagle3")), "num_speculative_tokens": DEPTH}
    flags = {
        "model": str(resolve_path("llama-mini")),
        "served_model_name": "llama-mini",
        "dtype": "float32",
        "enforce_eager": True,
        "speculative_config": dumps(draft),
    }
    own = OFFLINE | ONE_THREAD | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    given = [f"{name}={value}" for name, value in own.items()]
    # The command `vllm` does not find its own version in the CPU build.
    words = ["env", "-u", "PYTHONPATH", *given, environment.python(), "-m", "vllm.entrypoints.openai.api_server"]
    endpoint = Endpoint(launch=f"{shlex.join(words)} {FLAGS}")
    connection, process = launched(endpoint, flags, VllmSubject.profile.start_seconds)
    try:
        yield connection.url
    finally:
        connection.close()
        process.stop()


def measure(soak: int = 0, against: str | None = None) -> list[Metric]:
    """Throughput for each number of clients, then a soak of `soak` requests. against: the URL of another server on the
    same checkpoint, or `vllm` to start vLLM's. ConfigError if that cannot be reached."""
    prompts = list(islice(cycle(questions()), REQUESTS))
    with vllm_server() if against == VLLM else nullcontext(against) as other, server() as (url, _):
        found = [throughput(clients, url, other, prompts) for clients in CLIENTS]
    return found + (soaked(soak) if soak else [])


def throughput(clients: int, url: str, against: str | None, prompts: list[str]) -> Metric:
    """Tokens per second of our server, or its ratio to those of the server `against`; greedy, of one length."""
    name = f"served_tokens_per_second_{clients}_clients"
    ours = _load(url, clients, prompts)
    if against is None:
        ours()
        rates = [REQUESTS * NEW_TOKENS / seconds(ours) for _ in range(RUNS)]
        return of(name, rates, None, spread_of(rates))
    pairs = interleave(ours, _load(against, clients, prompts), RUNS)
    best = (REQUESTS * NEW_TOKENS / min(taken) for taken in (pairs.ours, pairs.theirs))
    return pairs.metric(f"{name}_beside", None, note="at best {:,.0f} tokens/s against {:,.0f}".format(*best))


def _load(url: str, clients: int, prompts: list[str]) -> Callable[[], None]:
    """A call that sends all prompts from `clients` clients and waits for their answers."""
    try:
        model = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"][0]["id"]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise ConfigError(f"{url} does not say which model it serves: {text_of(error)}") from None
    fixed = {"model": model, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}

    async def all_of() -> None:
        waiting = [*prompts]
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False) as http:

            async def client() -> None:
                while waiting:
                    answer = await http.post("/v1/completions", json={**fixed, "prompt": waiting.pop()})
                    answer.raise_for_status()
                    assert answer.json()["usage"]["completion_tokens"] == NEW_TOKENS

            await asyncio.gather(*(client() for _ in range(clients)))

    return lambda: asyncio.run(all_of())


@dataclass
class Soak:
    """A mixture of requests, the same for the same number; done: by kind."""

    http: httpx.AsyncClient
    prompts: list[str]
    random: Random = field(default_factory=lambda: Random(0))
    done: Counter[str] = field(default_factory=Counter)

    async def one(self, number: int) -> None:
        """Send one request. AssertionError on a wrong answer."""
        kinds: dict[str, tuple[int, Callable[[int, dict[str, Any]], Awaitable[None]]]] = {
            "answer": (60, self.answer),
            "stream": (12, self.stream),
            "abort": (8, self.abort),
            "disconnect": (8, self.disconnect),
            "session": (6, self.session),
            "slow reader": (4, self.slow),
            "refused": (2, self.refused),
        }
        kind = self.random.choices([*kinds], [weight for weight, _ in kinds.values()])[0]
        sampling = {"max_new_tokens": self.random.randint(1, 12), "temperature": self.random.choice((0, 0.8))}
        body = {"text": self.prompts[number % len(self.prompts)], "sampling_params": sampling}
        await kinds[kind][1](number, body)
        self.done[kind] += 1

    async def answer(self, number: int, body: dict[str, Any]) -> None:
        found = await self._post("/generate", body)
        assert found["meta_info"]["completion_tokens"] == len(found["output_ids"]) > 0

    async def stream(self, number: int, body: dict[str, Any]) -> None:
        last = [row async for row in self._rows(body)][-2:]
        assert loads(last[0])["meta_info"]["finish_reason"] is not None and last[1] == "[DONE]"

    async def abort(self, number: int, body: dict[str, Any]) -> None:
        async for row in self._rows(_long(body) | {"rid": f"abort-{number}"}):
            await self._post("/abort_request", {"rid": f"abort-{number}"})
            if row != "[DONE]" and loads(row)["meta_info"]["finish_reason"] is not None:
                assert loads(row)["meta_info"]["finish_reason"]["type"] == "abort"

    async def disconnect(self, number: int, body: dict[str, Any]) -> None:
        rows = self._rows(_long(body))
        await anext(rows)
        await rows.aclose()

    async def session(self, number: int, body: dict[str, Any]) -> None:
        name = await self._post("/open_session", {"capacity_of_str_len": 10_000, "streaming": True})
        for _ in range(2):
            await self._post("/generate", body | {"session_params": {"id": name}})
        await self._post("/close_session", {"session_id": name})

    async def slow(self, number: int, body: dict[str, Any]) -> None:
        async for _ in self._rows(body):
            await asyncio.sleep(0.02)

    async def refused(self, number: int, body: dict[str, Any]) -> None:
        answer = await self.http.post("/generate", json=body | {"input_ids": [1]})
        assert answer.status_code == 400

    async def _post(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - as the server answers
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def _rows(self, body: dict[str, Any]) -> Any:  # noqa: ANN401 - an asynchronous generator
        async with self.http.stream("POST", "/generate", json=body | {"stream": True}) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line:
                    yield line.removeprefix("data: ")


def _long(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"sampling_params": {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 0}}


def soaked(requests: int) -> list[Metric]:
    """After `requests` requests every page is free again, and the server's memory grew by little since it had answered
    the first fifth of them."""
    with server() as (url, pid):
        done, sizes, pages = asyncio.run(_soak(url, pid, requests))
    grown = sizes[1] / sizes[0] - 1
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(done.items()))
    note = f"{sizes[0] / 2**20:,.0f} MiB, then {sizes[1] / 2**20:,.0f} MiB; {kinds}"
    size = of(f"soak_of_{requests}_memory_growth", [grown], MOST_GROWTH, 0.0, "lower", note)
    held = pages["pages"] - pages["free"]
    name = f"soak_of_{requests}_pages_held"
    freed = red(name, 0, f"{held} pages were not freed") if held else of(name, [0.0], 0, 0.0, "lower")
    return [size if sizes[0] else unmeasured(size.name, MOST_GROWTH, "this system does not report it"), freed]


async def _soak(url: str, pid: int, requests: int) -> tuple[Counter[str], list[int], dict[str, int]]:
    """Requests by kind, resident bytes when warm and at the end, and the pages after the cache was flushed."""
    sizes, numbers = list[int](), iter(range(requests))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=SOAKING)
    async with httpx.AsyncClient(base_url=url, timeout=SECONDS, limits=limits, trust_env=False) as http:
        soak = Soak(http, list(islice(questions(), 64)))

        async def client() -> None:
            for number in numbers:
                await soak.one(number)
                if number == int(requests * WARM):
                    sizes.append(resident(pid))

        await asyncio.gather(*(client() for _ in range(SOAKING)))
        while (await http.post("/flush_cache")).status_code != 200:  # the last ones that left are still aborted
            await asyncio.sleep(0.1)
        sizes.append(resident(pid))
        info = (await http.get("/server_info")).json()
    return soak.done, sizes, info["internal_states"][0]["kv_pages"]


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 where /proc does not say."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024
