"""ONNX Runtime GenAI as a subject: its converter, and its engine on scripted generators. The goldens have the rest."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.onnxruntime_genai import engine as engines
from specmatrix.matrix.subjects.onnxruntime_genai.engine import CONFIG, GenaiEngine, converted
from specmatrix.matrix.subjects.onnxruntime_genai.subject import GenaiSubject
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, Unsupported
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import resolve_path

PLAIN = RequestSpec("q", "Question:", 9)
LLAMA = resolve_path("llama-mini")
WINDOWS = {"sliding_window": {"window_size": 48}}


class Generator:
    """Counts up from the last token, and drafts two tokens a round, of which one is accepted."""

    def __init__(self, model: list[int], params: Params) -> None:
        if params.search["max_length"] > 4000:
            raise RuntimeError("max_length is too large")
        self.ends, self.params, self.text, self.round, self.rewound = model, params, list[int](), 0, list[int]()

    def append_tokens(self, ids: Sequence[int]) -> None:
        self.text += list(map(int, ids))

    def rewind_to(self, length: int) -> None:
        self.rewound.append(length)
        del self.text[length:]
        self.round += self.round % 2

    def token_count(self) -> int:
        return len(self.text)

    def get_sequence(self, _: int) -> np.ndarray[Any, Any]:
        return np.array(self.text)

    def get_next_tokens(self) -> list[int]:
        return [self.next]

    def get_logits(self) -> np.ndarray[Any, Any]:
        if not self.rewound:
            raise RuntimeError("not available at the current generation state")
        return np.eye(1, 768, self.text[-1] + 1, dtype=np.float32).reshape(1, 1, 768)

    def get_speculative_stats(self) -> dict[str, int]:
        whole = -(-self.round // 2)
        drafts = self.params.drafts
        return {
            "rounds": whole,
            "draft_tokens_proposed": 2 * whole * drafts,
            "draft_tokens_accepted": whole * drafts,
            "tokens_buffered": self.round % 2,
        }

    def generate_next_token(self) -> None:
        self.next, self.round = self.text[-1] + 1, self.round + 1
        self.text += [] if self.next in self.ends else [self.next]


class Params:
    def __init__(self, _: object) -> None:
        self.search, self.drafts = dict[str, float](max_length=9, chunk_size=0.0), 0

    def set_search_options(self, **options: float) -> None:
        self.search |= options

    def set_speculative_options(self, **options: float) -> None:
        self.drafts = int(options["max_draft_tokens"] > 0)

    get_search_options = get_speculative_options = lambda self: {**self.search, "max_draft_tokens": 5.0}


class Config(list[int]):
    made: ClassVar[list[Config]] = []

    def __init__(self, _: str) -> None:
        self.said: dict[str, Any] = {}
        self.made.append(self)

    def overlay(self, text: str) -> None:
        self.said |= (model := json.loads(text)["model"])
        ends = model["eos_token_id"]
        self[:] = [*self, *ends] if isinstance(ends, list) else [ends]


GENAI = SimpleNamespace(
    Config=Config,
    Model=lambda config: config,
    GeneratorParams=Params,
    Generator=Generator,
    Tokenizer=lambda model: SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)) if 66 not in ids else "A�"),
)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A converted checkpoint, with windows."""
    model = {"bos_token_id": 0, "context_length": 4096, "decoder": {"filename": "model.onnx", **WINDOWS}}
    (tmp_path / CONFIG).write_text(json.dumps({"model": model}), encoding="utf-8")
    (tmp_path / "tokenizer.json").write_bytes((LLAMA / "tokenizer.json").read_bytes())
    monkeypatch.setattr(engines, "converted", lambda folder: tmp_path)
    return tmp_path


def command(cell: str, *requests: RequestSpec) -> EngineCommand | Unsupported:
    prepared = prepare(Cell.from_id(cell), subject="onnxruntime-genai", workload=lambda *_: requests)
    return GenaiSubject().translate(prepared)


