"""OpenAI's own client against the server, unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from specmatrix.engine.server.chat_template import ChatTemplate
from specmatrix.errors import ConfigError, RequestError
from tests.support.served import MODEL, QUESTION, RunningServer, served, templated
from tests.support.tables import table

ANSWER = " Now: Tom has 12+15=<<12+15=27>>27 apples.\n#### 27"
CHAT = "Tom has 12 apples and buys 15 more. How many apples does he have?"


def client_of(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with client_of(server) as one:
        yield one


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A client of a server whose checkpoint has a chat template."""
    with served(folder=templated(tmp_path_factory.mktemp("templated"))) as server, client_of(server) as one:
        yield one


def test_models(client: OpenAI):
    (model,) = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_completion_with_usage_and_speculation(client: OpenAI):
    found = client.completions.create(
        model=MODEL, prompt=QUESTION, max_tokens=40, temperature=0, extra_body={"return_spec_tokens_details": True}
    )
    assert (found.choices[0].text, found.choices[0].finish_reason) == (ANSWER, "stop")
    assert found.usage is not None and found.usage.total_tokens == found.usage.prompt_tokens + 31
    details = found.model_extra["sglext"]["spec_tokens_details"]
    assert details["spec_accept_length"] == 31 / details["spec_verify_ct"]


def test_several_prompts_and_completions(client: OpenAI):
    found = client.completions.create(model=MODEL, prompt=[QUESTION, QUESTION], n=2, seed=3, temperature=0.8)
    texts = [choice.text for choice in found.choices]
    assert texts[:2] == texts[2:] and [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert [choice.finish_reason for choice in found.choices] == ["length"] * 4
    assert found.usage is not None and found.usage.completion_tokens == 64


def test_a_streamed_completion(client: OpenAI):
    words = {"prompt": QUESTION, "max_tokens": 40, "temperature": 0, "logprobs": 1}
    stream = client.completions.create(model=MODEL, **words, stream=True, stream_options={"include_usage": True})
    *parts, end, usage = list(stream)
    text = "".join(part.choices[0].text for part in (*parts, end))
    assert text == ANSWER and len(parts) > 2 and end.choices[0].finish_reason == "stop"
    assert end.choices[0].logprobs is not None and len(end.choices[0].logprobs.tokens or ()) == 31
    assert not usage.choices and usage.usage is not None and usage.usage.completion_tokens == 31


def test_an_echo_scores_the_prompt(client: OpenAI, server: RunningServer):
    ids = server.llm.tokenizer.encode(QUESTION)
    found = client.completions.create(model=MODEL, prompt=ids, max_tokens=1, temperature=0, logprobs=1, echo=True)
    scores = found.choices[0].logprobs
    assert scores is not None and scores.token_logprobs is not None and scores.top_logprobs is not None
    assert len(scores.token_logprobs) == len(ids) + 1 and scores.token_logprobs[0] is None
    assert found.choices[0].text == QUESTION + " N"
    assert max(scores.top_logprobs[-1].values()) == scores.token_logprobs[-1]
    assert scores.text_offset is not None and scores.text_offset[-1] == len(QUESTION)


def test_a_stop_string_and_a_stream_that_never_shows_its_begin(client: OpenAI):
    words = {"model": MODEL, "prompt": QUESTION, "max_tokens": 40, "temperature": 0, "stop": ["12+15=27"]}
    whole = client.completions.create(**words)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (" Now: Tom has 12+15=<<", "stop")
    stream = client.completions.create(**words, stream=True)
    assert "".join(part.choices[0].text for part in stream) == whole.choices[0].text


def test_a_chat_with_the_checkpoints_template(chat: OpenAI):
    model = chat.models.list().data[0].id
    words = {"model": model, "messages": [{"role": "user", "content": CHAT}], "temperature": 0, "max_tokens": 40}
    found = chat.chat.completions.create(**words, logprobs=True, top_logprobs=2)
    assert (found.choices[0].message.role, found.choices[0].message.content) == ("assistant", ANSWER)
    scores = found.choices[0].logprobs
    assert scores is not None and scores.content is not None and len(scores.content[0].top_logprobs) == 2
    parts = [{"type": "text", "text": CHAT}]
    stream = chat.chat.completions.create(**(words | {"messages": [{"role": "user", "content": parts}]}), stream=True)
    first, *rest = list(stream)
    assert first.choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in rest) == ANSWER
    assert rest[-1].choices[0].finish_reason == "stop"


