"""Invalid values: a call works or is refused in one sentence, and other requests are not affected."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.build import known_facts
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.core.schedule.session import SessionParams
from specmatrix.errors import ConfigError, RequestError


class Unprintable:
    def __repr__(self) -> str:
        raise OSError("no text")


def in_itself() -> list[object]:
    found: list[object] = []
    found.append(found)
    return found


VALUES: dict[str, object] = {
    "None": None, "true": True, "0": 0, "-1": -1, "1.5": 1.5, "nan": math.nan, "inf": math.inf, "-inf": -math.inf,
    "2**63": 2**63, "10**400": 10**400, "-10**400": -(10**400), "10**5000": 10**5000, "complex": 1j,
    "empty": "", "surrogate": "a\ud800b", "null": "\0", "long": "x" * 20_000, "bytes": b"ab",
    "bytearray": bytearray(b"a"), "memoryview": memoryview(b"ab"), "dict": {"a": 1}, "set": {1, 2}, "range": range(3),
    "deque": deque([1, 2]), "generator": (number for number in range(2)), "function": len, "class": SamplingParams,
    "object": Unprintable(),
    "[]": [], "[None]": [None], "[1.0]": [1.0], "[true]": [True], "[10**400]": [10**400], "[[1]]": [[1]],
    "[surrogate]": ["b\udfff"], "in itself": in_itself(), "array": np.array([1, 2]), "no array": np.array([]),
    "int64": np.int64(2), "float32": np.float32(0.5), "str_": np.str_("a"), "tensor": torch.tensor([1, 2]),
    "params": SamplingParams(), "session": SessionParams("s"),
}  # fmt: skip
# Every kind of value once; the others are near to one of these.
OFTEN = {
    "None", "true", "-1", "1.5", "nan", "2**63", "10**5000", "surrogate", "long", "bytes", "dict", "range", "function",
    "object", "[None]", "[10**400]", "in itself", "array", "str_", "params", "session",
}  # fmt: skip
EACH = [
    pytest.param(value, id=name, marks=() if name in OFTEN else pytest.mark.nightly) for name, value in VALUES.items()
]
SHORT = SamplingParams(max_new_tokens=1)


@pytest.fixture(scope="module")
def llm(zoo: Callable[[str], Path]) -> LLM:
    return LLM(
        EngineConfig(str(zoo("llama-mini")), enable_streaming_session=True, max_running_requests=4, context_length=96)
    )


def calls(llm: LLM, value: Any) -> Iterator[Callable[[], object]]:  # noqa: ANN401 - any at all
    """Every public call, with the value as each of its arguments."""
    yield lambda: llm.generate(value, SHORT)
    yield lambda: llm.generate([value], SHORT)
    yield lambda: llm.generate(["a", value], SHORT)
    yield lambda: llm.generate(["a"], value)
    yield lambda: llm.generate(["a"], [value])
    yield lambda: llm.generate(["a"], SHORT, value)
    yield lambda: llm.generate(["a"], SHORT, [value])
    yield lambda: list(llm.stream(value, SHORT))
    yield lambda: list(llm.stream("a", value))
    yield lambda: list(llm.stream("a", SHORT, value))
    yield lambda: llm.add(value, value, value)
    for call in (llm.abort, llm.take, llm.request, llm.close_session):
        yield lambda call=call: call(value)
    for field in fields(SamplingParams):
        yield lambda name=field.name: llm.generate(["a"], replace(SHORT, **{name: value}))
    for name in ("capacity_of_str_len", "session_id", "streaming", "timeout"):
        yield lambda name=name: llm.close_session(llm.open_session(**{"capacity_of_str_len": 90, name: value}))
    for streaming in (False, True):
        for field in fields(SessionParams):
            yield lambda streaming=streaming, name=field.name: turn(llm, streaming, name, value)


def turn(llm: LLM, streaming: bool, name: str, value: object) -> None:
    """A second turn of a session with the value in one field."""
    session = llm.open_session(200, streaming=streaming)
    try:
        first = llm.generate(["a"], SHORT, SessionParams(session))[0].meta_info["id"]
        rid = None if streaming else first
        llm.generate(["b"], SHORT, replace(SessionParams(session, rid=rid), **{name: value}))
    finally:
        llm.close_session(session)


@pytest.mark.parametrize("value", EACH)
def test_a_call_works_or_is_refused_in_one_sentence(llm: LLM, value: object):
    (alone,) = llm.generate(["Question: Eli had 75"], replace(SHORT, max_new_tokens=4))
    for call in calls(llm, value):
        beside = llm.add("Question: Eli had 75", replace(SHORT, max_new_tokens=4))
        try:
            call()
        except RequestError as refusal:
            assert "\n" not in str(refusal) and len(str(refusal)) < 600
            str(refusal).encode()
        while llm.step():
            pass
        assert llm.take(beside).output_ids == alone.output_ids
    assert llm.health == "ok" and not llm.sessions.sessions and not llm.loop.scheduler.ledger.accounts


@pytest.mark.parametrize("value", EACH)
def test_a_configuration_is_resolved_or_refused_in_one_sentence(zoo: Callable[[str], Path], value: object):
    draft = str(zoo("llama-mini-eagle3"))
    good = {
        "model_path": str(zoo("llama-mini")),
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": draft,
        "speculative_adaptive": True,
    }
    for field in fields(EngineConfig):
        try:
            config = EngineConfig(**{**good, field.name: value})
            resolve(config, known_facts(config, Path))
        except ConfigError as refusal:
            assert "\n" not in str(refusal) and len(str(refusal)) < 1000
            str(refusal).encode()
    for locate in (value, lambda name: value):
        with pytest.raises(ConfigError) as refused:
            known_facts(EngineConfig("model"), locate)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 600
