"""ONNX Runtime GenAI as a subject: its converter, and its engine on scripted generators. The goldens have the rest."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.onnxruntime_genai import engine as engines
from specmatrix.matrix.subjects.onnxruntime_genai.subject import GenaiSubject
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.zoo.registry import resolve_path

PLAIN = RequestSpec("q", "Question:", 9)
LLAMA = resolve_path("llama-mini")
WINDOWS = {"filename": "model.onnx", "sliding_window": {"window_size": 48}}
MODEL = {"bos_token_id": 0, "context_length": 4096, "decoder": WINDOWS}


class Generator(SimpleNamespace):
    """Counts up from the last token, and drafts two tokens a round, of which one is accepted."""

    def __init__(self, model: SimpleNamespace, params: SimpleNamespace) -> None:
        if params.options["max_length"] > 4000:
            raise RuntimeError("max_length is too large")
        text, state = list[int](), [0, 0]  # steps, and the last token
        super().__init__(append_tokens=text.extend, token_count=lambda: len(text), get_next_tokens=lambda: [state[1]])
        self.get_sequence, self.rewound = lambda _: np.array(text), False
        self.text, self.state, self.ends = text, state, model.ends

    def rewind_to(self, length: int) -> None:
        del self.text[length:]
        self.state[0], self.rewound = self.state[0] + self.state[0] % 2, True

    def get_logits(self) -> object:
        if not self.rewound:
            raise RuntimeError("not available at the current generation state")
        return np.eye(1, 768, self.text[-1] + 1)

    def get_speculative_stats(self) -> dict[str, int]:
        rounds, buffered = -(-self.state[0] // 2), self.state[0] % 2
        return {"draft_tokens_proposed": 2 * rounds, "draft_tokens_accepted": rounds, "tokens_buffered": buffered}

    def generate_next_token(self) -> None:
        self.state[:] = self.state[0] + 1, self.text[-1] + 1
        self.text += [] if self.state[1] in self.ends else self.state[1:]


def params(_: object) -> SimpleNamespace:
    options = {"max_length": 9}
    setting, getting = (lambda **more: options.update(more)), (lambda: options)
    names = {f"{verb}_{what}_options" for verb in ("set", "get") for what in ("search", "speculative")}
    return SimpleNamespace(options=options, **{name: setting if name[0] == "s" else getting for name in names})


class Config(SimpleNamespace):
    def overlay(self, text: str) -> None:
        self.said |= json.loads(text)["model"]
        ends, GENAI.last = self.said["eos_token_id"], self
        self.ends = [*self.ends, *ends] if isinstance(ends, list) else [ends]


GENAI = SimpleNamespace(
    Config=lambda _: Config(said={}, ends=[]), Model=lambda config: config, GeneratorParams=params, Generator=Generator
)
GENAI.Tokenizer = lambda model: SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)) if 66 not in ids else "A�")


def answered(
    place: Path, patch: pytest.MonkeyPatch, cell: str, *requests: RequestSpec
) -> tuple[engines.GenaiEngine, list[Answer]]:
    """The engine on a model with windows, and its answers to a cell's requests."""
    (place / engines.CONFIG).write_text(json.dumps({"model": MODEL}), encoding="utf-8")
    (place / "tokenizer.json").write_bytes((LLAMA / "tokenizer.json").read_bytes())
    patch.setattr(engines, "converted", lambda folder: place)
    asked = GenaiSubject().translate(prepare(Cell.from_id(cell), subject="any", workload=lambda *_: requests))
    assert isinstance(asked, EngineCommand)
    engine = engines.GenaiEngine(asked, GENAI)
    return engine, engine.generate([replace(ask, input_ids=(9, 9, 60)) for ask in asked.asks])


def test_a_generator_is_rewound_to_what_texts_share_and_its_tokens_are_of_rounds(tmp_path, monkeypatch):
    again = replace(PLAIN, name="r", stop_token_ids=(65,), top_logprobs=2, stream=True)
    cut = replace(PLAIN, name="s", after=("q", "r"), abort_after=3)
    engine, (first, second, third) = answered(tmp_path, monkeypatch, "standalone.s5.n6", PLAIN, again, cut)
    assert (first.output_ids, first.finish, first.matched) == (tuple(range(61, 70)), "length", None)
    assert (first.accept_lengths, first.round_widths, first.cached_tokens) == ((2, 2, 2, 2, 1), (3,) * 5, 0)
    assert "�" not in first.text and first.drafts_first
    assert (second.output_ids, second.text, second.matched) == ((61, 62, 63, 64, 65), "=>?@", 65)
    assert second.pieces[0] == "=" and second.top_logprobs[4][0] == (65, second.logprobs[4])
    assert second.logprobs == pytest.approx([1 - np.log(767 + np.e)] * 5)
    assert (third.finish, third.output_ids, third.cached_tokens) == ("abort", (61, 62, 63), 2)
    assert engine.counters() == {"spec.drafted": 20, "spec.accepted": 10}
    assert (engine.resolved["num_draft_tokens"], engine.readback()) == (6, {"rewind_to": True, "max_draft_tokens": 5})
    assert GENAI.last.said["decoder"]["sliding_window"] == {"window_size": 48, "cache_slack": 4096}
    engine.close()
    engine.close()


def test_bos_stands_for_no_end_and_a_refusal_is_an_answer_or_ends_the_start(tmp_path, monkeypatch):
    endless = replace(PLAIN, ignore_eos=True)
    long = replace(endless, name="r", max_new_tokens=4000)
    engine, (found, refused) = answered(tmp_path, monkeypatch, "none.nocache.c7", endless, long)
    assert GENAI.last.ends == [0] and found.finish == "length" and not found.accept_lengths
    assert (refused.finish, refused.refusal) == ("refused", "max_length is too large")
    assert engine.readback() == {"rewind_to": False, "chunk_size": 7}
    assert "sliding_window" not in GENAI.last.said["decoder"]
    monkeypatch.delattr(GENAI, "Tokenizer")
    with pytest.raises(ConfigError, match=r"^ONNX Runtime GenAI does not start: AttributeError: "):
        answered(tmp_path, monkeypatch, "none")
    own = GenaiSubject().requests(Cell.from_id("none.mixed_lengths.rules"), 0)
    assert {name for one in own for name in one.rules} == {"repetition_penalty", "min_new_tokens"}
    assert not any(one.ruled and (one.logprobs or one.top_logprobs) for one in own)


def test_the_builder_s_refusal_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    builder = tmp_path / "python"
    builder.write_text('#!/bin/sh\nmkdir -p "$8"; echo "unknown" >&2; exit 1\n', encoding="utf-8")
    builder.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(builder))
    monkeypatch.setenv("SPECMATRIX_ONNXRUNTIME_GENAI", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^the builder of ONNX Runtime GenAI refuses .*llama-mini: unknown$"):
        engines.converted(LLAMA)
    assert not list((tmp_path / "models").iterdir())
    builder.write_text(f'#!/bin/sh\nmkdir -p "$8"; echo "$@" > "$8/{engines.CONFIG}"\n', encoding="utf-8")
    said = (engines.converted(LLAMA) / engines.CONFIG).read_text(encoding="utf-8")
    assert said.startswith(f"-m {engines.BUILDER} -m {LLAMA} -i {LLAMA} -o ") and " -p fp32 -e cpu " in said