def test_a_chat_that_the_template_refuses(chat: OpenAI):
    model = chat.models.list().data[0].id
    with pytest.raises(BadRequestError, match=r"the chat template refuses the messages \(TemplateError: no critic\)"):
        chat.chat.completions.create(model=model, messages=[{"role": "critic", "content": "x"}])


def test_a_checkpoint_without_a_template_refuses_chats(client: OpenAI):
    with pytest.raises(BadRequestError, match=r"this checkpoint has no chat template .* use /v1/completions"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"prompt": []}, r"prompt is \[\]; allowed: a text, token ids, or a list of at most 4096 of one of these"),
        ({"prompt": "a", "best_of": 2}, r"best_of is 2; allowed: n, 1, as every completion is returned"),
        ({"prompt": "a", "suffix": "b"}, r'suffix is "b"; allowed: null'),
        ({"prompt": "a", "max_tokens": 0}, r"max_tokens is 0; allowed: an integer >= 1"),
    ],
)
def test_a_wrong_value_is_an_error_of_openais_shape(client: OpenAI, words: dict[str, object], message: str):
    with pytest.raises(BadRequestError, match=message) as caught:
        client.completions.create(model=MODEL, **words)
    assert (caught.value.type, caught.value.code, caught.value.param) == ("invalid_request_error", "400", None)


def test_another_model_and_another_path_are_not_found(client: OpenAI, server: RunningServer):
    with pytest.raises(NotFoundError, match="model 'gpt-9' is not served; allowed: 'llama-mini'"):
        client.completions.create(model="gpt-9", prompt="a")
    assert json.loads(server.client.get("/v1/x").text)["error"]["message"] == "GET /v1/x: Not Found"


def test_a_template_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": 3}', encoding="utf-8")
    with pytest.raises(RequestError, match="no chat template"):
        ChatTemplate(tmp_path).render([])
    (tmp_path / "chat_template.jinja").write_text("{{ messages", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the chat template of .* cannot be read"):
        ChatTemplate(tmp_path)


SCHEMA = {
    "type": "object",
    "properties": {"apples": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["apples"],
    "additionalProperties": False,
}
FORMATS = {
    "json_schema": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}},
    "json_object": {"type": "json_object"},
    "structural_tag": {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}},
}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_response_format_is_kept(chat: OpenAI, kind: str):
    messages = [{"role": "user", "content": CHAT}]
    blanks = {"bad_words_ids": [[199], [200], [222]]}  # JSON allows any number of tabs, newlines and spaces
    found = chat.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_tokens=60, response_format=FORMATS[kind], extra_body=blanks
    )
    text, finish = found.choices[0].message.content, found.choices[0].finish_reason
    assert text.startswith("{")
    if kind != "json_object":
        jsonschema.validate(json.loads(text), SCHEMA)
        assert finish == "stop"


@pytest.mark.parametrize(("why", "wrong"), table(__file__).items())
def test_a_wrong_format_is_refused_with_the_members_that_are_due(client, why, wrong):
    with pytest.raises(BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=QUESTION, extra_body=wrong)
    assert why in refused.value.message


def test_grammars_of_sglang_hold_for_each_completion_and_streams(client: OpenAI):
    stream = client.completions.create(
        model=MODEL, prompt=QUESTION, stream=True, n=2, seed=4, extra_body={"regex": r" [0-9]{2} apples\."}
    )
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert all(re.fullmatch(r" [0-9]{2} apples\.", text) for text in texts.values())


def test_a_request_of_too_many_grammars_is_refused(server: RunningServer):
    params = [{"regex": f"a{number}"} for number in range(17)]
    answer = server.post("/generate", text=[QUESTION] * 17, sampling_params=params)
    assert answer.status_code == 400 and "the request has 17 grammars; allowed: at most 16" in answer.text
