"""Clients that mean harm: bodies made to be slow, connections that only wait, pages of other sites."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event, Thread, current_thread
from time import thread_time
from typing import Any, Final

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from specmatrix.engine.api import LLM
from specmatrix.engine.core.schedule.request import SamplingParams, readable
from specmatrix.engine.server import limits
from specmatrix.engine.server.app import ServerOptions
from specmatrix.engine.server.engine_thread import Submission, Ticket
from specmatrix.engine.server.limits import decoded
from specmatrix.engine.server.openai_bodies import CompletionBody
from specmatrix.engine.server.responses import built
from specmatrix.errors import RequestError
from tests.support.engines import engine
from tests.support.served import MODEL, QUESTION, RunningServer, served, templated, until

KEY: Final = "s3cret"
MAX_BODY: Final = 4 * 2**20 - 4096  # bytes of a body, and a little for its other members
ELEMENTS: Final = ("-1", "1", "1e99", '"a"', "{}", "[]", "[1]", "null", '{"a":[1]}', '{"role":"u","content":"a"}')
KINDS: Final = ("list", "lists", "map", "text", "deep", "number")
# Members that make the rest of a body right, so that the hostile one is reached.
RIGHT: Final = {
    "/generate": '"text":"a",',
    "/v1/completions": f'"model":"{MODEL}","prompt":"a",',
    "/v1/chat/completions": f'"model":"{MODEL}","messages":[{{"role":"user","content":"a"}}],',
    "/open_session": '"capacity_of_str_len":9,',
    "/update_weights_from_disk": '"model_path":"a",',
}
# What took longest, or most memory, of all combinations.
HEAVIEST: Final = (
    ("/generate", "sampling_params", "list", "{}"),
    ("/generate", "session_params", "list", '{"id":"a"}'),
    ("/generate", "sampling_params.logit_bias", "map", "1"),
    ("/v1/completions", "prompt", "list", "[]"),
    ("/v1/chat/completions", "messages", "list", '{"role":"u"}'),
)
DEEP: Final = b"[" * 9999
LOOP_SECONDS: Final = 0.5
GROWTH: Final = 200 * 2**10  # KiB


def repeated(element: str, size: int) -> str:
    return ",".join([element] * (size // (len(element) + 1)))


def hostile(kind: str, element: str, size: int) -> str:
    """A value of about so many bytes."""
    if kind == "map":
        return "{" + ",".join(f'"{i}":{element}' for i in range(size // (len(element) + 11))) + "}"
    if kind == "lists":
        return f"[{repeated(f'[{repeated(element, 999)}]', size)}]"
    deep = "[" * (size // 2) + element + "]" * (size // 2 - len(element))
    return {"list": f"[{repeated(element, size)}]", "text": json.dumps("a b" * (size // 3)), "deep": deep}.get(
        kind, "1" * size
    )


def members(server: RunningServer) -> list[tuple[str, str]]:
    """Path and member of each body in the OpenAPI description; one within another as `sampling_params.stop`."""
    found, described = [], server.client.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    for path, methods in described["paths"].items():
        if "requestBody" in methods.get("post", {}) and path != "/release_memory_occupation":
            reference = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            found += [(path, name) for name in (*schemas[reference.rpartition("/")[2]]["properties"], "x")]
    return found + [("/generate", f"sampling_params.{name}") for name in schemas["NativeSampling"]["properties"]]


def peak() -> int:
    """The largest resident memory since the last call, in KiB."""
    rows = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return int(next(row for row in rows if row.startswith("VmHWM")).split()[1])


async def loop_seconds() -> float:
    return thread_time()


@pytest.mark.parametrize("count", [12, pytest.param(1500, marks=pytest.mark.nightly)])
def test_no_body_holds_up_the_event_loop_or_takes_much_memory(server: RunningServer, count: int):
    chosen, all_members = random.Random(40), members(server)
    assert len(all_members) > 120
    drawn = [(*chosen.choice(all_members), chosen.choice(KINDS), chosen.choice(ELEMENTS)) for _ in range(count)]
    for case in (*HEAVIEST, *drawn):
        path, member, kind, element = case
        *outer, name = member.split(".")
        inner = f'"{name}":{hostile(kind, element, MAX_BODY)}'
        body = ("{" + RIGHT.get(path, "") + (f'"{outer[0]}":{{{inner}}}' if outer else inner) + "}").encode()
        said = f"{path} {member}: {kind} of {element}"
        del inner
        peak()
        held, before = peak(), server.call(loop_seconds)
        answer = server.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert server.call(loop_seconds) - before < LOOP_SECONDS, said
        assert peak() - held < GROWTH, said
        assert answer.status_code in (200, 400, 404, 429) and len(answer.content) < 3000, (said, answer.text[:300])


def test_many_lists_start_no_collections():
    started, enabled = list[str](), gc.isenabled()
    gc.enable()
    gc.callbacks.append(lambda phase, _: started.append(phase))
    try:
        with pytest.raises(RequestError, match=r"prompt\[399999\] is wrong"):
            decoded(b'{"prompt":[' + b"[]," * 399_999 + b"{}]}", CompletionBody)
        assert len(started) <= 4 and gc.isenabled()
    finally:
        gc.callbacks.pop()
        if not enabled:
            gc.disable()


LARGEST: Final[dict[str, Any]] = {
    "stop": [f"{i:03}" + "a" * (limits.STOP_CHARACTERS - 3) for i in range(limits.STOPS)],
    "stop_token_ids": [1] * limits.STOPS,
    "bad_words_ids": [[i] * limits.BAD_WORD_TOKENS for i in range(limits.BAD_WORDS)],
    "logit_bias": {str(i): 0.5 for i in range(768)},
    "allowed_token_ids": [*range(768)],
}


def test_the_largest_allowed_request_is_served_and_one_more_of_anything_is_refused(server: RunningServer):
    sampling = {"max_new_tokens": 8, "min_new_tokens": 4, **LARGEST}
    assert server.generate(text="a", sampling_params=sampling, return_logprob=True, top_logprobs_num=768)["output_ids"]
    for name, value in LARGEST.items():
        more = {str(i): 0.5 for i in range(limits.BIASES + 1)} if isinstance(value, dict) else [*value, value[0]]
        found = server.post("/generate", text="a", sampling_params={name: more})
        assert found.status_code == 400 and name in found.text and "allowed" in found.text


def median_step(llm: LLM, **asked: object) -> float:
    """CPU time of the steps of one request, in seconds, with the reading of a stream."""
    rid, seconds, busy = llm.add("a", SamplingParams(max_new_tokens=60, ignore_eos=True, **asked)), [], True  # type: ignore[arg-type]
    while busy:
        start = thread_time()
        busy = llm.step()
        readable(llm.request(rid))
        seconds.append(thread_time() - start)
    llm.take(rid)
    return median(seconds)


def test_a_step_of_the_largest_request_takes_at_most_ten_times_that_of_an_ordinary_one():
    llm = engine("EAGLE3", 3)
    largest = {**LARGEST, "logit_bias": {int(key): bias for key, bias in LARGEST["logit_bias"].items()}}
    ordinary = [median_step(llm) for _ in range(3)][-1]
    assert median_step(llm, **largest, top_logprobs_num=768, min_new_tokens=50) < 10 * ordinary


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"text": "a", "sampling_params": {"stop": "a" * 257}}, "stop is 'aa"),
        ("/generate", {"text": "a", "sampling_params": {"bad_words_ids": [[1] * 33]}}, "bad_words_ids[0] is [1, "),
        ("/generate", {"text": "a", "sampling_params": {"n": 129}}, "n is 129; allowed: an integer <= 128"),
        ("/generate", {"text": ["a"] * 4097}, "text is ['a', "),
        ("/generate", {"input_ids": [[1]] * 4097}, "input_ids is a list of 4097 values; allowed: a text"),
        ("/generate", {"input_ids": [[1], 1]}, "input_ids is a list of 2 values; allowed: a text"),
        ("/generate", {"input_ids": [1] * 80_000}, "the prompt has 80000 tokens; allowed: at most 36864, the context"),
        ("/generate", {"text": "a" * 80_000}, "the prompt has 80000 characters; allowed: at most 36864"),
        ("/v1/completions", {"model": MODEL, "prompt": ["a"] * 4096, "n": 128}, "524288 more asked for; allowed: 132"),
        ("/generate", {"text": ["a"] * 4096, "sampling_params": {"n": 128}}, "524288 more asked for; allowed: 132"),
        (
            "/generate",
            {"input_ids": [5] * 2000, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 768},
            "the request asks for 1636432 log-probabilities",
        ),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "u"}] * 4097}, "messages is [{"),
        ("/generate", {"text": "a", "unknown" * 999: 1}, "unknownunknown"),
    ],
)
def test_too_much_is_refused_with_a_number(server: RunningServer, path: str, body: dict[str, object], words: str):
    before = server.call(loop_seconds)
    found = server.post(path, **body)
    assert server.call(loop_seconds) - before < LOOP_SECONDS
    text = found.json()["error"]["message"]
    assert found.status_code in (400, 429) and words in text and "allowed: " in text and len(text) < 400


def test_tokens_and_texts_are_made_beside_loop_and_engine(server: RunningServer, monkeypatch: pytest.MonkeyPatch):
    threads = dict[str, str]()

    def spied(name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda given: (threads.update({name: current_thread().name}), call(given))[1]

    monkeypatch.setattr(server.llm.tokenizer, "encode", spied("encode", server.llm.tokenizer.encode))
    monkeypatch.setattr(server.engine, "token_text", spied("token_text", server.engine.token_text))
    body = {"model": MODEL, "prompt": QUESTION, "max_tokens": 2, "logprobs": 1}
    for more in ({}, {"stream": True}):
        threads.clear()
        assert server.post("/v1/completions", **body, **more).status_code == 200
        assert set(threads) == {"encode", "token_text"}
        assert not {"engine", server.thread.name} & {*threads.values()}


def test_answers_are_built_one_at_a_time():
    """Four of the largest would keep the event loop waiting in turns."""
    building, most = [0], [0]

    def build(answer: int) -> int:
        building[0] += 1
        most[0] = max(most[0], building[0])
        Event().wait(0.02)  # long enough for another to begin
        building[0] -= 1
        return answer

    async def all_at_once() -> list[int]:
        return await asyncio.gather(*(built(partial(build, answer)) for answer in range(4)))

    assert asyncio.run(all_at_once()) == [0, 1, 2, 3] and most == [1]


def test_many_health_generates_are_one_request_after_another(server: RunningServer, monkeypatch: pytest.MonkeyPatch):
    submit, loads = server.engine.submit, list[int]()

    async def spied(asked: Sequence[Submission]) -> list[Ticket]:
        loads.append(server.engine.load)
        return await submit(asked)

    monkeypatch.setattr(server.engine, "submit", spied)
    with ThreadPoolExecutor(8) as clients:
        answers = clients.map(lambda _: server.client.get("/health_generate").status_code, range(8))
        assert [*answers] == [200] * 8 and loads == [0] * 8


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"text":' + DEEP, "text[0] is wrong; allowed: a string"),
        (b'{"lora_path":' + DEEP, "the body has too many lists and objects within each other"),
        *((content, "the body is not JSON: ") for content in (b'{"text":"\xff"}', b"{")),
    ],
)
def test_a_body_that_is_no_json_is_refused(server: RunningServer, content: bytes, why: str):
    found = server.client.post("/generate", content=content, headers={"Content-Type": "application/json"})
    assert found.status_code == 400 and found.json()["error"]["message"].startswith(why)


def test_a_body_of_another_type_is_refused(server: RunningServer):
    found = server.client.post("/generate", content=b'{"text":"a"}', headers={"Content-Type": "text/plain"})
    assert found.status_code == 400 and "Content-Type is 'text/plain'; allowed: application/json" in found.text


@pytest.fixture(scope="module")
def keyed() -> Iterator[RunningServer]:
    """A server with a key that accepts twelve connections: four with requests, two to each open path, two idle."""
    assert len(limits.OPEN) * limits.OPEN_REQUESTS < limits.SPARE_CONNECTIONS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "OPEN_REQUESTS", 2)
        patch.setattr(limits, "SPARE_CONNECTIONS", 8)
        with served(ServerOptions(port=0, key=KEY, model=MODEL, max_connections=4)) as one:
            yield one


HEAD: Final = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{"
WAITING: Final = {
    "idle": "",
    "slow head": "GET /health HT",
    "slow body": HEAD.format("/generate"),
    **{path: HEAD.format(path) for path in limits.OPEN},
}


@pytest.mark.parametrize("sent", WAITING.values(), ids=WAITING)
def test_clients_without_a_key_that_only_wait_never_lock_out_one_that_has_it(keyed: RunningServer, sent: str):
    body = json.dumps({"text": QUESTION})
    head = f"/generate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}"
    state = keyed.server.server_state
    until(lambda: not any(one.admitted for one in state.connections.copy()))  # of the flood before
    with ExitStack() as held, keyed.connected(f"POST {head}\r\n\r\n{body[0]}") as begun:
        until(lambda: any(one.admitted for one in state.connections.copy()))
        for _ in range(100):
            held.enter_context(keyed.connected(sent))
        for _ in range(3):
            with httpx.Client(base_url=keyed.url, headers=keyed.client.headers, trust_env=False) as fresh:
                assert fresh.post("/generate", json={"text": QUESTION}).status_code == 200
                assert fresh.get("/health").status_code == 200
        assert httpx.get(keyed.url + "/health", trust_env=False).status_code == 200
        assert len(state.connections) <= 12
        begun.sendall(body[1:].encode())
        assert begun.recv(9999).startswith(b"HTTP/1.1 200")


def test_a_head_that_does_not_come_ends_the_connection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.05)
    with served() as one:
        for sent in ("", "GET /health HTTP/1.1\r\nHost", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET"):
            with one.connected(sent) as slow:
                while slow.recv(4096):
                    pass


def test_an_answer_that_is_not_read_ends_the_connection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "READ_SECONDS", 0.05)
    with served() as one:
        request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with one.connected(request) as deaf, pytest.raises(ConnectionError):
            while True:
                deaf.sendall(request.encode() * 999)
        assert one.client.get("/health").status_code == 200


CHUNKED: Final = "POST {} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("path", ["/generate", "/metrics"])
def test_chunks_of_a_byte_are_not_read_from_a_client_without_a_key(keyed: RunningServer, path: str):
    before = keyed.call(loop_seconds)
    with keyed.connected(CHUNKED.format(path)) as flood:
        for _ in range(50):
            flood.sendall(b"1\r\na\r\n" * 10_000)
        assert keyed.call(loop_seconds) - before < LOOP_SECONDS
        flood.sendall(b"0\r\n\r\n")
        assert flood.recv(9999).startswith(b"HTTP/1.1 4")
        assert not flood.recv(9999)


def test_chunks_of_a_byte_are_read_in_short_turns(server: RunningServer):
    sent = CHUNKED.format("/flush_cache") + "1\r\n \r\n" * 40_000 + "0\r\n\r\n"
    turns = list[float]()

    async def measured() -> None:
        tasks = server.server.server_state.tasks
        while not tasks:
            await asyncio.sleep(0)
        while tasks:
            turns.append(-thread_time())
            await asyncio.sleep(0)
            turns[-1] += thread_time()

    waiting = Thread(target=server.call, args=(measured,))
    waiting.start()
    with server.connected(sent) as one:
        assert one.recv(100).startswith(b"HTTP/1.1 200")
    waiting.join(60)
    assert max(turns) < LOOP_SECONDS / 5, sorted(turns)[-5:]


def test_a_client_that_leaves_within_its_body_is_no_failure(keyed: RunningServer, caplog: pytest.LogCaptureFixture):
    leaving = keyed.connected(HEAD.format(f"/generate HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nX:"))
    tasks = keyed.server.server_state.tasks
    until(lambda: tasks)
    leaving.close()
    until(lambda: not tasks)
    assert keyed.client.get("/v1/models").status_code == 200 and not caplog.text


def test_a_failure_of_any_kind_gives_back_its_slot():
    async def broken(*_: object) -> None:
        raise MemoryError

    async def main() -> None:
        one, answers = limits.Limits(broken, None, "0.0.0.0", 100, 1), asyncio.Queue[Any]()
        for path in ("/generate", "/health"):
            for _ in range(limits.OPEN_REQUESTS + 1):
                with pytest.raises(MemoryError):
                    await one({"type": "http", "path": path, "method": "POST", "headers": []}, broken, answers.put)
                assert answers.empty()

    asyncio.run(main())


def test_a_probe_that_is_not_answered_ends(server: RunningServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "OPEN_SECONDS", 0.0)
    found = server.client.get("/health_generate")
    assert found.status_code == 503 and "no answer within 0 s" in found.text
    monkeypatch.undo()
    assert server.client.get("/health_generate").status_code == 200 and server.held() == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:30000"}, 403),
        ({"Host": "localhost:30000"}, 200),
        ({"Host": "[::1]:30000"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1", "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_pages_of_other_sites_are_refused(server: RunningServer, headers: dict[str, str], status: int):
    found = server.client.post("/flush_cache", headers=headers)
    assert found.status_code == status
    if status == 403:
        assert next(iter(headers.values())).partition(":")[0] in found.text or "Origin is" in found.text
    assert server.client.get("/health", headers=headers).status_code == (status if "Host" in headers else 200)


def test_a_server_for_other_machines_answers_to_any_host():
    seen = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])

    async def silent(*_: object) -> None:
        raise AssertionError

    scope = {"type": "http", "path": "/health", "method": "GET", "headers": [(b"host", b"any.example")]}
    asyncio.run(limits.Limits(app, None, "0.0.0.0", 100, 1)(scope, silent, silent))
    assert seen == ["/health"]


def test_a_token_that_makes_the_tokenizer_panic_fails_its_request_alone(tmp_path: Path):
    folder = templated(tmp_path)
    raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    raw["decoder"] = {"type": "Strip", "content": "#", "start": 0, "stop": 5}  # panics at a token like ####
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    sampling = {"temperature": 0, "max_new_tokens": 40}
    with served(folder=folder) as one:
        for more in ({}, {"stream": True}, {"sampling_params": {**sampling, "stop": ["never"]}}):
            found = one.post("/generate", **{"text": QUESTION, "sampling_params": sampling, **more})
            assert "the tokenizer cannot decode the tokens (PanicException: " in found.text, found.text
            assert one.generate(text=QUESTION, sampling_params={**sampling, "max_new_tokens": 3})["output_ids"]
        aborted = {"text": QUESTION, "sampling_params": {**sampling, "ignore_eos": True, "max_new_tokens": 3000}}
        with one.client.stream("POST", "/generate", json={**aborted, "stream": True}) as answer:
            next(answer.iter_lines())
        assert one.ended.get(timeout=60) and one.generate(text="a")["output_ids"] and one.held() == 0
