"""Chat templates are programs of other people: they end in time and within memory, and the server goes on."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from specmatrix.engine.server import limits
from specmatrix.engine.server.chat_template import ChatTemplate
from specmatrix.engine.server.limits import Refused
from specmatrix.errors import ConfigError, RequestError
from tests.support.child_processes import children
from tests.support.served import served, templated

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATE = (
    "{% set c = messages[0].content %}{% if c == 'loop' %}" + LOOPS + "{% elif c == 'grow' %}{{ c * 4000000000 }}"
    "{% elif c == 'long' %}{{ c * 9000000 }}{% elif c == 'deep' %}{{ '%4000000000d' | format(1) }}"
    "{% else %}{{ c }}{% endif %}"
)


def template(folder: Path, text: str) -> ChatTemplate:
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    return ChatTemplate(folder)


def asked(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def test_a_template_that_never_ends_or_grows_refuses_its_messages_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = template(tmp_path, TEMPLATE)
    for content, words in (("grow", "MemoryError"), ("deep", "MemoryError"), ("long", "36000000 characters of them")):
        with pytest.raises(RequestError, match=words):
            one.render(asked(content))
        assert one.render(asked("x")) == "x"
    monkeypatch.setattr(limits, "TEMPLATE_SECONDS", 0.2)
    with pytest.raises(RequestError, match=r"the chat template refuses the messages \(no answer within 0\.2 s\)"):
        one.render(asked("loop"))
    monkeypatch.undo()
    assert one.render(asked("x")) == "x"


def test_another_client_waits_for_a_slow_template_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = template(tmp_path, TEMPLATE)
    monkeypatch.setattr(limits, "TEMPLATE_SECONDS", 0.5)
    refused = list[BaseException]()

    def render() -> None:
        try:
            one.render(asked("loop"))
        except RequestError as error:
            refused.append(error)

    several = [Thread(target=render) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join(60)
    assert len(refused) == 4 and {type(error) for error in refused} == {Refused, RequestError}


@pytest.mark.parametrize("text", ["{{ 'a' * 4000000000 }}", "{{ 'a' | center(4000000000) }}"])
def test_a_constant_of_gigabytes_is_refused_where_it_is_used(tmp_path: Path, text: str):
    with pytest.raises(RequestError, match="MemoryError"):
        template(tmp_path, text).render(asked("x"))


def test_a_template_that_is_not_compiled_in_time_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "TEMPLATE_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"the chat template of .* cannot be read \(no answer within 0 s\)"):
        template(tmp_path, TEMPLATE)


def test_a_slow_template_holds_up_only_its_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before = children()
    with served(folder=templated(tmp_path, TEMPLATE)) as server:
        monkeypatch.setattr(limits, "TEMPLATE_SECONDS", 1.0)
        model, answers = server.client.get("/v1/models").json()["data"][0]["id"], list[int]()

        def chat() -> None:
            answers.append(server.post("/v1/chat/completions", model=model, messages=asked("loop")).status_code)

        slow = Thread(target=chat)
        slow.start()
        assert server.generate(text="a")["output_ids"] and not answers
        slow.join(60)
        assert answers == [400]
        assert server.post("/v1/chat/completions", model=model, messages=asked("x"), max_tokens=1).status_code == 200
    assert children() == before, "a server ends with what it started"
