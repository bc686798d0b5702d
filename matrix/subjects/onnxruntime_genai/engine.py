"""Runs asks on ONNX Runtime GenAI's generators, a token of each in turn, so that each round of each request is seen.
Runs in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

import numpy as np

from specmatrix.errors import ConfigError, text_of
from specmatrix.matrix.subjects.environment import GENAI, kept
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, SubjectRequest
from specmatrix.matrix.subjects.stepped import SentText, SteppedEngine
from specmatrix.matrix.zoo.registry import resolve_path

BUILDER: Final = "onnxruntime_genai.models.builder"
CONFIG: Final = "genai_config.json"
ONE_THREAD: Final = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
# Flags that are no speculative options: of this subject, that a request continues the generator whose text it shares
# most of, and of the search.
REWINDS, CHUNK = "rewind_to", "chunk_size"
# Fields of an ask that are read here; the others are search options.
OWN: Final = {
    *("max_new_tokens", "min_new_tokens", "eos_token_id", "stream", "no_stop_trim", "logprobs", "top_logprobs"),
}
# Of a generator's statistics.
COUNTERS: Final = {"spec.drafted": "draft_tokens_proposed", "spec.accepted": "draft_tokens_accepted"}


def converted(folder: Path) -> Path:
    """The folder of a checkpoint in the format of ONNX Runtime GenAI, in float32, made by its own builder and kept by
    its content. ConfigError if the builder refuses it."""

    def convert(place: Path) -> None:
        words = ["-m", BUILDER, "-m", str(folder), "-i", str(folder), "-o", str(place), "-p", "fp32", "-e", "cpu"]
        words += ["-c", gettempdir()]
        done = subprocess.run([sys.executable, *words], capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode or not (place / CONFIG).exists():
            said = text_of(done.stderr.strip().rpartition("\n")[2])
            raise ConfigError(f"the builder of ONNX Runtime GenAI refuses {folder}: {said}")

    return kept(GENAI.folder() / "models", f"{GENAI.version()}", [folder], "", convert)


@dataclass(eq=False)
class Sent(SentText):
    """An ask that was sent. generator: None if it was refused. key: of asks that may continue it, "" if none may."""

    generator: Any = None
    key: str = ""


class GenaiEngine(SteppedEngine[Sent]):
    """A model in this process, with a generator for each request that runs. genai: in place of the package, for a
    replay."""

    title = "ONNX Runtime GenAI"

    def __init__(self, command: EngineCommand, genai: Any = None) -> None:
        self._flags, self._counts = dict(command.flags), Counter[str]()
        self._drafting = {name: value for name, value in command.flags.items() if name not in (REWINDS, CHUNK)}
        self._models, self._running, self._idle = dict[tuple[int, ...], Any](), list[Sent](), list[Sent]()
        paths = {role: converted(resolve_path(name)) for role, name in command.checkpoints.items()}
        try:
            self._genai = genai or import_module("onnxruntime_genai")
            described = {role: json.loads((path / CONFIG).read_bytes())["model"] for role, path in paths.items()}
            self._target, model = paths["target"], described["target"]
            self._bos, windows = model["bos_token_id"], model["decoder"].get("sliding_window", {})
            self._overlay = {"decoder": {"session_options": ONE_THREAD}}
            # No text may be shorter than a window, nor a cache of windows be rewound (docs/findings.md).
            self._window = windows.get("window_size", 0)
            if windows and (self._drafting or self._flags[REWINDS]):
                self._overlay["decoder"]["sliding_window"] = {**windows, "cache_slack": model["context_length"]}
            if "draft" in paths:
                file = os.path.relpath(paths["draft"] / described["draft"]["decoder"]["filename"], self._target)
                self._overlay["draft"] = described["draft"]["decoder"] | {
                    "filename": file,
                    "session_options": ONE_THREAD,
                }
            self._words = import_module("tokenizers").Tokenizer.from_file(str(self._target / "tokenizer.json"))
            self._tokenizer = self._genai.Tokenizer(self._model(()))
            # What it refuses of the flags it refuses here, and not with each request.
            params = self._params(self._model(()), {"max_length": 2})
            self._genai.Generator(self._model(()), params)
        except Exception as error:  # whatever a version raises for what it does not take
            raise ConfigError(f"{self.title} does not start: {type(error).__name__}: {text_of(error)}") from error
        said = {**params.get_search_options(), **params.get_speculative_options()}
        self._read = {name: type(value)(said.get(name, value)) for name, value in self._flags.items()}

    def _model(self, ends: tuple[int, ...]) -> Any:
        """The model with these ids that end a text."""
        if ends not in self._models:
            config = self._genai.Config(str(self._target))
            # A number replaces those of the file, and a list adds to them. BOS, which no text has, stands for none.
            first, *further = ends or (self._bos,)
            for model in ({**self._overlay, "eos_token_id": first}, {"eos_token_id": further}):
                config.overlay(json.dumps({"model": model}))
            self._models[ends] = self._genai.Model(config)
        return self._models[ends]

    def _params(self, model: Any, options: Mapping[str, Any]) -> Any:
        """Of a generator with these search options."""
        params = self._genai.GeneratorParams(model)
        params.set_search_options(**options, **({CHUNK: self._flags[CHUNK]} if CHUNK in self._flags else {}))
        if self._drafting:
            params.set_speculative_options(**self._drafting)
        return params

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The shape of a draft. That of a lookup differs from round to round."""
        depth = 0 if "ngram_size" in self._flags else self._flags.get("max_draft_tokens", 0)
        return {"num_steps": depth, "topk": 1, "num_draft_tokens": depth + 1} if depth else {}

    def readback(self) -> Mapping[str, Any]:
        """What a generator's parameters say of the flags."""
        return self._read

    def counters(self) -> Mapping[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self._running, self._idle, self._models = [], [], {}

    def send(self, ask: SubjectRequest) -> Sent:
        fields, prompt = ask.fields, ask.input_ids
        options = {name: value for name, value in fields.items() if name not in OWN}
        if fields["min_new_tokens"]:
            options["min_length"] = len(prompt) + fields["min_new_tokens"]
        length = max(len(prompt) + fields["max_new_tokens"], self._window)
        try:
            # A continued generator has the model's length: whether it takes the ask's is asked of a new one.
            sent = self._new(ask, {**options, "max_length": length})
            if self._flags[REWINDS] and options == {"do_sample": False}:
                sent = self._continued(ask, options)
            if rest := prompt[sent.generator.token_count() :]:
                sent.generator.append_tokens(np.array(rest, np.int32))
        except (RuntimeError, ValueError) as error:
            return Sent(ask, "refused", text_of(error))
        self._running.append(sent)
        return sent

    def _new(self, ask: SubjectRequest, options: Mapping[str, Any], key: str = "") -> Sent:
        model = self._model(tuple(ask.fields["eos_token_id"]))
        return Sent(ask, generator=self._genai.Generator(model, self._params(model, options)), key=key)

    def _continued(self, ask: SubjectRequest, options: Mapping[str, Any]) -> Sent:
        """An idle generator of the same model, rewound to the tokens that its text shares with the ask's prompt, or a
        new one."""
        key = json.dumps(ask.fields["eos_token_id"])
        alike = {one: _common(one, ask) for one in self._idle if one.key == key}
        if not alike:
            return self._new(ask, options, key)
        best = max(alike, key=lambda one: alike[one])
        self._idle.remove(best)
        best.generator.rewind_to(alike[best])
        # The last token of a prompt is always read for its logits.
        return Sent(ask, generator=best.generator, key=key, cached=min(alike[best], len(ask.input_ids) - 1))

    def abort(self, sent: Sent) -> None:
        if sent.ask.abort_after is not None and not sent.ended and len(sent.ids) >= sent.ask.abort_after:
            self._end(sent, "abort")

    def busy(self) -> bool:
        return bool(self._running)

    def step(self, sent: Mapping[str, Sent]) -> None:
        """A token of each request that runs."""
        for one in list(self._running):
            self._token(one)

    def _token(self, sent: Sent) -> None:
        generator, fields = sent.generator, sent.ask.fields
        shown = fields["logprobs"] or fields["top_logprobs"]
        row = _log_probabilities(generator, fields.get("temperature", 1.0)) if shown else None
        before, length = generator.get_speculative_stats(), generator.token_count()
        generator.generate_next_token()
        after = generator.get_speculative_stats()
        grown = {name: after[key] - before[key] for name, key in COUNTERS.items()}
        self._counts.update(grown)
        if self._drafting:
            if not before["tokens_buffered"]:  # a round begins, or a step of a lookup without drafts
                sent.rounds.append([0, 1 + grown["spec.drafted"]])
            sent.rounds[-1][0] += 1
        token = int(generator.get_next_tokens()[0])
        sent.ids.append(token)
        if row is not None:
            sent.score(row, token, fields["top_logprobs"])
        if generator.token_count() == length:
            self._end(sent, "stop")
        elif len(sent.ids) >= fields["max_new_tokens"]:
            self._end(sent, "length")
        if fields["stream"]:
            sent.pieces.append(self._text(sent))

    def _end(self, sent: Sent, finish: str) -> None:
        sent.finish = finish
        self._running.remove(sent)
        if sent.key:
            self._idle.append(sent)

    def _text(self, sent: Sent) -> str:
        trimmed = sent.finish == "stop" and not sent.ask.fields["no_stop_trim"]
        ids = sent.ids[: len(sent.ids) - trimmed]
        text = str(self._tokenizer.decode(np.array(ids, np.int32))) if ids else ""
        if "�" in text:  # it decodes nothing behind a byte that is no UTF-8 (docs/findings.md)
            text = str(self._words.decode(ids))
        return text.rstrip("�")

    def answer(self, sent: Sent) -> Answer:
        return sent.answer(self._text(sent), sent.ids[-1] if sent.finish == "stop" else None)


def _common(sent: Sent, ask: SubjectRequest) -> int:
    """How many first tokens of an ask's prompt a generator has, less its last one. That counts where asks wait for
    others: a step behind a rewind without new tokens is wrong (docs/findings.md), which would show in all cells."""
    prompt = ask.input_ids if ask.after else ask.input_ids[:-1]
    pairs = zip(sent.generator.get_sequence(0).tolist(), prompt, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _log_probabilities(generator: Any, temperature: float) -> Any:
    """Of the next token, in nats. Behind a step of a lookup without drafts no logits can be read (docs/findings.md),
    unless the last token is taken back and appended."""
    try:
        logits = generator.get_logits()
    except RuntimeError:
        last = generator.get_sequence(0)[-1:]
        generator.rewind_to(generator.token_count() - 1)
        generator.append_tokens(last)
        logits = generator.get_logits()
    scaled = logits.reshape(-1).astype(np.float64) / temperature
    return scaled - np.logaddexp.reduce(scaled)
