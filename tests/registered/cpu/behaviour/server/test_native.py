"""SGLang's native endpoints, with requests as SGLang's own clients write them."""

from __future__ import annotations

import gc
import json
from http.client import HTTPResponse
from queue import Queue
from threading import Event

import pytest

from specmatrix.engine.core.schedule.grammar import Constraint
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.served import MODEL, QUESTION, RunningServer, until
from tests.support.tables import table

GREEDY = {"temperature": 0, "max_new_tokens": 40}
# What SGLang's frontend language sends with each call.
FRONTEND = {"skip_special_tokens": True, "spaces_between_special_tokens": True, "n": 1, "stop": [], "top_k": -1}
# Long enough to be aborted.
LONG = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}


def lines(text: str) -> list[str]:
    """The data of server-sent events."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def test_an_answer_has_the_text_the_ids_and_the_identities_of_sglang_33518(server: RunningServer):
    found = server.generate(text=QUESTION, sampling_params={**FRONTEND, **GREEDY})
    info, ids = found["meta_info"], found["output_ids"]
    assert found["text"] == " Now: Tom has 12+15=<<12+15=27>>27 apples.\n#### 27"
    assert info["finish_reason"] == {"type": "stop", "matched": ids[-1]}
    assert (info["completion_tokens"], info["prompt_tokens"]) == (len(ids), len(server.llm.tokenizer.encode(QUESTION)))
    rounds, drafts = info["spec_verify_ct"], info["spec_num_proposed_drafts"]
    assert info["spec_accept_length"] == len(ids) / rounds and drafts == rounds * 3
    assert info["spec_accept_rate"] == info["spec_num_correct_drafts"] / drafts
    histogram = info["spec_correct_drafts_histogram"]
    assert sum(histogram) == rounds
    assert sum(i * count for i, count in enumerate(histogram)) == info["spec_num_correct_drafts"]


def test_token_ids_batches_completions_and_names(server: RunningServer):
    ids = server.llm.tokenizer.encode(QUESTION)
    alone = server.generate(input_ids=ids, sampling_params=GREEDY)
    batch = server.generate(input_ids=[ids, ids[:9]], sampling_params=[GREEDY, {**GREEDY, "n": 1}], rid=["one", "two"])
    assert batch[0]["output_ids"] == alone["output_ids"] and [a["meta_info"]["id"] for a in batch] == ["one", "two"]
    several = server.generate(
        text=QUESTION, sampling_params={"temperature": 0.9, "n": 3, "sampling_seed": 5, "max_new_tokens": 20}
    )
    (again,) = server.llm_outputs(QUESTION, SamplingParams(max_new_tokens=20, temperature=0.9, seed=7))
    assert several[2]["output_ids"] == list(again.output_ids)


def test_log_probabilities_of_prompt_and_output(server: RunningServer):
    asked = {"return_logprob": True, "logprob_start_len": 2, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    info = server.generate(text=QUESTION, sampling_params={**GREEDY, "max_new_tokens": 3}, **asked)["meta_info"]
    prompt = server.llm.tokenizer.encode(QUESTION)
    assert [token for _, token, _ in info["input_token_logprobs"]] == prompt[2:]
    assert "".join(text for *_, text in info["output_token_logprobs"]) == " Now:"
    assert all(value <= 0 for value, *_ in (*info["input_token_logprobs"], *info["output_token_logprobs"]))
    assert [len(top) for top in info["output_top_logprobs"]] == [2, 2, 2]
    assert info["output_top_logprobs"][0][0][:2] == info["output_token_logprobs"][0][:2]


def test_no_new_tokens_computes_the_prompt_only(server: RunningServer):
    found = server.generate(text=QUESTION, sampling_params={"max_new_tokens": 0}, return_logprob=True)
    assert (found["text"], found["output_ids"], found["meta_info"]["completion_tokens"]) == ("", [], 0)
    assert found["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert found["meta_info"]["output_token_logprobs"] == []


def test_a_stream_grows_to_the_whole_answer(server: RunningServer):
    # Long, as a busy machine sends the tokens of several rounds as one piece.
    greedy = {**GREEDY, "max_new_tokens": 400, "ignore_eos": True}
    whole = server.generate(text=QUESTION, sampling_params=greedy)
    *events, end = lines(server.post("/generate", text=QUESTION, sampling_params=greedy, stream=True).text)
    answers = [json.loads(event) for event in events]
    assert end == "[DONE]" and len(answers) > 2
    assert all(whole["text"].startswith(answer["text"]) for answer in answers)
    assert (answers[-1]["text"], answers[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert [answer["meta_info"]["finish_reason"] is None for answer in answers] == [True] * len(answers[1:]) + [False]
    batch = lines(server.post("/generate", text=[QUESTION, "A"], sampling_params=greedy, stream=True).text)
    last = {answer["index"]: answer["text"] for answer in map(json.loads, batch[:-1])}
    assert last[0] == whole["text"] and set(last) == {0, 1}


def test_an_abort_by_name_ends_a_stream_with_what_it_has(server: RunningServer):
    with server.client.stream(
        "POST", "/generate", json={"text": QUESTION, "sampling_params": LONG, "stream": True, "rid": "doomed"}
    ) as response:
        rows = (json.loads(row[6:]) for row in response.iter_lines() if row.startswith("data: {"))
        next(rows)
        assert server.post("/abort_request", rid="doomed").json() == {"aborted": 1}
        *_, last = rows
    assert last["meta_info"]["finish_reason"]["type"] == "abort" and last["output_ids"]
    assert server.post("/abort_request", rid="doomed").json() == {"aborted": 0}


def test_a_client_that_leaves_frees_its_pages_in_silence(server: RunningServer, caplog: pytest.LogCaptureFixture):
    body = json.dumps({"text": QUESTION, "sampling_params": LONG, "rid": "left"})
    for stream in (False, True):
        while not server.ended.empty():
            server.ended.get()
        connection = server.raw("/generate", body[:-1] + f', "stream": {str(stream).lower()}' + "}")
        if stream:
            connection.recv(1)
        else:
            while not server.call(server.engine.state)["pages"]["held"]:  # it runs
                pass
        connection.close()
        ticket = server.ended.get(timeout=60)
        assert ticket.output is not None and ticket.output.finish.reason == "abort", ticket.output
        assert server.held() == 0
    gc.collect()  # asyncio logs an unretrieved exception when its future is garbage-collected
    assert not caplog.text


def test_sessions_continue_by_the_names_of_requests(server: RunningServer):
    opened = server.post("/open_session", capacity_of_str_len=4000, session_id="tree")
    assert (opened.status_code, opened.json()) == (200, "tree")
    first = server.generate(text=QUESTION, sampling_params=GREEDY, session_params={"id": "tree"}, rid="turn")
    more = {"id": "tree", "rid": "turn", "offset": None, "replace": None}
    second = server.generate(text=" Next", sampling_params=GREEDY, session_params=more)
    grown = second["meta_info"]["prompt_tokens"]
    assert grown > first["meta_info"]["prompt_tokens"] + first["meta_info"]["completion_tokens"]
    wrong = server.post("/generate", text="x", session_params={"id": "tree", "rid": "never"})
    assert wrong.status_code == 400 and wrong.json()["error"]["message"] == (
        "session 'tree' has no request 'never'; allowed: the rid of one of its requests, or null for a fresh start"
    )
    taken = server.post("/open_session", capacity_of_str_len=4000, session_id="tree")
    assert taken.status_code == 400 and "is already open" in taken.text
    assert server.post("/close_session", session_id="tree").status_code == 200
    assert server.post("/close_session", session_id="tree").status_code == 400


def test_the_cache_is_flushed_when_nothing_runs(server: RunningServer):
    server.generate(text=QUESTION, sampling_params=GREEDY)
    assert server.call(server.engine.state)["pages"]["cached"] > 0
    cached = server.call(server.engine.state)["pages"]["cached"]
    assert server.client.post("/flush_cache").json() == {"freed_pages": cached}
    assert server.call(server.engine.state)["pages"]["cached"] == 0
    connection = server.raw("/generate", json.dumps({"text": QUESTION, "sampling_params": LONG, "stream": True}))
    connection.recv(1)
    busy = server.client.post("/flush_cache")
    connection.close()
    server.ended.get(timeout=60)
    assert busy.status_code == 400 and "cannot be flushed while requests are running or queued (1)" in busy.text


def test_memory_is_released_and_weights_are_loaded_over_http(server: RunningServer):
    own = server.client.get("/model_info").json()["model_path"]
    before = server.generate(text=QUESTION, sampling_params=GREEDY)
    assert server.post("/release_memory_occupation").status_code == 200
    assert server.client.get("/server_info").json()["speculative_num_draft_tokens"] == 4
    refused = server.post("/generate", text=QUESTION, sampling_params=GREEDY)
    assert refused.status_code == 503 and "the engine's memory is released; send /resume_memory" in refused.text
    assert server.client.get("/health_generate").status_code == 503
    again = server.post("/release_memory_occupation", tags=["kv_cache", "weights", "cuda_graph"])
    assert again.status_code == 400 and "released already; allowed next: resume_memory_occupation" in again.text
    assert server.post("/resume_memory_occupation", tags=None).status_code == 200
    after = server.generate(text=QUESTION, sampling_params=GREEDY)
    assert after["output_ids"] == before["output_ids"]
    assert after["meta_info"]["spec_verify_ct"] == before["meta_info"]["spec_verify_ct"]
    found = server.post("/update_weights_from_disk", model_path=own).json()
    assert found["success"] is True and server.client.get("/model_info").json()["model_path"] == own
    assert server.generate(text=QUESTION, sampling_params=GREEDY)["output_ids"] == before["output_ids"]


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/resume_memory_occupation", {}, "the engine's memory is not released"),
        ("/release_memory_occupation", {"tags": ["weights"]}, "allowed: all of kv_cache, weights, cuda_graph together"),
        ("/update_weights_from_disk", {"model_path": "/nowhere"}, "/nowhere"),
        ("/update_weights_from_disk", {"model_path": "a" * 999}, "aaa"),
        ("/update_weights_from_disk", {"model_path": "a\0b"}, "'a\\\\x00b'"),
        ("/update_weights_from_disk", {"model_path": "x", "abort_all_requests": True}, "abort_all_requests"),
    ],
)
def test_a_renewal_that_cannot_be_is_refused_and_the_engine_goes_on(server: RunningServer, path, body, sentence):
    found = server.post(path, **body)
    assert found.status_code == 400 and sentence in found.text
    assert server.client.get("/health_generate").status_code == 200


def test_the_server_says_what_runs(server: RunningServer):
    info = server.client.get("/server_info").json()
    assert info["speculative_algorithm"] == "EAGLE3" and info["page_size"] == 4 and info["enable_mixed_chunk"] is False
    shape = [info[f"speculative_{name}"] for name in ("num_steps", "eagle_topk", "num_draft_tokens")]
    assert shape == [3, 1, 4] and info["internal_states"][0]["kv_pages"]["pages"] == 2048
    model = server.client.get("/get_model_info").json()
    assert model["model_path"].endswith("llama-mini") and model == server.client.get("/model_info").json()
    for path in ("/health", "/health_generate", "/get_server_info"):
        assert server.client.get(path).status_code == 200


def test_metrics_count_requests_and_pages(server: RunningServer):
    def read(name: str) -> float:
        rows = [row for row in server.client.get("/metrics").text.splitlines() if row.startswith(name)]
        return float(rows[0].split()[-1])

    tokens, requests = "sglang:generation_tokens_total", "sglang:num_requests_total"
    before = read(tokens), read(requests)
    found = server.generate(text=QUESTION, sampling_params=GREEDY)
    assert read(tokens) == before[0] + found["meta_info"]["completion_tokens"]
    assert read(requests) == before[1] + 1
    assert read("specmatrix:kv_pages") == 2048 and read("sglang:num_used_tokens") == 0
    assert read('specmatrix:engine_events_total{event="spec.drafted"}') == server.llm.counters["spec.drafted"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        *table(__file__),
        ({"input_ids": [1] * 9000}, "prompt (9000) plus max_new_tokens (128) is 9128 tokens; allowed: at most the"),
    ],
)
def test_a_wrong_body_is_one_sentence(server: RunningServer, body: dict[str, object], message: str):
    response = server.post("/generate", **body)
    text = response.json()["error"]["message"]
    assert response.status_code == 400 and text.startswith(message) and "\n" not in text
    assert server.held() == 0


def test_an_abort_of_nothing_is_refused(server: RunningServer):
    nothing = server.post("/abort_request")
    assert nothing.json() == {"error": {"message": "rid and abort_all: one of them must be given"}}


def test_slow_grammars_delay_no_other_request_and_those_of_clients_that_left_are_not_compiled(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
):
    begun, may_end, compile_ = Queue[str](), Event(), server.llm.grammars.compile

    def slow(constraint: Constraint, quick: bool) -> object:
        if not constraint.text.startswith("late"):
            return compile_(constraint, quick)
        if quick:
            return None
        begun.put(constraint.text)
        assert may_end.wait(20)
        return compile_(constraint, quick)

    def asked(number: int) -> str:
        return json.dumps({"text": QUESTION, "sampling_params": {"regex": f"late{number}", "temperature": 0}})

    monkeypatch.setattr(server.llm.grammars, "compile", slow)
    tasks = server.server.server_state.tasks
    others = len(tasks)
    first = [server.raw("/generate", asked(number)) for number in range(4)]
    assert {begun.get(timeout=20) for _ in first} == {f"late{number}" for number in range(4)}
    left = [server.raw("/generate", asked(number)) for number in (4, 5)]
    body = {"model": MODEL, "prompt": QUESTION}
    left += [server.raw("/v1/completions", json.dumps({**body, "regex": f"late{number}"})) for number in (6, 7)]
    until(lambda: len(tasks) == others + 8)
    small = server.generate(text=QUESTION, sampling_params={"regex": "small", "temperature": 0})
    assert small["text"] == "small" and begun.empty()
    for connection in left:
        connection.close()
    until(lambda: len(tasks) == others + 4)
    may_end.set()
    for number, connection in enumerate(first):
        with connection, HTTPResponse(connection) as answer:
            answer.begin()
            assert json.loads(answer.read())["text"] == f"late{number}"
    last = server.generate(text=QUESTION, sampling_params={"regex": "late8", "temperature": 0})
    assert last["text"] == "late8" and "late8" in begun.queue
    assert not {f"late{number}" for number in range(4, 8)} & {*begun.queue}
