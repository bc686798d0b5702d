"""What a server refuses by its limits, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import httpx
import pytest

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.step import StepPlan
from specmatrix.engine.server import app as application_module
from specmatrix.engine.server import limits
from specmatrix.engine.server.app import ServerOptions, application, bind, server
from specmatrix.errors import ConfigError, LedgerError
from tests.support.engines import CHECKPOINTS
from tests.support.served import MODEL, QUESTION, RunningServer, served

KEY = "s3cret"
LONG = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}
# The head of a request whose body does not come, with the first character of it.
HEAD = "POST /generate HTTP/1.1\r\nHost: [::1]\r\n{}Content-Length: 9\r\n\r\n{{"
STREAM = json.dumps({"text": QUESTION, "sampling_params": LONG, "stream": True})


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    """A server with a key and small limits."""
    options = ServerOptions(
        port=0, key=KEY, model=MODEL, max_queued_requests=1, max_connections=3, max_body_bytes=20000
    )
    with served(options, max_running_requests=1) as one:
        yield one


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (403, "permission_error"),
        (429, "rate_limit_error"),
        (503, "service_unavailable"),
        (413, "invalid_request_error"),
    ],
)
def test_an_error_has_openais_type_of_its_status(status: int, kind: str):
    assert limits.status_of(limits.Refused(status, "no")) == (status, kind)


def error(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize("header", [None, "Bearer no", KEY, f"Basic {KEY}", "Bearer", f"Bearer {KEY}x", "Bearer \xff"])
def test_a_missing_or_wrong_key_is_refused(strict: RunningServer, header: str | None):
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for path in ("/v1/models", "/server_info", "/openapi.json"):
        response = httpx.get(strict.url + path, headers=headers, trust_env=False)
        assert response.status_code == 401 and response.headers["WWW-Authenticate"] == "Bearer"
        assert error(response) == "the key is missing or wrong; send the header Authorization: Bearer KEY"


def test_the_right_key_is_accepted_and_probes_need_none(strict: RunningServer):
    assert strict.client.get("/v1/models").status_code == 200
    for path in ("/health", "/health_generate", "/metrics"):
        assert httpx.get(strict.url + path, trust_env=False).status_code == 200


def test_a_body_over_the_limit_is_refused(strict: RunningServer):
    response = strict.post("/generate", text="a" * 20_000)
    assert response.status_code == 413 and error(response).endswith("bytes; allowed: 20,000 (--max-body-bytes)")

    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 1000

    response = strict.client.post("/v1/completions", content=chunks())
    assert response.status_code == 413 and response.json()["error"]["code"] == 413
    assert error(response) == "the body has more than 20,000 bytes; allowed: 20,000 (--max-body-bytes)"


def test_a_body_that_does_not_come_is_refused(strict: RunningServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)
    with strict.connected(HEAD.format(f"Authorization: Bearer {KEY}\r\n")) as slow:
        assert b" 408 " in slow.recv(100)


def running(one: RunningServer, body: str = STREAM) -> Iterator[str]:
    """Start a streamed answer; its lines."""
    with one.client.stream("POST", "/generate", content=body, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status_code == 200
        yield from answer.iter_lines()


def test_a_full_queue_and_too_many_requests_are_refused_with_a_reason(strict: RunningServer):
    first, second = running(strict), running(strict)
    next(first)
    waiting = Thread(target=lambda: [*second])
    waiting.start()
    while strict.engine.load < 2:
        pass
    busy = strict.post("/generate", text=QUESTION)
    assert busy.status_code == 429 and busy.headers["Retry-After"] == "1"
    assert error(busy) == (
        "too many requests: 2 running or queued, 1 more asked for; allowed: 2 (max_running_requests + "
        "--max-queued-requests)"
    )
    assert strict.post("/v1/completions", model=MODEL, prompt="a").json()["error"]["type"] == "rate_limit_error"
    assert strict.post("/abort_request", abort_all=True).json() == {"aborted": 2}
    waiting.join(60)
    assert not waiting.is_alive()
    first.close()
    assert strict.held() == 0


def test_more_connections_than_allowed_are_refused(strict: RunningServer):
    held = [strict.connected(HEAD.format(f"Authorization: Bearer {KEY}\r\n")) for _ in range(3)]
    try:
        while (response := strict.client.get("/v1/models")).status_code == 200:
            pass
        assert response.status_code == 429 and error(response) == "too many requests: 3 being served; allowed: 3"
        assert strict.client.get("/health").status_code == 200
    finally:
        for connection in held:
            connection.close()
    while strict.client.get("/v1/models").status_code != 200:
        pass


def test_a_drain_ends_what_runs_and_accepts_nothing_new():
    with served() as one:
        one.post("/open_session", capacity_of_str_len=4000, session_id="kept", streaming=True)
        one.generate(text=QUESTION, session_params={"id": "kept"})
        rows = running(one, STREAM.replace("3000", "300"))
        next(rows)
        one.loop.call_soon_threadsafe(one.server.stop)
        *_, last, end = (row for row in rows if row)
        one.thread.join(60)
        assert not one.thread.is_alive() and end == "data: [DONE]"
        assert json.loads(last[6:])["meta_info"]["finish_reason"] == {"type": "length", "length": 300}
        with pytest.raises(httpx.ConnectError):
            httpx.get(one.url + "/health", trust_env=False)
        ledger = one.llm.loop.scheduler.ledger
        assert not ledger.counts.held and not ledger.accounts


def test_what_still_runs_when_the_time_is_over_is_aborted_with_an_answer(caplog: pytest.LogCaptureFixture):
    with served(ServerOptions(port=0, model=MODEL, drain_seconds=0)) as one, ThreadPoolExecutor(3) as clients:
        completion = {"model": MODEL, "prompt": QUESTION, "max_tokens": 3000, "ignore_eos": True}
        whole = clients.submit(one.post, "/generate", text=[QUESTION, "A"], sampling_params=LONG)
        chunks = clients.submit(one.post, "/v1/completions", stream=True, **completion)
        rows = running(one)
        next(rows)
        while one.engine.load < 4:
            pass
        one.stop()
        *_, last, end = filter(None, rows)
        assert json.loads(last[6:])["meta_info"]["finish_reason"]["type"] == "abort" and end == "data: [DONE]"
        assert [found["meta_info"]["finish_reason"]["type"] for found in whole.result().json()] == ["abort"] * 2
        *_, last, end = filter(None, chunks.result().text.splitlines())
        assert json.loads(last[6:])["choices"][0]["finish_reason"] == "abort" and end == "data: [DONE]"
        assert one.server.cut_off == 4 and not caplog.text


def test_a_client_that_neither_sends_nor_reads_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(application_module, "READ_SECONDS", 0.1)
    monkeypatch.setattr(limits, "BODY_SECONDS", 600)
    with served(ServerOptions(port=0, drain_seconds=0.1)) as one:
        with one.connected(HEAD.format("")), one.raw("/generate", STREAM) as deaf:
            deaf.recv(1)
            one.stop()
        assert one.server.cut_off == 1 and not caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_drains_and_a_second_stops_at_once(number: signal.Signals, capsys: pytest.CaptureFixture[str]):
    llm = LLM(EngineConfig(str(CHECKPOINTS / MODEL), max_total_tokens=4096, max_running_requests=2))
    options = ServerOptions(port=0)
    listening = bind(options)
    app, engine = application(llm, CHECKPOINTS / MODEL, options)
    one, seen = server(app, engine, options), []
    before = signal.getsignal(number)

    def client() -> None:
        url = "http://{}:{}/generate".format(*listening.getsockname()[:2])
        headers = {"Content-Type": "application/json"}
        with (
            httpx.Client(timeout=60, trust_env=False) as http,
            http.stream("POST", url, content=STREAM, headers=headers) as answer,
        ):
            rows = answer.iter_lines()
            next(rows)
            os.kill(os.getpid(), number)
            while not engine.stopping:
                pass
            os.kill(os.getpid(), number)
            try:
                seen.extend(rows)
            except httpx.HTTPError as cut:
                seen.append(type(cut).__name__)

    other = Thread(target=client)
    other.start()
    asyncio.run(one.serve(sockets=[listening]))
    other.join(60)
    assert one.force == number and signal.getsignal(number) is before
    assert "data: [DONE]" not in seen
    assert capsys.readouterr().err.startswith("draining 1 request; a second signal stops at once\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ServerOptions(port=70000), r"^--port is 70000; allowed: 0 to 65535$"),
        (ServerOptions(max_connections=0), r"^--max-connections is 0; allowed: 1 to 1000000$"),
        (ServerOptions(drain_seconds=float("nan")), r"^--drain-seconds is nan; allowed: 0 to 1000000$"),
        (ServerOptions(key="a b"), r"^--api-key has characters that a header cannot hold; allowed: printable ASCII"),
        (ServerOptions(key=""), r"^--api-key is empty; "),
    ],
)
def test_options_that_cannot_be_served(options: ServerOptions, message: str):
    with pytest.raises(ConfigError, match=message):
        options.check()


def test_an_address_that_is_taken_or_foreign(strict: RunningServer):
    port = int(strict.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"^cannot listen on '127\.0\.0\.1', port {port}: Address already in use$"):
        bind(ServerOptions(port=port))
    with pytest.raises(ConfigError, match=r"^cannot listen on 'no\.such\.host\.invalid', port 0: "):
        bind(ServerOptions(host="no.such.host.invalid", port=0))


def test_a_broken_engine_ends_its_requests_and_says_why():
    with served() as one:
        launch, steps = one.llm.loop.executor.launch, iter(range(4))

        def failing(plan: StepPlan) -> object:
            if next(steps, None) is None:
                raise LedgerError("two owners")
            return launch(plan)

        one.llm.loop.executor.launch = failing  # type: ignore[method-assign]
        cut = one.client.post("/generate", content=STREAM, headers={"Content-Type": "application/json"}).text
        assert "the engine broke: LedgerError: two owners" in cut and cut.endswith("data: [DONE]\n\n")
        health = one.client.get("/health")
        assert health.status_code == 503 and error(health).endswith("broken: LedgerError: two owners")
        later = one.post("/v1/completions", model=MODEL, prompt=QUESTION)
        assert (later.status_code, later.json()["error"]["type"]) == (500, "server_error")
        assert one.client.get("/metrics").status_code == 200
