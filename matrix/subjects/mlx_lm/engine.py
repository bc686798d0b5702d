"""Runs asks on mlx-lm's generators as its server does, token by token: in a batch, or one at a time with drafts or a
seed. Runs in mlx-lm's environment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from specmatrix.errors import ConfigError, text_of
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, SubjectRequest
from specmatrix.matrix.subjects.stepped import SentText, SteppedEngine
from specmatrix.matrix.zoo.registry import resolve_path

# Key of the texts in the prompt cache, which may hold those of several models.
MODEL: Final = "target"
# Architecture with a window in each layer, of which mlx-lm itself reads none (docs/findings.md).
WINDOWED: Final = "mistral"
# Its name of an architecture, where it does not know the checkpoint's.
TYPES: Final = {"qwen3_5_text": "qwen3_5"}
MODULES: Final = ("utils", "generate", "sample_utils", "models.cache")


@dataclass(eq=False)
class Sent(SentText):
    """An ask that was sent. state: of the machine that cuts stop strings from its text. shown: the text so far; read:
    characters of its tokens' text that the machine has read. whole: whether its last round has ended. stream, matcher,
    cache: of one that runs alone, once it does."""

    state: Any = None
    shown: str = ""
    read: int = 0
    whole: bool = True
    stream: Any = None
    matcher: Any = None
    cache: Any = None


class MlxEngine(SteppedEngine[Sent]):
    """A model and its draft in this process. mlx: mlx.core and what is used of mlx-lm, by name, for a replay."""

    title = "mlx-lm"

    def __init__(self, command: EngineCommand, mlx: Any = None) -> None:
        flags = command.flags
        self._depth, self._counts = flags.get("num_draft_tokens", 0), Counter[str]()
        self._chunk = {name: flags[name] for name in ("prefill_step_size",) if name in flags}
        self._running, self._alone = dict[int, Sent](), list[Sent]()
        paths = {role: resolve_path(name) for role, name in command.checkpoints.items()}
        try:
            self._mlx = mlx = mlx or _modules()
            self._tokenizer, self._models = mlx.load_tokenizer(paths["target"]), dict[str, Any]()
            for role, path in reversed(paths.items()):
                # It refuses what a checkpoint has besides its layers (docs/findings.md).
                self._models[role], config = mlx.load_model(path, strict=False, model_config=_renamed(path))
                self._models[role].set_dtype(mlx.float32)
            self._longest = config["max_position_embeddings"]
            self._window = config["sliding_window"] if config["model_type"] == WINDOWED else None
            slots = flags.get("completion_batch_size")
            sizes = {"completion_batch_size": slots, "prefill_batch_size": slots} if slots else {}
            self._batch = mlx.BatchGenerator(self._models["target"], **self._chunk, **sizes)
        except Exception as error:  # whatever a version raises for what it does not take
            raise ConfigError(f"mlx-lm does not start: {type(error).__name__}: {text_of(error)}") from error
        self._keeps, self._kept = flags["prompt_cache"], None

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The shape of a draft."""
        depth = self._depth
        return {"num_steps": depth, "topk": 1, "num_draft_tokens": depth + 1} if depth else {}

    def counters(self) -> Mapping[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self._batch.close()
        self._running, self._alone, self._models, self._kept = {}, [], {}, None

    def generate(self, asks: Sequence[SubjectRequest]) -> list[Answer]:
        """As `SteppedEngine.generate`, on an empty prompt cache, so that no answer depends on an earlier call."""
        self._kept = self._mlx.LRUPromptCache() if self._keeps else None
        return super().generate(asks)

    def send(self, ask: SubjectRequest) -> Sent:
        sent = Sent(ask)
        if len(ask.input_ids) + ask.fields["max_tokens"] > self._longest:  # mlx-lm would continue past it
            sent.finish, sent.message = "refused", f"the text may have {self._longest} tokens at most"
        elif self._depth or ask.fields.get("seed") is not None:
            self._alone.append(sent)
        else:
            self._insert(sent)
        return sent

    def _rules(self, sent: Sent) -> tuple[Any, Any, Any]:
        """Sampler, logits processors and stop sequences of an ask, whose text begins here."""
        fields = sent.ask.fields
        rules = dict(fields["logits_processors"])
        if "logit_bias" in rules:
            rules["logit_bias"] = dict(map(tuple, rules["logit_bias"]))
        self._tokenizer.eos_token_ids = fields["eos_token_ids"]
        sent.state = self._mlx.make_text_state_machine(self._tokenizer, fields["stop_words"]).make_state("normal")
        return (
            self._mlx.make_sampler(**fields["sampler"]),
            self._mlx.make_logits_processors(**rules),
            self._mlx.make_stop_sequences(self._tokenizer, fields["stop_words"]),
        )

    def _cached(self, sent: Sent) -> tuple[Any, list[int]]:
        """The caches of models for an ask, and what of its prompt they lack."""
        prompt = list(sent.ask.input_ids)
        cache, rest = self._kept.fetch_nearest_cache(MODEL, prompt) if self._kept else (None, prompt)
        sent.cached = len(prompt) - len(rest)
        if cache is None:
            windows, plain = self._mlx.RotatingKVCache, self._mlx.make_prompt_cache
            target, draft = self._models["target"], self._models.get("draft")
            cache = [windows(max_size=self._window) for _ in target.layers] if self._window else plain(target)
            cache += plain(draft) if draft else []
        return cache, rest

    def _keep(self, ids: list[int], cache: Any) -> None:
        if self._kept is not None:
            self._kept.insert_cache(MODEL, ids, cache)

    def _insert(self, sent: Sent) -> None:
        """Add an ask to the batch."""
        sampler, processors, stops = self._rules(sent)
        cache, rest = self._cached(sent)
        known = list(sent.ask.input_ids[: sent.cached])
        try:
            (uid,) = self._batch.insert_segments(
                [[rest]],
                [sent.ask.fields["max_tokens"]],
                caches=[cache],
                all_tokens=[known],
                samplers=[sampler],
                logits_processors=[processors],
                stop_sequences=[stops],
            )
        except ValueError as error:
            sent.finish, sent.message = "error", text_of(error)
        else:
            self._running[uid] = sent

    def abort(self, sent: Sent) -> None:
        if sent.ask.abort_after is None or sent.ended or len(sent.ids) < sent.ask.abort_after:
            return
        if sent in self._alone:
            self._end(sent, "abort")
        else:
            (uid,) = (uid for uid, one in self._running.items() if one is sent)
            self._batch.remove([uid])
            self._running.pop(uid).finish = "abort"

    def busy(self) -> bool:
        return bool(self._running or self._alone)

    def step(self, sent: Mapping[str, Sent]) -> None:
        """A token of each request of the batch or, once it is empty, of the first that runs alone."""
        if not self._running:
            self._lone_token(self._alone[0])
            return
        prompts, tokens = self._batch.next()
        read = [one.uid for one in prompts if one.end_of_segment and not one.end_of_prompt]
        for cache, ids in self._batch.extract_cache(read).values():
            self._keep(ids[:], cache)
        for one in tokens:
            running = self._running[one.uid]
            self._token(running, one.token, one.logprobs, one.finish_reason)
            if one.finish_reason is not None:
                self._running.pop(one.uid).finish = one.finish_reason
                self._keep(one.all_tokens[:], one.prompt_cache)

    def _lone_token(self, sent: Sent) -> None:
        fields = sent.ask.fields
        try:
            if sent.stream is None:
                self._start_alone(sent)
            found = next(sent.stream)
        except (ValueError, RuntimeError) as error:
            self._alone.remove(sent)
            sent.finish, sent.message = "error", text_of(error)
            return
        if self._depth:
            if sent.whole:
                width = 1 + min(self._depth, fields["max_tokens"] - len(sent.ids))
                sent.rounds.append([0, width])
                self._counts["spec.drafted"] += width - 1
            sent.rounds[-1][0] += 1
            sent.whole = not found.from_draft
            self._counts["spec.accepted"] += found.from_draft
        finish = "stop" if sent.matcher.advance(found.token) else found.finish_reason
        self._token(sent, found.token, found.logprobs, finish)
        if finish is not None:
            self._end(sent, finish)

    def _start_alone(self, sent: Sent) -> None:
        sampler, processors, stops = self._rules(sent)
        if (seed := sent.ask.fields.get("seed")) is not None:
            self._mlx.random.seed(seed)
        sent.matcher = stops.matcher()
        sent.cache, rest = self._cached(sent)
        drafts = {"draft_model": self._models["draft"], "num_draft_tokens": self._depth} if self._depth else {}
        sent.stream = self._mlx.stream_generate(
            self._models["target"],
            self._tokenizer,
            rest,
            sent.ask.fields["max_tokens"],
            sampler=sampler,
            logits_processors=processors,
            prompt_cache=sent.cache,
            **self._chunk,
            **drafts,
        )

    def _end(self, sent: Sent, finish: str) -> None:
        """End an ask that runs alone."""
        sent.finish = finish
        self._alone.remove(sent)
        if sent.stream is not None:
            sent.stream.close()
            ids = [*sent.ask.input_ids, *sent.ids]
            if self._depth and not sent.ask.fields["keeps_all"]:
                known = min(one.offset for one in sent.cache)
                for one in sent.cache:
                    one.trim(one.offset - known)
                ids = ids[:known]
            self._keep(ids, sent.cache)

    def _token(self, sent: Sent, token: int, row: Any, finish: str | None) -> None:
        """Note a token and what the server would show of its text, and if they are asked for the log-probabilities of
        its position at its temperature."""
        fields, machine = sent.ask.fields, self._mlx.TextStateMachine
        sent.ids.append(token)
        if fields["logprobs"] or fields["top_logprobs"]:
            scaled = np.array(row, np.float64) / (fields["sampler"]["temp"] or 1.0)
            scaled -= np.logaddexp.reduce(scaled)
            sent.score(scaled, token, fields["top_logprobs"])
        if finish != "stop":  # or the server discards what it holds back
            text = self._decoded(sent.ids)
            sent.state, more, _ = machine.step(sent.state, text[sent.read :])
            sent.read, sent.shown = len(text), sent.shown + more
        if finish == "length":
            sent.shown += machine.flush(sent.state)[1]
        if fields["stream"]:
            sent.pieces.append(sent.shown)

    def _decoded(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)).rstrip("�")

    def answer(self, sent: Sent) -> Answer:
        ask, ids = sent.ask, sent.ids
        matched: int | str | None = sent.message or None
        if sent.finish == "stop":
            text = self._decoded(ids)
            hits = [(text.find(stop), -len(stop), stop) for stop in ask.fields["stop_words"] if stop in text]
            matched = ids[-1] if ids[-1] in ask.fields["eos_token_ids"] else min(hits, default=(0, 0, None))[2]
        return sent.answer(sent.shown, matched)


def _renamed(path: Path) -> dict[str, Any]:
    """What of a checkpoint's configuration mlx-lm knows by another name."""
    found = json.loads((path / "config.json").read_bytes())["model_type"]
    return {"model_type": TYPES[found]} if found in TYPES else {}


def _modules() -> Any:
    """mlx.core and what is used of mlx-lm, by name."""
    found = [import_module("mlx.core"), *(import_module(f"mlx_lm.{name}") for name in MODULES)]
    return SimpleNamespace(**{name: value for module in found for name, value in vars(module).items()})