def answered(cell: str, *requests: RequestSpec) -> tuple[GenaiEngine, list[Answer]]:
    asked = command(cell, *requests)
    assert isinstance(asked, EngineCommand)
    asks = [replace(ask, input_ids=(9, 9, 60 + place // 9)) for place, ask in enumerate(asked.asks)]
    engine = GenaiEngine(asked, GENAI)
    return engine, engine.generate(asks)


def test_a_generator_is_rewound_to_what_texts_share_and_its_tokens_are_of_rounds(made):
    again = replace(PLAIN, name="r", after=("q",), stop_token_ids=(65,), top_logprobs=2, stream=True)
    third = replace(PLAIN, name="s", after=("r",), abort_after=3)
    engine, (first, second, cut) = answered("standalone.s5.n6", PLAIN, again, third)
    assert (first.output_ids, first.finish, first.matched) == (tuple(range(61, 70)), "length", None)
    assert first.accept_lengths == (2, 2, 2, 2, 1) and first.round_widths == (3,) * 5
    assert (second.output_ids, second.text, second.matched) == ((61, 62, 63, 64, 65), "=>?@", 65)
    assert (
        second.cached_tokens == 0 and second.pieces[0] == "=" and len(second.logprobs) == len(second.top_logprobs) == 5
    )
    assert second.top_logprobs[0][0] == (61, second.logprobs[0]) and second.logprobs[0] == pytest.approx(
        1 - np.log(767 + np.e)
    )
    assert (cut.finish, cut.output_ids, cut.cached_tokens) == ("abort", (61, 62, 63), 2)
    assert engine.counters()["spec.drafted"] == 2 * engine.counters()["spec.accepted"] > 0
    assert engine.resolved == {"num_steps": 5, "topk": 1, "num_draft_tokens": 6}
    assert engine.readback() == {"rewind_to": True, "max_draft_tokens": 5}
    assert Config.made[-1].said["decoder"]["sliding_window"] == {"window_size": 48, "cache_slack": 4096}
    engine.close()
    engine.close()


def test_no_end_is_bos_and_a_short_text_is_as_long_as_a_window(made):
    endless = replace(PLAIN, ignore_eos=True)
    engine, (found, refused) = answered("none.nocache.c7", endless, replace(endless, name="r", max_new_tokens=4000))
    assert list(Config.made[-1]) == [0] and found.finish == "length" and not found.accept_lengths
    assert (refused.finish, refused.refusal) == ("refused", "max_length is too large")
    assert engine.readback() == {"rewind_to": False, "chunk_size": 7}
    assert "sliding_window" not in Config.made[-1].said["decoder"]


def test_rules_that_it_has_not_are_left_out_and_what_it_refuses_ends_the_start(made):
    assert command("none", replace(PLAIN, stop=("x",))) == Unsupported(
        "this subject does not translate stop of a request"
    )
    found = GenaiSubject().requests(Cell.from_id("none.mixed_lengths.rules"), 0)
    assert {name for one in found for name in one.rules} == {"repetition_penalty", "min_new_tokens"}
    assert not any(one.ruled and (one.logprobs or one.top_logprobs) for one in found)
    asked = command("none", PLAIN)
    assert isinstance(asked, EngineCommand)
    with pytest.raises(ConfigError, match=r"^ONNX Runtime GenAI does not start: AttributeError: "):
        GenaiEngine(asked, SimpleNamespace())


def test_the_builder_s_refusal_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    builder = tmp_path / "python"
    builder.write_text('#!/bin/sh\nmkdir -p "$8"; echo "no such architecture" >&2; exit 1\n', encoding="utf-8")
    builder.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(builder))
    monkeypatch.setenv("SPECMATRIX_ONNXRUNTIME_GENAI", str(tmp_path / "place"))
    (tmp_path / "place").mkdir()
    with pytest.raises(
        ConfigError, match=r"^the builder of ONNX Runtime GenAI refuses .*llama-mini: no such architecture$"
    ):
        converted(LLAMA)
    assert not list((tmp_path / "place" / "models").iterdir())
    builder.write_text(f'#!/bin/sh\nmkdir -p "$8"; echo "$@" > "$8/{CONFIG}"\n', encoding="utf-8")
    place = converted(LLAMA)
    assert (place / CONFIG).read_text(encoding="utf-8").startswith(f"-m {engines.BUILDER} -m {LLAMA} -i {LLAMA} -o ")
    assert converted(LLAMA) == place
